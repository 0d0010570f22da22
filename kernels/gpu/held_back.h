// Launches that a GpuOps holds back until the next op is known, as that may share one: a kernel of
// a few microseconds takes nearly as long again to begin and to end.
#pragma once

#include <optional>
#include <vector>

#include "kernels/core/tensor.h"
#include "kernels/gpu/gpu.h"
#include "kernels/ops/op_params.h"

namespace plumb::PLUMB_GPU_VENDOR {

// Whether the bytes from a tensor's first to its last meet the other's; false for undefined ones.
bool meet(const Tensor& a, const Tensor& b);

// What is done to a product's row on its way to memory.
struct RowTail {
  enum class Kind { none, gate, rotate, convolve };
  // The sum of the row and this takes its place; undefined: none.
  Tensor addend_and_sum;
  Kind kind = Kind::none;
  std::optional<Activation> function;  // gate, convolve
  Tensor out;                          // gate, convolve
  Tensor cos, sin;                     // rotate
  Tensor taps, bias;                   // convolve
  Tensor state_before, state;          // convolve: may be one
  int64_t first_channel = 0;
  // Slots that the row is stored to, heads of head_dim; undefined: none.
  Tensor slots, past;
  int64_t head_dim = 0, window = 0;
};

// out = x w^T + bias of one row; bias may be undefined.
struct RowProduct {
  Tensor out, x, weight, bias;
  Tensor up, up_weight, up_bias;  // gate: the other product, unless it is the second half of this
  RowTail tail;

  std::vector<Tensor> reads() const;
  std::vector<Tensor> writes() const;
  // Whether a few lanes are enough for a column. The order of its sum depends on that: products of
  // one launch are all short or all long.
  bool is_short() const;
  // What follows sees.
  const Tensor& row() const { return tail.addend_and_sum.defined() ? tail.addend_and_sum : out; }
};

// What follows a row along: its norm, a sum of that, a norm of the sum; what is undefined is not
// done, and the next takes what there is.
struct RowChain {
  struct Norm {
    Tensor out, weight;
    RmsNormParams params;
  };
  Tensor x;
  Norm first;
  Tensor addend, sum;
  Norm second;
};

// At most one of both kinds is held.
class HeldBack {
 public:
  HeldBack(Stream stream, int multiprocessors)
      : stream_(stream), multiprocessors_(multiprocessors) {}

  // Products that need nothing of each other become one launch. settled: no op in flight writes the
  // weights.
  void one_row(RowProduct product, bool settled);
  static constexpr int kMostProducts = 6;  // of a launch

  // Whether a product is held that this is done to, in the same launch. Rows are those of one
  // token.
  bool gate(const Tensor& out, const Tensor& gate, const Tensor& up, Activation function);
  bool rotate(const Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin);
  // Sums in place of a few hundred products each; those behind longer rows rather join a norm.
  bool add_to_product(const Tensor& sum, const Tensor& a, const Tensor& b);
  bool convolve(const Tensor& out, const Tensor& state, const Tensor& x, const Tensor& taps,
                const Tensor& bias, const Tensor& state_before, std::optional<Activation> function);
  bool store(const Tensor& key_slots, const Tensor& value_slots, const Tensor& k, const Tensor& v,
             const Tensor& past, int64_t window);

  // Whether norm() and add() take these: few rows, each of them as many vectors as a block has
  // threads, or fewer.
  static bool takes_rows(std::initializer_list<const Tensor*> tensors);
  void norm(const Tensor& out, const Tensor& x, const Tensor& weight, const RmsNormParams& params);
  void add(const Tensor& sum, const Tensor& a, const Tensor& b);
  // Whether a norm was held of which this is the sum's, and all of it is launched now.
  bool add_norm(const Tensor& sum, const Tensor& x, const Tensor& residual,
                const RowChain::Norm& norm);

  // Launches what is held, before anything else uses the stream.
  void release() {
    if (!products_.empty()) launch_products();
    if (chain_) launch_chain();
  }
  void forget() {
    products_.clear();
    chain_.reset();
  }
  // Whether what is held reads or writes any of the tensor.
  bool touches(const Tensor& t) const;

 private:
  bool joins(const RowProduct& product) const;
  RowProduct* product_of(const Tensor& row);
  RowProduct* product_around(const Tensor& part);
  bool may_write(const Tensor& t) const;
  bool may_read(const Tensor& t) const;
  void launch_products();
  bool takes_five(const std::vector<RowProduct>& products, int64_t columns_of_block,
                  int64_t elements_at_once) const;
  bool takes_whole(const std::vector<RowProduct>& products, int64_t columns_of_block,
                   int64_t elements_at_once) const;
  bool grow(const RowChain& grown);
  void launch_chain();

  Stream stream_;
  int64_t multiprocessors_;
  std::vector<RowProduct> products_;
  bool settled_ = true;  // the weights of all of them
  std::optional<RowChain> chain_;
};

}  // namespace plumb::PLUMB_GPU_VENDOR
