// f64 in doubles and whole numbers in 64 bits, of which narrower ones keep the lowest. A unit of
// work is a row, or a result, whose elements are taken in ascending order.
#include "kernels/cpu/plain_loops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/core/error.h"
#include "kernels/cpu/rows.h"
#include "kernels/ops/casts.h"
#include "kernels/ops/reals.h"
#include "kernels/ops/wholes.h"

namespace plumb::cpu::plain {
namespace {

template <class V>
struct Kind;
template <>
struct Kind<double> {
  using Arithmetic = Reals<double>;
};
template <>
struct Kind<Whole> {
  using Arithmetic = Wholes;
};

// Calls f with a number of the dtype: a double, or a whole number of some width.
template <class V, class F>
void with_element(DType dtype, F f) {
  if constexpr (std::is_same_v<V, double>) {
    f(double{});
  } else {
    switch (dtype) {
      case DType::i64: return f(int64_t{});
      case DType::i32: return f(int32_t{});
      case DType::u32: return f(uint32_t{});
      case DType::i8: return f(int8_t{});
      case DType::u8: return f(uint8_t{});
      default: return f(bool{});
    }
  }
}

template <class V, class T>
V value_of(T x) {
  if constexpr (std::is_same_v<V, Whole>) return {static_cast<int64_t>(x)};
  else return static_cast<V>(x);
}
template <class T>
T stored(Whole x) {
  if constexpr (std::is_same_v<T, bool>) return x.i != 0;
  else return static_cast<T>(bits_of(x));
}
template <class T>
T stored(double x) {
  return static_cast<T>(x);
}

// n elements from `offset` on, in steps of 0 or 1.
template <class V>
void read(V* to, const Tensor& t, int64_t offset, int64_t n, int64_t step = 1) {
  with_element<V>(t.dtype(), [&]<class T>(T) {
    const T* from = t.data<T>() + offset;
    for (int64_t i = 0; i < n; ++i) to[i] = value_of<V>(from[i * step]);
  });
}
template <class V>
void write(const Tensor& t, int64_t offset, const V* from, int64_t n) {
  with_element<V>(t.dtype(), [&]<class T>(T) {
    T* to = t.data<T>() + offset;
    for (int64_t i = 0; i < n; ++i) to[i] = stored<T>(from[i]);
  });
}
// A comparison's result, or a condition.
template <class V>
void write_flags(const Tensor& t, int64_t offset, const V* from, int64_t n) {
  for (int64_t i = 0; i < n; ++i) t.data<bool>()[offset + i] = !(from[i] == value_of<V>(0));
}
template <class V>
void read_flags(V* to, const Tensor& t, int64_t offset, int64_t n, int64_t step) {
  for (int64_t i = 0; i < n; ++i) to[i] = value_of<V>(t.data<bool>()[offset + i * step]);
}

template <class V>
void map_as(ThreadPool& pool, const MapCall& call, const typename Kind<V>::Arithmetic& m) {
  const Tensor* const inputs[] = {&call.a, call.b ? call.b : &call.a, call.c ? call.c : &call.a};
  const RowOffsets to(call.out),
      from[] = {RowOffsets(*inputs[0]), RowOffsets(*inputs[1]), RowOffsets(*inputs[2])};
  const int64_t width = call.out.dim(-1), pieces = (width + kPiece - 1) / kPiece;
  const bool of_flags = has_condition(call.row.id), to_flags = gives_bool(call.row.id);
  const auto each = [&]<class F>() {
    pool.for_each(to.count() * pieces, 4 * static_cast<double>(std::min(width, kPiece)),
                  [&](int64_t unit, int) {
                    const int64_t row = unit / pieces, begin = unit % pieces * kPiece;
                    const int64_t n = std::min(kPiece, width - begin);
                    V x[3][kPiece];
                    for (size_t i = 0; i < F::kInputs; ++i) {
                      const Tensor& t = *inputs[i];
                      const int64_t step = width > 1 ? t.stride(-1) : 1,
                                    offset = from[i][row] + begin * step;
                      if (i == 0 && of_flags) read_flags(x[i], t, offset, n, step);
                      else read(x[i], t, offset, n, step);
                    }
                    for (int64_t i = 0; i < n; ++i) {
                      if constexpr (F::kInputs == 1) x[0][i] = F::of(m, x[0][i]);
                      else if constexpr (F::kInputs == 2) x[0][i] = F::of(m, x[0][i], x[1][i]);
                      else x[0][i] = F::of(m, x[0][i], x[1][i], x[2][i]);
                    }
                    if (to_flags) write_flags(call.out, to[row] + begin, x[0], n);
                    else write(call.out, to[row] + begin, x[0], n);
                  });
  };
  if constexpr (std::is_same_v<V, Whole>) with_whole_formula(call.formula, each);
  else with_formula(call.formula, each);
}

template <class V>
void reduce_as(ThreadPool& pool, const ReduceCall& call) {
  const typename Kind<V>::Arithmetic m{};
  const Tensor kept = call.kept(), reduced = call.reduced();
  const RowOffsets from(kept), to(call.out), elements(reduced);
  const int64_t width = call.out.dim(-1), length = call.count > 0 ? reduced.dim(-1) : 0;
  const auto each = [&]<class F>() {
    using Beside = std::conditional_t<F::kBeside == reductions::Beside::value, V, int64_t>;
    pool.for_each(
        from.count() * width, 4 * static_cast<double>(call.count), [&](int64_t result, int) {
          const int64_t row = result / width, column = result % width;
          reductions::State<V, Beside> state{F::template start<V>(m), Beside{}};
          int64_t seen = 0;
          for (int64_t i = 0; seen < call.count; ++i) {
            for (int64_t begin = 0; begin < length; begin += kPiece) {
              V x[kPiece];
              const int64_t n = std::min(kPiece, length - begin);
              read(x, call.x, from[row] + column + elements[i] + begin, n);
              for (int64_t j = 0; j < n; ++j, ++seen) {
                if constexpr (F::kBeside == reductions::Beside::value)
                  state = F::step(m, state, x[j], V{});
                else state = F::step(m, state, x[j], seen);
              }
            }
          }
          if constexpr (F::kBeside == reductions::Beside::index) {
            call.out.template data<int64_t>()[to[row] + column] = F::finish(m, state, V{});
          } else {
            const V value = F::finish(m, state, value_of<V>(call.count));
            if (F::kTakesBools) write_flags(call.out, to[row] + column, &value, 1);
            else write(call.out, to[row] + column, &value, 1);
          }
        });
  };
  if constexpr (std::is_same_v<V, Whole>) with_whole_reduction(call.reduction(), each);
  else with_reduction(call.reduction(), each);
}

template <class V>
void cumsum_as(ThreadPool& pool, const Tensor& out, const Tensor& x, int axis) {
  const Tensor first = x.slice(axis, 0, 1), out_first = out.slice(axis, 0, 1);
  const RowOffsets from(first), to(out_first);
  const int64_t width = first.dim(-1), length = x.dim(axis);
  pool.for_each(from.count() * width, 4 * static_cast<double>(length), [&](int64_t line, int) {
    const int64_t row = line / width, column = line % width;
    V sum = value_of<V>(0);
    for (int64_t i = 0; i < length; ++i) {
      V value;
      read(&value, x, from[row] + column + i * x.stride(axis), 1);
      sum = sum + value;
      write(out, to[row] + column + i * out.stride(axis), &sum, 1);
    }
  });
}

// Terms in ascending order of their place along the axis.
template <class V>
void index_add_as(const IndexAddCall& call) {
  const bool along_rows = call.axis == call.x.rank() - 1;
  Tensor to = call.out;  // where rows of the source go, were all ids 0
  for (int i = 0; i + 1 < to.rank(); ++i) {
    to = to.slice(i, 0, i == call.axis ? 1 : call.source.dim(i));
  }
  const RowOffsets targets(to);
  const int64_t steps = along_rows ? 1 : call.source.dim(call.axis), n = call.source.dim(-1);
  for (int64_t i = 0; i < steps; ++i) {
    const auto at = [&](const Tensor& t) { return along_rows ? t : t.slice(call.axis, i, i + 1); };
    const Tensor source = at(call.source), ids = at(call.ids);
    const RowOffsets from(source), id_rows(ids);
    const int64_t id_step = n > 1 ? ids.stride(-1) : 1;
    for (int64_t row = 0; row < from.count(); ++row) {
      for (int64_t c = 0; c < n; ++c) {
        const int64_t id = id_at(ids, id_rows[row] + c * id_step);
        const int64_t place =
            targets[row] + (along_rows ? id : c + id * call.out.stride(call.axis));
        V sum, term;
        read(&sum, call.out, place, 1);
        read(&term, source, from[row] + c, 1);
        sum = sum + term;
        write(call.out, place, &sum, 1);
      }
    }
  }
}

template <class V>
void top_k_as(ThreadPool& pool, const Tensor& values, const Tensor& ids, const Tensor& x,
              bool largest) {
  const RowOffsets from(x), to(values), places(ids);
  const int64_t width = x.dim(-1), k = values.dim(-1);
  if (values.numel() == 0) return;
  // NaN is above all.
  const auto less = [](V a, V b) { return a < b || (!(b == b) && a == a); };
  pool.for_each(from.count(), 20 * static_cast<double>(width), [&](int64_t row, int) {
    std::vector<V> line(static_cast<size_t>(width));
    read(line.data(), x, from[row], width);
    std::vector<size_t> order(line.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](size_t a, size_t b) {
      const V &of_a = line[a], &of_b = line[b];
      if (less(of_a, of_b) || less(of_b, of_a))
        return largest ? less(of_b, of_a) : less(of_a, of_b);
      return a < b;
    });
    for (int64_t i = 0; i < k; ++i) {
      const size_t place = order[static_cast<size_t>(i)];
      ids.data<int64_t>()[places[row] + i] = static_cast<int64_t>(place);
      write(values, to[row] + i, &line[place], 1);
    }
  });
}

double finished(const GemmParams& p, double sum, double other, double bias) {
  const double y = p.alpha * sum + p.beta * other + bias;
  if (!p.function) return y;
  double out = y;
  with_formula(formula_of(*p.function), [&]<class F>() {
    if constexpr (F::kInputs == 1) out = F::of(Reals<double>{}, y);
  });
  return out;
}
// Of whole numbers, which wrap around.
uint32_t finished(const GemmParams&, uint32_t sum, uint32_t other, uint32_t bias) {
  return sum + other + bias;
}

// V: of sums; Out: how they are stored. A product's right operand is widened once, [K, N].
template <class V, class Out>
void gemm_as(ThreadPool& pool, const GemmCall& call) {
  const int64_t rows = call.rows(), columns = call.columns(), inner = call.inner();
  const auto value = [&](const Tensor& t, int64_t at) {
    if constexpr (std::is_same_v<V, uint32_t>) {
      return static_cast<uint32_t>(
          bits_of({load_number(t.dtype(), t.data<char>() + at * size_of(t.dtype())).i}));
    } else {
      return t.data<V>()[at];
    }
  };
  const auto cost = [](int64_t elements) { return static_cast<double>(elements); };
  std::vector<V> right(static_cast<size_t>(inner * columns));
  for (int64_t product = 0; product < call.a.dim(0) * call.a.dim(1); ++product) {
    const int64_t n = product / call.a.dim(1), h = product % call.a.dim(1);
    const auto element = [n](const Tensor& t, int64_t head, int64_t i, int64_t j) {
      return n * t.stride(0) + head * t.stride(1) + i * t.stride(2) + j;
    };
    pool.for_each(inner, cost(columns), [&](int64_t k, int) {
      const bool turned = call.params.transpose_b;
      for (int64_t j = 0; j < columns; ++j) {
        const int64_t at = element(call.b, h / call.group(), turned ? j : k, turned ? k : j);
        right[static_cast<size_t>(k * columns + j)] = value(call.b, at);
      }
    });
    pool.for_each(rows, cost(columns * inner), [&](int64_t i, int) {
      std::vector<V> sums(static_cast<size_t>(columns), V{});
      for (int64_t k = 0; k < inner; ++k) {
        const bool turned = call.params.transpose_a;
        const V left = value(call.a, element(call.a, h, turned ? k : i, turned ? i : k));
        const V* const factors = right.data() + k * columns;
        V* const to = sums.data();
        for (int64_t j = 0; j < columns; ++j) to[j] += left * factors[j];
      }
      for (int64_t j = 0; j < columns; ++j) {
        const V other = call.c.defined() ? value(call.c, element(call.c, h, i, j)) : V{};
        const V bias = call.bias.defined() ? value(call.bias, j) : V{};
        call.out.template data<Out>()[element(call.out, h, i, j)] =
            static_cast<Out>(finished(call.params, sums[static_cast<size_t>(j)], other, bias));
      }
    });
  }
}

}  // namespace

