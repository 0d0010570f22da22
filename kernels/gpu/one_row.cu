// linear of one row, out [N] = x w^T: the decode shape, bound by reading w.
//
// Four waves share two columns, so that narrow products fill the device, too. Products of the same
// row are one launch. Weights that no op in flight writes are on their way to registers while the
// kernels ahead end: there is always one ahead, and it most often leaves the memory idle.
#include <algorithm>
#include <utility>

#include "kernels/gpu/held_back.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256, kColumns = 2, kSharers = 4;  // of a group: who shares what
constexpr int kBlocks = 4;                                 // that should fit a multiprocessor
constexpr int kInFlight = 3;                               // vectors of a column
constexpr int kMostProducts = 4;

template <class T>
struct Product {
  T* out;
  const T* weight;
  int64_t pitch;  // elements from one column's weights to the next's
  const T* bias;  // null: none
  int columns;
  unsigned end;  // of its blocks
};

template <class T, int Most>
struct Products {
  const T* x;
  int inner;
  Product<T> of[Most];
};

// M vectors of each column's weights, `step` elements apart.
template <class T, int M>
struct Weights {
  static constexpr int N = kVector<T>;
  Vector<T, N> v[M][kColumns];

  __device__ Weights(const T* const (&columns)[kColumns], int first, int step) {
#pragma unroll
    for (int j = 0; j < M; ++j) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) v[j][c] = load_vector<N>(columns[c] + first + j * step);
    }
  }
  // Adds the products with x to the sums of the columns.
  __device__ void multiply(float (&sum)[kColumns], const T* x, int first, int step) const {
    Vector<T, N> factors[M];
#pragma unroll
    for (int j = 0; j < M; ++j) factors[j] = load_vector<N>(x + first + j * step);
#pragma unroll
    for (int j = 0; j < M; ++j) {
      const Floats<T, N> factor(factors[j]);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const Floats<T, N> weight(v[j][c]);
#pragma unroll
        for (int i = 0; i < N; ++i) sum[c] = fused_multiply_add(factor[i], weight[i], sum[c]);
      }
    }
  }
};

// A lane's sums of its columns. The first weights are asked for before the kernels ahead have
// ended, if that is allowed.
template <bool Early, class T>
__device__ inline void add_products(float (&sum)[kColumns], const T* const (&columns)[kColumns],
                                    const T* x, int k, int step, int inner) {
  const auto add = [&]<int M>() {
    Weights<T, M>(columns, k, step).multiply(sum, x, k, step);
    k += M * step;
  };
  const auto add_first = [&]<int M>() {
    const Weights<T, M> weights(columns, k, step);
    wait_for_previous_kernel();
    weights.multiply(sum, x, k, step);
    k += M * step;
  };
  const int left = (inner - k + step - 1) / step;  // vectors
  if (!Early || left <= 0) {
    wait_for_previous_kernel();
  } else if (left >= kInFlight) {
    add_first.template operator()<kInFlight>();
  } else if (left == 2) {
    add_first.template operator()<2>();
  } else {
    add_first.template operator()<1>();
  }
#pragma unroll 1
  while (k + (kInFlight - 1) * step < inner) add.template operator()<kInFlight>();
  if (k + step < inner) {
    add.template operator()<2>();
  } else if (k < inner) {
    add.template operator()<1>();
  }
}

