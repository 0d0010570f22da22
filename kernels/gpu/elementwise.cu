// Elementwise ops, out = R(formula(inputs)) (kernels/ops/formulas.h), and copies.
//
// Memory-bound. A thread owns 16 bytes of the output (one element where alignment forbids more),
// reads the same of every input and writes once; contiguous tensors are one long row. The fused ops
// round to storage between their steps in registers, as HuggingFace's eager code does in memory.
#include <initializer_list>

#include "kernels/gpu/float_arithmetic.h"
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/plain.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256, kBlocks = 8;  // at once: as many threads as there can be

template <class T, int Inputs>
struct Operands {
  void* out;  // of T, or of bool
  Rows out_rows;
  const void* in[Inputs];  // of T, or the first of bool
  Rows in_rows[Inputs];
  bool repeats[Inputs];  // one element for all of a row, of a broadcast
  Divisor width;         // of a row, in vectors
  int64_t total;         // vectors in all rows
};

template <class T, int N, int Inputs, class F>
__global__ void __launch_bounds__(kThreads, kBlocks) elementwise(Operands<T, Inputs> p, F f) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  const bool contiguous = p.out_rows.count == 1;
  const Division at = contiguous ? Division{} : divide(i, p.width);
  const auto offset = [&](const Rows& rows) {
    return contiguous ? i * N : rows.offset(at.quotient) + at.remainder * N;
  };
  const auto load = [&]<class S>(int j, S) {
    const S* from = static_cast<const S*>(p.in[j]);
    if (Inputs == 1 || !p.repeats[j]) return load_vector<N>(from + offset(p.in_rows[j]));
    const auto one = load_vector<1>(from + p.in_rows[j].offset(at.quotient));
    Vector<S, N> x;
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = one[0];
    return x;
  };
  constexpr int kFirst = F::kHasCondition;  // of the inputs of T
  Vector<bool, N> condition;
  if constexpr (F::kHasCondition) condition = load(0, bool{});
  Vector<T, N> x[Inputs];
#pragma unroll
  for (int j = kFirst; j < Inputs; ++j) x[j] = load(j, T{});
  T* out = static_cast<T*>(p.out) + offset(p.out_rows);
  if constexpr (requires { f.of_vector(x[0]); }) {
    store_vector(out, f.of_vector(x[0]));
  } else {
    float y[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if constexpr (Inputs == 1) {
        y[k] = f(to_float(x[0][k]));
      } else if constexpr (Inputs == 2) {
        y[k] = f(to_float(x[0][k]), to_float(x[1][k]));
      } else if constexpr (F::kHasCondition) {
        y[k] = f(condition[k], to_float(x[1][k]), to_float(x[2][k]));
      } else {
        y[k] = f(to_float(x[0][k]), to_float(x[1][k]), to_float(x[2][k]));
      }
    }
    if constexpr (F::kGivesBool) {
      Vector<bool, N> flags;
#pragma unroll
      for (int k = 0; k < N; ++k) flags[k] = y[k] != 0;
      store_vector(static_cast<bool*>(p.out) + offset(p.out_rows), flags);
    } else {
      store_vector(out, narrowed<T>(y));
    }
  }
}

// What a kernel must divide into rows has less than 2^31 elements: larger tensors are halved along
// an axis.
bool needs_halves(const Tensor& out, bool contiguous) {
  return !contiguous && out.numel() > INT32_MAX;
}

template <class Run>
void run_halves(const Tensor& out, Run run) {
  int axis = 0;
  for (int i = 1; i + 1 < out.rank(); ++i) {
    if (out.dim(i) > out.dim(axis)) axis = i;
  }
  const int64_t extent = out.dim(axis), half = extent / 2;
  const auto slice = [&](int64_t begin, int64_t end) {
    return [=](const Tensor& t) { return t.slice(axis, begin, end); };
  };
  run(slice(0, half));
  run(slice(half, extent));
}

