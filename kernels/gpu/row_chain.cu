// Chains of small ops on few rows: norm, add, norm, as residual connections have them. A block owns
// a row, a thread a vector of it, which stays in registers from the first op to the last. Rounds
// where each op does, and writes what each op writes.
#include <array>

#include "kernels/gpu/held_back.h"
#include "kernels/gpu/norms.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

template <class T>
struct ChainNorm {
  T* out;
  Rows rows;
  const T* weight;
  float eps, weight_offset;
  bool round_before;
};

template <class T>
struct ChainOperands {
  const T* x;
  const T* addend;
  T* sum;
  Rows x_rows, addend_rows, sum_rows;
  ChainNorm<T> first, second;
  int columns;
};

template <class T, int Wave>
__device__ inline Vector<T, kVector<T>> norm_of(const Vector<T, kVector<T>>& v,
                                                const Vector<T, kVector<T>>& weight, int columns,
                                                BlockReduction<Wave>& block,
                                                const ChainNorm<T>& norm) {
  const Floats<T, kVector<T>> element(v);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVector<T>; ++i) {
    squares = fused_multiply_add(element[i], element[i], squares);
  }
  const float mean = block.sum(squares) / static_cast<float>(columns);
  return normalised(v, weight, reciprocal_sqrt(mean + norm.eps), norm.weight_offset,
                    norm.round_before);
}

template <class T, int Wave, bool First, bool Added, bool Second>
__global__ void __launch_bounds__(kMostRowThreads, kNormBlocks) row_chain(ChainOperands<T> p) {
  constexpr int N = kVector<T>;
  BlockReduction<Wave> block;
  const int64_t row = block_index().x;
  const int column = static_cast<int>(thread_index().x) * N;
  const bool inside = column < p.columns;
  // What can be done while the kernels ahead end: places, and weights into a cache, as a whole
  // model was read since they were last used.
  const T* x = p.x + p.x_rows.offset(row) + column;
  const T* other = Added ? p.addend + p.addend_rows.offset(row) + column : nullptr;
  T* first_out = First ? p.first.out + p.first.rows.offset(row) + column : nullptr;
  T* sum = Added ? p.sum + p.sum_rows.offset(row) + column : nullptr;
  T* second_out = Second ? p.second.out + p.second.rows.offset(row) + column : nullptr;
  if (First && inside) prefetch(p.first.weight + column);
  if (Second && inside) prefetch(p.second.weight + column);
  wait_for_previous_kernel();
  Vector<T, N> v{}, addend{}, first_weight{}, second_weight{};
  if (inside) {
    v = load_vector<N>(x);
    if (Added) addend = load_vector<N>(other);
    if (First) first_weight = load_vector<N>(p.first.weight + column);
    if (Second) second_weight = load_vector<N>(p.second.weight + column);
  }
  if constexpr (First) {
    v = norm_of(v, first_weight, p.columns, block, p.first);
    if (inside) store_vector(first_out, v);
  }
  if constexpr (Added) {
    v = rounded_sum(v, addend);
    if (inside) store_vector(sum, v);
  }
  if constexpr (Second) {
    if (!inside) v = {};  // an offset alone would give the first norm's zeros a value
    v = norm_of(v, second_weight, p.columns, block, p.second);
    if (inside) store_vector(second_out, v);
  }
}

template <class T>
ChainNorm<T> norm_operands(const RowChain::Norm& norm) {
  ChainNorm<T> p{};
  if (!norm.out.defined()) return p;
  p.out = norm.out.data<T>();
  p.rows = rows_of("rms_norm", norm.out);
  p.weight = norm.weight.data<T>();
  p.eps = static_cast<float>(norm.params.eps);
  p.weight_offset = static_cast<float>(norm.params.weight_offset);
  p.round_before = norm.params.rounding == WeightRounding::before;
  return p;
}