template <class T, int Wave, int Most, bool Early>
__global__ void __launch_bounds__(kThreads, kBlocks) row_products(Products<T, Most> p) {
  constexpr int N = kVector<T>, kGroups = kThreads / Wave / kSharers;
  Product<T> product = p.of[0];
  unsigned block = block_index().x;
#pragma unroll
  for (int i = 1; i < Most; ++i) {
    if (block_index().x >= p.of[i - 1].end) {
      product = p.of[i];
      block = block_index().x - p.of[i - 1].end;
    }
  }
  const int wave = static_cast<int>(thread_index().x) / Wave, group = wave / kSharers;
  const int lane = static_cast<int>(thread_index().x) % Wave;
  const int column0 = (static_cast<int>(block) * kGroups + group) * kColumns;
  const T* columns[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int column = column0 + c < product.columns ? column0 + c : product.columns - 1;
    columns[c] = product.weight + column * product.pitch;
  }
  float sum[kColumns] = {};
  add_products<Early>(sum, columns, p.x, (wave % kSharers * Wave + lane) * N, kSharers * Wave * N,
                      p.inner);
  struct Shared {
    float sum[kGroups][kSharers][kColumns];
  };
  auto& shared = block_shared<Shared>().sum[group];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const float total = warp_sum<Wave>(sum[c]);
    if (lane == c) shared[wave % kSharers][c] = total;
  }
  block_barrier();
  const int column = column0 + lane;
  if (wave % kSharers > 0 || lane >= kColumns || column >= product.columns) return;
  float total = product.bias ? to_float(product.bias[column]) : 0.0f;
#pragma unroll
  for (int s = 0; s < kSharers; ++s) total += shared[s][lane];
  product.out[column] = from_float<T>(total);
}

template <class T, int Most, int Wave>
Products<T, Most> operands(const std::vector<RowProduct>& products) {
  constexpr int kOfBlock = kThreads / Wave / kSharers * kColumns;
  Products<T, Most> p{};
  p.x = products[0].x.data<T>();
  p.inner = static_cast<int>(products[0].x.dim(-1));
  unsigned blocks = 0;
  for (size_t i = 0; i < Most; ++i) {
    if (i < products.size()) {
      const auto& [out, x, weight, bias] = products[i];
      blocks += grid_for(weight.dim(0), kOfBlock);
      p.of[i] = {out.data<T>(),
                 weight.data<T>(),
                 weight.stride(0),
                 bias.defined() ? bias.data<T>() : nullptr,
                 static_cast<int>(weight.dim(0)),
                 0};
    }
    p.of[i].end = blocks;
  }
  return p;
}

// Whether the bytes from a tensor's first to its last meet the other's.
bool meet(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return false;
  const auto end = [](const Tensor& t) {
    int64_t last = 0;
    for (int i = 0; i < t.rank(); ++i) last += (t.dim(i) - 1) * t.stride(i);
    return t.data<char>() + (last + 1) * size_of(t.dtype());
  };
  return a.data<char>() < end(b) && b.data<char>() < end(a);
}

bool writes_what_uses(const RowProduct& writer, const RowProduct& user) {
  return meet(writer.out, user.out) || meet(writer.out, user.x) || meet(writer.out, user.weight) ||
         meet(writer.out, user.bias);
}

}  // namespace

bool HeldBack::joins(const RowProduct& product) const {
  if (products_.empty()) return true;
  const Tensor& x = products_.front().x;
  if (products_.size() == kMostProducts || x.raw() != product.x.raw() ||
      x.dtype() != product.x.dtype() || x.dim(-1) != product.x.dim(-1)) {
    return false;
  }
  return std::none_of(products_.begin(), products_.end(), [&](const RowProduct& held) {
    return writes_what_uses(held, product) || writes_what_uses(product, held);
  });
}

void HeldBack::one_row(RowProduct product, bool settled) {
  if (!joins(product)) release();
  settled_ = settled && (products_.empty() || settled_);
  products_.push_back(std::move(product));
}

void HeldBack::launch_products() {
  const std::vector<RowProduct> products = std::exchange(products_, {});
  with_storage("linear", products[0].x.dtype(), [&]<class T>(T) {
    with_wave(stream_, [&]<int Wave>() {
      const auto go = [&]<auto Kernel, int Most>() {
        const Products<T, Most> p = operands<T, Most, Wave>(products);
        launch_overlapped<Kernel>("linear", {p.of[Most - 1].end}, {kThreads}, 0, stream_, p);
      };
      const auto for_most = [&]<int Most>() {
        if (settled_) go.template operator()<row_products<T, Wave, Most, true>, Most>();
        else go.template operator()<row_products<T, Wave, Most, false>, Most>();
      };
      if (products.size() == 1) for_most.template operator()<1>();
      else for_most.template operator()<kMostProducts>();
    });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