template <class T, class F>
struct Reading {
  static constexpr bool kGivesBool = F::kGivesBool, kHasCondition = F::kHasCondition;
  FloatArithmetic<T> m;
  Reading(float number, float shift) : m(number, shift) {}
  template <class... Inputs>
  __device__ float operator()(Inputs... x) const {
    return F::of(m, static_cast<float>(x)...);
  }
};

// The formula itself, but bound by arithmetic where a conversion of a single number is as slow as a
// reciprocal: rounds all of a thread's at once, and has the last product, of two 16-bit numbers,
// done in pairs.
template <class T>
struct Reading<T, formulas::softcap> {
  static constexpr bool kHasCondition = false;
  FloatArithmetic<T> m;
  T cap;
  bool cap_is_exact;  // in the storage type
  Reading(float c, float)
      : m(c, 0), cap(from_float<T>(c)), cap_is_exact(to_float(from_float<T>(c)) == c) {}
  template <int N>
  __device__ Vector<T, N> of_vector(const Vector<T, N>& x) const {
    float y[N];
    widen(x, y);
#pragma unroll
    for (int k = 0; k < N; ++k) y[k] = m.over_number(y[k]);
    widen(narrowed<T>(y), y);
#pragma unroll
    for (int k = 0; k < N; ++k) y[k] = m.tanh(y[k]);
    const Vector<T, N> share = narrowed<T>(y);
    if (cap_is_exact) {
      Vector<T, N> caps;
#pragma unroll
      for (int k = 0; k < N; ++k) caps[k] = cap;
      return rounded_product(share, caps);
    }
    widen(share, y);
#pragma unroll
    for (int k = 0; k < N; ++k) y[k] *= m.number();
    return narrowed<T>(y);
  }
};

// The kernels of one formula: all that is compiled once for each of them.
template <class T, int Inputs, class F>
void launch_formula(GpuOps& ops, const char* op, bool vectors, const Operands<T, Inputs>& p,
                    const MapCall& call) {
  const Reading<T, F> f(static_cast<float>(call.number), static_cast<float>(call.shift));
  const auto go = [&]<int N>() {
    launch_overlapped<elementwise<T, N, Inputs, Reading<T, F>>>(op, {grid_for(p.total, kThreads)},
                                                                {kThreads}, 0, ops.stream(), p, f);
  };
  if (vectors) go.template operator()<kVector<T>>();
  else go.template operator()<1>();
}
template <class T, int Inputs>
using Launch = void (*)(GpuOps&, const char*, bool, const Operands<T, Inputs>&, const MapCall&);

template <class T, int Inputs>
void run(GpuOps& ops, const char* op, const Tensor& out, const Tensor* const (&in)[Inputs],
         Launch<T, Inputs> launch, const MapCall& call, std::string_view variant = {}) {
  if (out.numel() == 0) return;
  bool contiguous = out.contiguous(), few_strides = has_few_strides(out);
  for (const Tensor* x : in) {
    contiguous = contiguous && x->contiguous();
    few_strides = few_strides && has_few_strides(*x);
  }
  if (needs_halves(out, contiguous) || !few_strides) {
    return run_halves(out, [&](auto half_of) {
      Tensor halves[Inputs];
      const Tensor* pointers[Inputs];
      for (int j = 0; j < Inputs; ++j) {
        halves[j] = half_of(*in[j]);
        pointers[j] = &halves[j];
      }
      run<T, Inputs>(ops, op, half_of(out), pointers, launch, call, variant);
    });
  }
  const auto flat = [&](const Tensor& t) { return contiguous ? t.view({t.numel()}) : t; };
  Operands<T, Inputs> p{};
  const Tensor to = flat(out);
  p.out = to.raw();
  p.out_rows = rows_of(op, to);
  bool vectors = rows_are_multiples_of(kVector<T> * size_of(to.dtype()), to);
  for (int j = 0; j < Inputs; ++j) {
    const Tensor from = flat(*in[j]);
    p.in[j] = from.raw();
    p.in_rows[j] = rows_of(op, from);
    p.repeats[j] = from.dim(-1) > 1 && from.stride(-1) == 0;
    vectors = vectors &&
              (p.repeats[j] || rows_are_multiples_of(kVector<T> * size_of(from.dtype()), from));
  }
  vectors = vectors && ops.choose("vectors", variant);
  if (!vectors) ops.settle_for("scalars", variant);
  const int width = vectors ? kVector<T> : 1;
  p.width = Divisor(contiguous ? 1 : to.dim(-1) / width);
  p.total = to.numel() / width;
  launch(ops, op, vectors, p, call);
}