template <class T>
ChainOperands<T> operands(const RowChain& chain) {
  ChainOperands<T> p{};
  set_rows("rms_norm", chain.x, p.x, p.x_rows);
  p.columns = static_cast<int>(chain.x.dim(-1));
  p.first = norm_operands<T>(chain.first);
  p.second = norm_operands<T>(chain.second);
  if (chain.sum.defined()) {
    set_rows("add", chain.addend, p.addend, p.addend_rows);
    set_rows("add", chain.sum, p.sum, p.sum_rows);
  }
  return p;
}

bool same(const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() && a.raw() == b.raw() && equal_layout(a, b);
}

// Whether a thread may read all of its elements first: what is written is read by none but the
// thread that writes it.
bool keeps_order(const RowChain& chain) {
  const std::array rows{chain.x, chain.addend, chain.first.out, chain.sum, chain.second.out};
  for (const Tensor& written : {chain.first.out, chain.sum, chain.second.out}) {
    for (const Tensor& row : rows) {
      if (meet(written, row) && !same(written, row)) return false;
    }
    if (meet(written, chain.first.weight) || meet(written, chain.second.weight)) return false;
  }
  return !meet(chain.first.out, chain.addend);
}

}  // namespace

bool HeldBack::takes_rows(std::initializer_list<const Tensor*> tensors) {
  const Tensor& t = **tensors.begin();
  const int64_t columns = t.dim(-1), most = int64_t{kMostRowThreads} * 16 / size_of(t.dtype());
  if (t.numel() == 0 || columns > most || t.numel() > kGemvRows * columns) return false;
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const Tensor* one) { return rows_are_vectors(*one); });
}

// Whether the chain that is held may become this one.
bool HeldBack::grow(const RowChain& grown) {
  if (!keeps_order(grown)) return false;
  chain_ = grown;
  return true;
}

void HeldBack::norm(const Tensor& out, const Tensor& x, const Tensor& weight,
                    const RmsNormParams& params) {
  if (chain_ && chain_->sum.defined() && same(x, chain_->sum)) {
    RowChain grown = *chain_;
    grown.second = {out, weight, params};
    if (grow(grown)) return launch_chain();
  }
  release();
  chain_ = {x, {out, weight, params}, {}, {}, {}};
}

void HeldBack::add(const Tensor& sum, const Tensor& a, const Tensor& b) {
  if (chain_ && !chain_->sum.defined() &&
      (same(a, chain_->first.out) || same(b, chain_->first.out))) {
    RowChain grown = *chain_;
    grown.sum = sum;
    grown.addend = same(a, chain_->first.out) ? b : a;
    if (grow(grown)) return;
  }
  release();
  chain_ = {a, {}, b, sum, {}};
}

bool HeldBack::add_norm(const Tensor& sum, const Tensor& x, const Tensor& residual,
                        const RowChain::Norm& norm) {
  if (!chain_ || chain_->sum.defined() || !same(x, chain_->first.out)) return false;
  if (!grow({chain_->x, chain_->first, residual, sum, norm})) return false;
  launch_chain();
  return true;
}

void HeldBack::launch_chain() {
  const RowChain chain = *std::exchange(chain_, std::nullopt);
  const int64_t columns = chain.x.dim(-1), rows = chain.x.numel() / columns;
  with_storage("rms_norm", chain.x.dtype(), [&]<class T>(T) {
    with_wave(stream_, [&]<int Wave>() {
      const int64_t pieces = columns / kVector<T>;
      const auto threads = static_cast<unsigned>((pieces + Wave - 1) / Wave * Wave);
      const auto go = [&]<bool First, bool Added, bool Second>() {
        launch_overlapped<row_chain<T, Wave, First, Added, Second>>(
            "rms_norm", {static_cast<unsigned>(rows)}, {threads}, 0, stream_, operands<T>(chain));
      };
      const bool first = chain.first.out.defined(), second = chain.second.out.defined();
      if (!chain.sum.defined()) return go.template operator()<true, false, false>();
      if (first && second) return go.template operator()<true, true, true>();
      if (first) return go.template operator()<true, true, false>();
      if (second) return go.template operator()<false, true, true>();
      go.template operator()<false, true, false>();
    });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