void map(ThreadPool& pool, const MapCall& call) {
  if (call.out.numel() == 0) return;
  if (call.storage() == DType::f64) return map_as<double>(pool, call, {call.number, call.shift});
  map_as<Whole>(pool, call, {});
}
void reduce(ThreadPool& pool, const ReduceCall& call) {
  if (call.out.numel() == 0) return;
  call.x.dtype() == DType::f64 ? reduce_as<double>(pool, call) : reduce_as<Whole>(pool, call);
}
void cumsum(ThreadPool& pool, const Tensor& out, const Tensor& x, int axis) {
  if (x.numel() == 0) return;
  x.dtype() == DType::f64 ? cumsum_as<double>(pool, out, x, axis)
                          : cumsum_as<Whole>(pool, out, x, axis);
}
void index_add(const IndexAddCall& call) {
  if (call.out.numel() == 0) return;
  if (call.out.raw() != call.x.raw()) {
    const RowOffsets to(call.out), from(call.x);
    const int64_t size = size_of(call.x.dtype());
    for (int64_t row = 0; row < from.count(); ++row) {
      std::copy_n(call.x.data<char>() + from[row] * size, call.x.dim(-1) * size,
                  call.out.data<char>() + to[row] * size);
    }
  }
  if (call.source.numel() == 0) return;
  call.x.dtype() == DType::f64 ? index_add_as<double>(call) : index_add_as<Whole>(call);
}
void top_k(ThreadPool& pool, const Tensor& values, const Tensor& ids, const Tensor& x,
           bool largest) {
  x.dtype() == DType::f64 ? top_k_as<double>(pool, values, ids, x, largest)
                          : top_k_as<Whole>(pool, values, ids, x, largest);
}
void gemm(ThreadPool& pool, const GemmCall& call) {
  if (call.out.numel() == 0) return;
  if (call.a.dtype() == DType::f64) gemm_as<double, double>(pool, call);
  else gemm_as<uint32_t, int32_t>(pool, call);
}

}  // namespace plumb::cpu::plain