// What tells apart the kernels of an op that has several formulas.
std::string_view variant_of(const MapCall& call) {
  if (has_one_formula(call.row.id)) return {};
  if (call.formula == Formula::multiply) return "multiply";
  if (call.formula == Formula::divide) return "divide";
  return name_of(activation_of(call.formula));
}

// Up to two tensors of one layout, moved as they are.
template <class T>
struct Moves {
  T* out[2];
  const T* x[2];
  Rows out_rows, x_rows;
  Divisor width;  // of a row, in vectors
  int64_t total;  // vectors in all rows of x
  int repeats;    // places that a row goes to
  int64_t repeat_stride;
};

template <class T, int N>
__global__ void __launch_bounds__(kThreads, kBlocks) copy_rows(Moves<T> p) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  const Division at = p.x_rows.count == 1 ? Division{0, i} : divide(i, p.width);
  const int64_t column = at.remainder * N;
  const unsigned tensor = block_index().y;
  const T* from = tensor == 0 ? p.x[0] : p.x[1];
  T* to = (tensor == 0 ? p.out[0] : p.out[1]) + p.out_rows.offset(at.quotient) + column;
  const auto x = load_vector<N>(from + p.x_rows.offset(at.quotient) + column);
  for (int r = 0; r < p.repeats; ++r) store_vector(to + r * p.repeat_stride, x);
}

struct Copy {
  const Tensor& out;
  const Tensor& x;
};
using Copies = std::initializer_list<Copy>;

// out[.., a repeats + r, ..] = x[.., a, ..] along `axis`, which out has `repeats` times as long;
// for one or two pairs of tensors that differ only in address.
template <class T>
void copy_as(GpuOps& ops, const char* op, std::string_view variant, Copies copies, int axis,
             int64_t repeats) {
  Moves<T> p{};
  p.repeats = static_cast<int>(repeats);
  bool vectors = true;
  unsigned tensors = 0;
  int64_t width = 0;
  constexpr int kN = 16 / static_cast<int>(sizeof(T));
  for (const Copy& copy : copies) {
    const Tensor& x = copy.x;
    const Tensor to = repeats > 1 ? copy.out.every(axis, 0, repeats) : copy.out;
    const int row_axes = dense_axes(to, x);
    p.out[tensors] = to.data<T>();
    p.x[tensors++] = x.data<T>();
    p.out_rows = rows_of(op, to, row_axes);
    p.x_rows = rows_of(op, x, row_axes);
    if (repeats > 1) p.repeat_stride = copy.out.stride(axis);
    vectors = vectors && rows_are_vectors(to) && rows_are_vectors(x);
    width = x.numel() / p.x_rows.count;
  }
  const auto go = [&]<int N>() {
    p.width = Divisor(p.x_rows.count == 1 ? 1 : width / N);
    p.total = p.x_rows.count * (width / N);
    launch_overlapped<copy_rows<T, N>>(op, {grid_for(p.total, kThreads), tensors}, {kThreads}, 0,
                                       ops.stream(), p);
  };
  if (vectors && p.repeat_stride % kN == 0 && ops.choose("vectors", variant)) {
    return go.template operator()<kN>();
  }
  ops.settle_for("scalars", variant);
  go.template operator()<1>();
}

