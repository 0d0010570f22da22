// What float64 is too narrow for: whole numbers, in 64 bits, and float64 storage where its own
// errors are judged, in long double, rounded once (Arithmetic::extended). Formulas, reductions and
// sums as ops.h has them, element by element in row-major order.
#include "kernels/oracle/wider.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/ops/casts.h"
#include "kernels/ops/ids.h"
#include "kernels/ops/reals.h"
#include "kernels/ops/wholes.h"

namespace plumb::wider {
namespace {

using Long = long double;

template <class V>
struct ElementsOf;
template <>
struct ElementsOf<Long> {
  using Arithmetic = Reals<Long>;
  static Long load(DType dtype, const void* from) { return plumb::load(dtype, from); }
  static void store(DType dtype, void* to, Long x) {
    plumb::store(dtype, to, static_cast<double>(x));
  }
};
template <>
struct ElementsOf<Whole> {
  using Arithmetic = Wholes;
  static Whole load(DType dtype, const void* from) { return {load_number(dtype, from).i}; }
  static void store(DType dtype, void* to, Whole x) { store_number(dtype, to, {true, x.i, 0}); }
};

template <class V>
std::vector<V> elements_of(const Tensor& t) {
  std::vector<V> out;
  const int64_t size = size_of(t.dtype()), width = t.dim(-1);
  const int64_t step = width > 1 ? t.stride(-1) : 1;  // 0 of a broadcast
  for_each_row(t, [&](int64_t offset) {
    for (int64_t i = 0; i < width; ++i) {
      out.push_back(ElementsOf<V>::load(t.dtype(), t.data<char>() + (offset + i * step) * size));
    }
  });
  return out;
}

template <class V>
void put(const Tensor& t, const std::vector<V>& values) {
  const int64_t size = size_of(t.dtype());
  size_t next = 0;
  for_each_row(t, [&](int64_t offset) {
    for (int64_t i = 0; i < t.dim(-1); ++i) {
      ElementsOf<V>::store(t.dtype(), t.data<char>() + (offset + i) * size, values[next++]);
    }
  });
}

template <class V>
void map_as(const MapCall& call, const typename ElementsOf<V>::Arithmetic& m) {
  std::vector<V> a = elements_of<V>(call.a), b, c;
  if (call.b) b = elements_of<V>(*call.b);
  if (call.c) c = elements_of<V>(*call.c);
  const auto each = [&]<class F>() {
    for (size_t i = 0; i < a.size(); ++i) {
      if constexpr (F::kInputs == 1) a[i] = F::of(m, a[i]);
      else if constexpr (F::kInputs == 2) a[i] = F::of(m, a[i], b[i]);
      else a[i] = F::of(m, a[i], b[i], c[i]);
    }
  };
  if constexpr (std::is_same_v<V, Whole>) with_whole_formula(call.formula, each);
  else with_formula(call.formula, each);
  put(call.out, a);
}

// The place among results of each element of x, both in row-major order.
std::vector<size_t> results_of(const ReduceCall& call) {
  std::vector<size_t> out;
  std::array<int64_t, kMaxRank> at{};
  for (int64_t i = 0; i < call.x.numel(); ++i) {
    int64_t result = 0;
    for (int axis = 0; axis < call.x.rank(); ++axis) {
      if (!call.axes.has(axis)) result = result * call.x.dim(axis) + at[static_cast<size_t>(axis)];
    }
    out.push_back(static_cast<size_t>(result));
    for (int axis = call.x.rank() - 1; axis >= 0; --axis) {
      if (++at[static_cast<size_t>(axis)] < call.x.dim(axis)) break;
      at[static_cast<size_t>(axis)] = 0;
    }
  }
  return out;
}

template <class V>
void reduce_as(const ReduceCall& call) {
  const typename ElementsOf<V>::Arithmetic m{};
  const std::vector<V> x = elements_of<V>(call.x);
  const std::vector<size_t> results = results_of(call);
  const auto reduce = [&]<class F>() {
    using Beside = std::conditional_t<F::kBeside == reductions::Beside::value, V, int64_t>;
    using State = reductions::State<V, Beside>;
    const auto count = static_cast<size_t>(call.out.numel());
    std::vector<State> states(count, State{F::template start<V>(m), Beside{}});
    std::vector<int64_t> seen(count);
    for (size_t i = 0; i < x.size(); ++i) {
      State& s = states[results[i]];
      if constexpr (F::kBeside == reductions::Beside::value) s = F::step(m, s, x[i], V{});
      else s = F::step(m, s, x[i], seen[results[i]]++);
    }
    if constexpr (F::kBeside == reductions::Beside::index) {
      std::vector<Whole> places;
      for (const State& s : states) places.push_back({F::finish(m, s, V{})});
      put(call.out, places);
    } else {
      std::vector<V> values;
      for (const State& s : states) values.push_back(F::finish(m, s, V(call.count)));
      put(call.out, values);
    }
  };
  if constexpr (std::is_same_v<V, Whole>) with_whole_reduction(call.reduction(), reduce);
  else with_reduction(call.reduction(), reduce);
}

template <class V>
void cumsum_as(const Tensor& out, const Tensor& x, int axis) {
  std::vector<V> values = elements_of<V>(x);
  const auto length = static_cast<size_t>(x.dim(axis));
  size_t inner = 1;
  for (int i = axis + 1; i < x.rank(); ++i) inner *= static_cast<size_t>(x.dim(i));
  for (size_t i = inner; i < values.size(); ++i) {
    if (i / inner % length != 0) values[i] = values[i - inner] + values[i];
  }
  put(out, values);
}

template <class V>
void index_add_as(const IndexAddCall& call) {
  std::vector<V> values = elements_of<V>(call.x);
  const std::vector<V> source = elements_of<V>(call.source);
  const std::vector<Whole> ids = elements_of<Whole>(call.ids);
  for (size_t i = 0; i < source.size(); ++i) {
    auto rest = static_cast<int64_t>(i), to = int64_t{0}, stride = int64_t{1};
    for (int axis = call.source.rank() - 1; axis >= 0; --axis) {
      const int64_t c = rest % call.source.dim(axis);
      rest /= call.source.dim(axis);
      to += (axis == call.axis ? ids[i].i : c) * stride;
      stride *= call.x.dim(axis);
    }
    V& sum = values[static_cast<size_t>(to)];
    sum = sum + source[i];
  }
  put(call.out, values);
}

void top_k_of(const Tensor& values, const Tensor& ids, const Tensor& x, bool largest) {
  const std::vector<Whole> from = elements_of<Whole>(x);
  const auto width = static_cast<size_t>(x.dim(-1)), k = static_cast<size_t>(values.dim(-1));
  std::vector<Whole> chosen, places;
  std::vector<size_t> order(width);
  for (size_t row = 0; k > 0 && row < from.size(); row += width) {
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](size_t a, size_t b) {
      return largest ? from[row + b] < from[row + a] : from[row + a] < from[row + b];
    });
    for (size_t i = 0; i < k; ++i) {
      chosen.push_back(from[row + order[i]]);
      places.push_back({static_cast<int64_t>(order[i])});
    }
  }
  put(values, chosen);
  put(ids, places);
}

