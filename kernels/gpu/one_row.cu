// linear of one row, out [N] = x w^T: the decode shape, bound by reading w.
//
// Four waves share two columns, so that narrow products fill the device, too; where rows are so
// short that most of their lanes had nothing to do, as adapters' are, a few lanes do. Products that
// need nothing of each other are one launch. Weights that no op in flight writes are on their way
// to registers while the kernels ahead end: there is always one ahead, and it most often leaves the
// memory idle. What follows one token's row element by element is done by the threads that have its
// sums (row_tail.h).
#include <algorithm>
#include <utility>

#include "kernels/gpu/held_back.h"
#include "kernels/gpu/row_tail.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256, kColumns = 2;  // of a group of lanes that share them
template <int Wave>
constexpr int kLanes = 4 * Wave;
constexpr int kLanesOfShort = 16, kVectorsOfShort = 2;  // of a lane
// Vectors of a column that are on their way, and blocks for whose registers a multiprocessor has
// room then.
constexpr int kMostInFlight = 3;
constexpr int kWholeColumn = 4;  // exactly so many, with no loop around them
template <int InFlight>
constexpr int kBlocksOf = InFlight >= kMostInFlight ? 4 : 5;

template <class T>
struct Product {
  const T* x;
  int inner;
  T* out;
  const T* weight;
  int64_t pitch;  // elements from one column's weights to the next's
  const T* bias;  // null: none
  int columns;
  unsigned end;  // of its blocks
};

// Of which the columns are paired: column `first` with first + apart, of which the second may be
// another product's.
template <class T>
struct TailedProduct {
  const T* x;
  int inner;
  T* out[2];
  const T* weight[2];
  const T* bias[2];
  int64_t pitch;
  Divisor apart;
  int columns;  // of both
  unsigned end;
  TailOperands<T> tail;
};

template <class T, int Most, bool Tailed>
struct Products {
  std::conditional_t<Tailed, TailedProduct<T>, Product<T>> of[Most];
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
template <bool Early, int InFlight, class T>
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
  if constexpr (InFlight == kWholeColumn) return add_first.template operator()<InFlight>();
  const int left = (inner - k + step - 1) / step;  // vectors
  if (!Early || left <= 0) {
    wait_for_previous_kernel();
  } else if (left >= InFlight) {
    add_first.template operator()<InFlight>();
  } else if (InFlight > 2 && left == 2) {
    add_first.template operator()<2>();
  } else {
    add_first.template operator()<1>();
  }
#pragma unroll 1
  while (k + (InFlight - 1) * step < inner) add.template operator()<InFlight>();
  if (InFlight > 2 && k + step < inner) {
    add.template operator()<2>();
  } else if (k < inner) {
    add.template operator()<1>();
  }
}

// What each wave of a group of Lanes found.
template <int Wave, int Lanes>
struct GroupSums {
  static constexpr int kWaves = Lanes / Wave;
  float of[kThreads / Lanes][kWaves][kColumns];
};

// The group's sum of column c, for the lanes of its first wave: bias and what each wave found, in
// order.
template <int Wave, int Lanes, class T>
__device__ inline float sum_of_group(const float (&sum)[kColumns], const T* bias, int c) {
  const int thread = static_cast<int>(thread_index().x);
  float total = bias ? to_float(*bias) : 0.0f;
  if constexpr (Lanes < Wave) {
    float of_columns[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      of_columns[i] = sum[i];
#pragma unroll
      for (int offset = Lanes / 2; offset > 0; offset >>= 1) {
        of_columns[i] += shuffle_xor<Wave>(of_columns[i], offset);
      }
    }
    return total + (c == 0 ? of_columns[0] : of_columns[1]);
  } else {
    using Sums = GroupSums<Wave, Lanes>;
    auto& shared = block_shared<Sums>().of[thread / Lanes];
    const int wave = thread % Lanes / Wave, lane = thread % Wave;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const float of_wave = warp_sum<Wave>(sum[i]);
      if (lane == i) shared[wave][i] = of_wave;
    }
    block_barrier();
#pragma unroll
    for (int w = 0; w < Sums::kWaves; ++w) total += shared[w][c];
    return total;
  }
}