void copy_bits(GpuOps& ops, const char* op, Copies copies, int axis = 0, int64_t repeats = 1) {
  switch (size_of(copies.begin()->out.dtype())) {
    case 1: return copy_as<uint8_t>(ops, op, "b1", copies, axis, repeats);
    case 2: return copy_as<uint16_t>(ops, op, "b2", copies, axis, repeats);
    case 4: return copy_as<uint32_t>(ops, op, "b4", copies, axis, repeats);
    default: return copy_as<uint64_t>(ops, op, "b8", copies, axis, repeats);
  }
}

}  // namespace

void GpuOps::do_map(const MapCall& call) {
  const Tensor &out = call.out, &a = call.a;
  const bool of_bools = call.storage() == DType::boolean && takes_bools(call.row.id);
  if (computes_plainly(call.storage()) && !of_bools) {
    settle_for("scalars", variant_of(call));
    return map_plainly(*this, call);
  }
  if (call.row.id == OpId::add) {
    if (choose("in_product") && held_.add_to_product(out, a, *call.b)) return;
    if (HeldBack::takes_rows({&out, &a, call.b}) && choose("vectors")) {
      return held_.add(out, a, *call.b);
    }
  }
  if (call.row.id == OpId::gated_activation && choose("in_product") &&
      held_.gate(out, a, *call.b, activation_of(call.formula))) {
    return;
  }
  const char* op = call.row.name;
  const auto go = [&]<class T, class F>() {
    const std::string_view variant = variant_of(call);
    const auto launch = launch_formula<T, F::kInputs, F>;
    if constexpr (F::kInputs == 1) run<T, 1>(*this, op, out, {&a}, launch, call, variant);
    else if constexpr (F::kInputs == 2)
      run<T, 2>(*this, op, out, {&a, call.b}, launch, call, variant);
    else run<T, 3>(*this, op, out, {&a, call.b, call.c}, launch, call, variant);
  };
  with_formula(call.formula, [&]<class F>() {
    if constexpr (F::kTakesBools) {
      if (call.storage() == DType::boolean) return go.template operator()<bool, F>();
    }
    with_storage(op, call.storage(), [&]<class T>(T) { go.template operator()<T, F>(); });
  });
}

void GpuOps::do_masked_add(const Tensor& out, const Tensor& x, const Tensor& mask) {
  with_storage("masked_add", out.dtype(), [&]<class T>(T) {
    run<T, 2>(*this, "masked_add", out, {&x, &mask}, launch_formula<T, 2, formulas::add>,
              {row_of(OpId::masked_add), Formula::add, out, x, &mask});
  });
}

void GpuOps::do_copy(const Tensor& out, const Tensor& x) {
  if (out.numel() == 0) return;
  if (needs_halves(out, out.contiguous() && x.contiguous())) {
    return run_halves(out, [&](auto half_of) { do_copy(half_of(out), half_of(x)); });
  }
  copy_bits(*this, "copy", {{out, x}});
}

void GpuOps::do_copy_pair(const Tensor& out_a, const Tensor& a, const Tensor& out_b,
                          const Tensor& b) {
  if (a.numel() == 0) return;
  if (equal_layout(out_a, out_b) && equal_layout(a, b) && a.numel() <= INT32_MAX) {
    copy_bits(*this, "copy", {{out_a, a}, {out_b, b}});
  } else {
    DeviceOps::do_copy_pair(out_a, a, out_b, b);
  }
}

void GpuOps::do_repeat_heads(const Tensor& out, const Tensor& x) {
  if (out.numel() == 0) return;
  if (out.numel() > INT32_MAX && out.dim(2) > 1) {
    const int64_t tokens = out.dim(2), half = tokens / 2;
    do_repeat_heads(out.slice(2, 0, half), x.slice(2, 0, half));
    return do_repeat_heads(out.slice(2, half, tokens), x.slice(2, half, tokens));
  }
  with_storage("repeat_heads", out.dtype(), [&](auto) {
    copy_bits(*this, "repeat_heads", {{out, x}}, 1, out.dim(1) / x.dim(1));
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