Long finished(const GemmParams& p, Long sum, Long other, Long bias) {
  const Long y = p.alpha * sum + p.beta * other + bias;
  if (!p.function) return y;
  Long out = y;
  const Reals<Long> m;
  with_formula(formula_of(*p.function), [&]<class F>() {
    if constexpr (F::kInputs == 1) out = F::of(m, y);
  });
  return out;
}
Whole finished(const GemmParams&, Whole sum, Whole other, Whole bias) { return sum + other + bias; }

template <class V>
void gemm_as(const GemmCall& call) {
  const int64_t rows = call.rows(), columns = call.columns(), inner = call.inner();
  const std::vector<V> bias = call.bias.defined()
                                  ? elements_of<V>(call.bias)
                                  : std::vector<V>(static_cast<size_t>(columns), V{});
  for (int64_t n = 0; n < call.a.dim(0); ++n) {
    for (int64_t h = 0; h < call.a.dim(1); ++h) {
      const auto at = [&](const Tensor& t, int64_t head) {
        return t.slice(0, n, n + 1).slice(1, head, head + 1);
      };
      const std::vector<V> a = elements_of<V>(at(call.a, h)),
                           b = elements_of<V>(at(call.b, h / call.group()));
      const std::vector<V> c = call.c.defined() ? elements_of<V>(at(call.c, h)) : std::vector<V>();
      std::vector<V> out;
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          V sum{};
          for (int64_t k = 0; k < inner; ++k) {
            const int64_t left = call.params.transpose_a ? k * rows + i : i * inner + k;
            const int64_t right = call.params.transpose_b ? j * inner + k : k * columns + j;
            sum = sum + a[static_cast<size_t>(left)] * b[static_cast<size_t>(right)];
          }
          const auto place = static_cast<size_t>(i * columns + j);
          out.push_back(
              finished(call.params, sum, c.empty() ? V{} : c[place], bias[static_cast<size_t>(j)]));
        }
      }
      put(at(call.out, h), out);
    }
  }
}

}  // namespace

bool has(DType storage) {
  if (is_whole(storage)) return true;
  const ArithmeticScope* scope = ArithmeticScope::current();
  return storage == DType::f64 && scope && scope->arithmetic().extended;
}

void map(const MapCall& call) {
  if (is_whole(call.storage())) map_as<Whole>(call, {});
  else map_as<Long>(call, {static_cast<Long>(call.number), static_cast<Long>(call.shift)});
}
void reduce(const ReduceCall& call) {
  is_whole(call.x.dtype()) ? reduce_as<Whole>(call) : reduce_as<Long>(call);
}
void cumsum(const Tensor& out, const Tensor& x, int axis) {
  is_whole(x.dtype()) ? cumsum_as<Whole>(out, x, axis) : cumsum_as<Long>(out, x, axis);
}
void index_add(const IndexAddCall& call) {
  is_whole(call.x.dtype()) ? index_add_as<Whole>(call) : index_add_as<Long>(call);
}
void top_k(const Tensor& values, const Tensor& ids, const Tensor& x, bool largest) {
  top_k_of(values, ids, x, largest);
}
void move(const Tensor& out, const std::vector<int64_t>& from, const Tensor& x, double outside) {
  const std::vector<Whole> values = elements_of<Whole>(x);
  std::vector<Whole> moved;
  for (const int64_t i : from) {
    moved.push_back(i < 0 ? Whole{static_cast<int64_t>(outside)} : values[static_cast<size_t>(i)]);
  }
  put(out, moved);
}
void copy(const Tensor& out, const Tensor& x) { put(out, elements_of<Whole>(x)); }
void gemm(const GemmCall& call) {
  is_whole(call.a.dtype()) ? gemm_as<Whole>(call) : gemm_as<Long>(call);
}

}  // namespace plumb::wider