template <class T, int Wave, int Lanes, int Most, bool Early, int InFlight>
__global__ void __launch_bounds__(kThreads, kBlocksOf<InFlight>)
    row_products(Products<T, Most, false> p) {
  constexpr int N = kVector<T>, kGroups = kThreads / Lanes;
  Product<T> product = p.of[0];
  unsigned block = block_index().x;
#pragma unroll
  for (int i = 1; i < Most; ++i) {
    if (block_index().x >= p.of[i - 1].end) {
      product = p.of[i];
      block = block_index().x - p.of[i - 1].end;
    }
  }
  const int thread = static_cast<int>(thread_index().x);
  const int group = thread / Lanes, lane = thread % Lanes;
  const int column0 = (static_cast<int>(block) * kGroups + group) * kColumns;
  const T* columns[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int column = column0 + c < product.columns ? column0 + c : product.columns - 1;
    columns[c] = product.weight + column * product.pitch;
  }
  float sum[kColumns] = {};
  add_products<Early, InFlight>(sum, columns, product.x, lane * N, Lanes * N, product.inner);
  const int c = lane % kColumns, column = column0 + c;
  const bool counts = lane < kColumns && column < product.columns;
  const T* bias = counts && product.bias ? product.bias + column : nullptr;
  const float total = sum_of_group<Wave, Lanes>(sum, bias, c);
  if (counts) product.out[column] = from_float<T>(total);
}

// The same with tails.
template <class T, int Wave, int Lanes, int Most, bool Early, int InFlight>
__global__ void __launch_bounds__(kThreads, kBlocksOf<InFlight>)
    tailed_products(Products<T, Most, true> p) {
  constexpr int N = kVector<T>, kGroups = kThreads / Lanes;
  int which = 0;
  unsigned begin = 0;
#pragma unroll
  for (int i = 1; i < Most; ++i) {
    if (block_index().x >= p.of[i - 1].end) {
      which = i;
      begin = p.of[i - 1].end;
    }
  }
  const TailedProduct<T>& product = p.of[which];
  const int thread = static_cast<int>(thread_index().x);
  const int group = thread / Lanes, lane = thread % Lanes;
  const int pair = static_cast<int>(block_index().x - begin) * kGroups + group;
  const int apart = static_cast<int>(product.apart.value()), columns = product.columns;
  const int first = pair + static_cast<int>(divide(pair, product.apart).quotient) * apart;
  const bool active = first < columns, both = first + apart < columns;
  const int64_t row = (active ? first : 0) * product.pitch;
  const T* of_columns[kColumns] = {product.weight[0] + row, product.weight[both ? 1 : 0] + row};
  if (lane < kColumns && active) prefetch_tail(product.tail, first + lane * apart);
  float sum[kColumns] = {};
  add_products<Early, InFlight>(sum, of_columns, product.x, lane * N, Lanes * N, product.inner);
  const int c = lane % kColumns;
  const bool counts = lane < kColumns && active && (c == 0 || both);
  const T* bias = counts && product.bias[c] ? product.bias[c] + first : nullptr;
  T own = from_float<T>(sum_of_group<Wave, Lanes>(sum, bias, c));
  if (lane >= Wave) return;
  const int column = first + c * apart;
  T* out = product.out[0];
  if (product.tail.sum) {  // the row's two columns are of one product
    if (counts) own = with_addend(product.tail, out, column, own);
    out = product.tail.sum;
  }
  const T other = from_float<T>(shuffle_xor<Wave>(to_float(own), 1));
  if (!counts) return;
  if (product.tail.kind == RowTail::Kind::gate) {
    finish(product.tail, product.tail.sum ? out + c * apart : product.out[c], first, c == 1, own,
           other);
  } else {
    finish(product.tail, out, column, c == 1, own, other);
  }
}

template <class T>
void set_product(Product<T>& p, const RowProduct& product) {
  p.x = product.x.data<T>();
  p.inner = static_cast<int>(product.x.dim(-1));
  p.out = product.out.data<T>();
  p.weight = product.weight.data<T>();
  p.pitch = product.weight.stride(0);
  p.bias = product.bias.defined() ? product.bias.data<T>() : nullptr;
  p.columns = static_cast<int>(product.weight.dim(0));
}

template <class T>
void set_product(TailedProduct<T>& p, const RowProduct& product) {
  p.x = product.x.data<T>();
  p.inner = static_cast<int>(product.x.dim(-1));
  const auto bias = [](const Tensor& t, int64_t from) {
    return t.defined() ? t.data<T>() + from : nullptr;
  };
  const int64_t columns = product.weight.dim(0);
  int64_t apart = 1;
  if (product.tail.kind == RowTail::Kind::gate)
    apart = product.up.defined() ? columns : columns / 2;
  if (product.tail.kind == RowTail::Kind::rotate) apart = product.tail.head_dim / 2;
  p.pitch = product.weight.stride(0);
  p.out[0] = product.out.data<T>();
  p.weight[0] = product.weight.data<T>();
  p.bias[0] = bias(product.bias, 0);
  p.out[1] = product.up.defined() ? product.up.data<T>() : p.out[0] + apart;
  p.weight[1] = product.up.defined() ? product.up_weight.data<T>() : p.weight[0] + apart * p.pitch;
  p.bias[1] = product.up.defined() ? bias(product.up_bias, 0) : bias(product.bias, apart);
  p.apart = Divisor(apart);
  p.columns = static_cast<int>(product.up.defined() ? 2 * columns : columns);
  p.tail = tail_operands<T>(product.tail);
}

template <class T, int Most, bool Tailed, int Lanes>
Products<T, Most, Tailed> operands(const std::vector<RowProduct>& products) {
  constexpr int kOfBlock = kThreads / Lanes * kColumns;
  Products<T, Most, Tailed> p{};
  unsigned blocks = 0;
  for (size_t i = 0; i < Most; ++i) {
    if (i < products.size()) {
      set_product(p.of[i], products[i]);
      blocks += grid_for(p.of[i].columns, kOfBlock);
    }
    p.of[i].end = blocks;
  }
  return p;
}

int64_t blocks_of(const std::vector<RowProduct>& products, int64_t columns_of_block) {
  int64_t blocks = 0;
  for (const RowProduct& p : products) {
    const int64_t columns = p.weight.dim(0) * (p.up.defined() ? 2 : 1);
    blocks += grid_for(columns, columns_of_block);
  }
  return blocks;
}

}  // namespace

bool RowProduct::is_short() const {
  return x.dim(-1) * size_of(x.dtype()) <= int64_t{kLanesOfShort} * 16 * kVectorsOfShort;
}

// Whether two vectors on their way and five blocks a multiprocessor do better: where no thread has
// more vectors of a column, or where all blocks fit the device at once and at four a multiprocessor
// a few would be left for a time of their own.
bool HeldBack::takes_five(const std::vector<RowProduct>& products, int64_t columns_of_block,
                          int64_t elements_at_once) const {
  const int64_t blocks = blocks_of(products, columns_of_block);
  const bool one_wave = blocks > kBlocksOf<kMostInFlight> * multiprocessors_ &&
                        blocks <= kBlocksOf<kMostInFlight - 1> * multiprocessors_;
  return one_wave || std::all_of(products.begin(), products.end(), [&](const RowProduct& p) {
           return p.x.dim(-1) <= (kMostInFlight - 1) * elements_at_once;
         });
}

// Whether all weights are on their way before the kernels ahead end: the blocks fit the device at
// once, and their threads have room for the vectors of their columns.
bool HeldBack::takes_whole(const std::vector<RowProduct>& products, int64_t columns_of_block,
                           int64_t elements_at_once) const {
  return blocks_of(products, columns_of_block) <= kBlocksOf<kWholeColumn> * multiprocessors_ &&
         std::all_of(products.begin(), products.end(), [&](const RowProduct& p) {
           return p.x.dim(-1) == kWholeColumn * elements_at_once;
         });
}

void HeldBack::launch_products() {
  const std::vector<RowProduct> products = std::exchange(products_, {});
  const bool tailed = std::any_of(products.begin(), products.end(), [](const RowProduct& p) {
    return p.tail.kind != RowTail::Kind::none || p.tail.slots.defined() ||
           p.tail.addend_and_sum.defined();
  });
  with_storage("linear", products[0].x.dtype(), [&]<class T>(T) {
    with_wave(stream_, [&]<int Wave>() {
      const auto go = [&]<auto Kernel, int Lanes, int Most, bool Tailed>() {
        const auto p = operands<T, Most, Tailed, Lanes>(products);
        launch_overlapped<Kernel>("linear", {p.of[Most - 1].end}, {kThreads}, 0, stream_, p);
      };
      const auto with = [&]<int Lanes, int Most, bool Early, int InFlight>() {
        if (tailed) {
          constexpr auto kKernel = tailed_products<T, Wave, Lanes, Most, Early, InFlight>;
          go.template operator()<kKernel, Lanes, Most, true>();
        } else {
          constexpr auto kKernel = row_products<T, Wave, Lanes, Most, Early, InFlight>;
          go.template operator()<kKernel, Lanes, Most, false>();
        }
      };
      const auto for_most = [&]<int Most>() {
        constexpr int kAll = kLanes<Wave>, kFew = kLanesOfShort, kFewer = kMostInFlight - 1;
        const bool fewer = takes_five(products, kThreads / kAll * kColumns, kAll * kVector<T>);
        const auto with_lanes = [&]<int Lanes, int InFlight>() {
          if (settled_) with.template operator()<Lanes, Most, true, InFlight>();
          else with.template operator()<Lanes, Most, false, InFlight>();
        };
        if (settled_ && takes_whole(products, kThreads / kAll * kColumns, kAll * kVector<T>)) {
          return with.template operator()<kAll, Most, true, kWholeColumn>();
        }
        if (products[0].is_short()) with_lanes.template operator()<kFew, kVectorsOfShort>();
        else if (settled_ && fewer) with.template operator()<kAll, Most, true, kFewer>();
        else with_lanes.template operator()<kAll, kMostInFlight>();
      };
      if (products.size() == 1) for_most.template operator()<1>();
      else for_most.template operator()<HeldBack::kMostProducts>();
    });
  });
}

}  // namespace plumb::PLUMB_GPU_VENDOR
