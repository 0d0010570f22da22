// The conditions of features.h: one function for each kind of block.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "harness/referee/features.h"

namespace plumb::harness {

// Where tanh(s / cap) departs visibly from s / cap: |s| beyond half the cap. After the cap that is
// tanh(0.5) of it.
inline constexpr double kKnee = 0.5;
inline const double kKneeAfterCap = std::tanh(kKnee);

// What a norm scales to the same mean square.
struct NormRows {
  std::vector<double> x;       // rows of `width`
  std::vector<double> weight;  // one per column, or per column of several neighbouring rows
  int64_t width = 0;
  int64_t alike = 0;           // elements whose bits flip together (alike_in_row())
  bool rounds_before = false;  // the weight
};

// Looks at the params and recorded operands of one checkpoint; each function adds what it finds.
// Throws BadInput where the recording lacks an operand.
class FeatureFinder {
 public:
  // dtype: of the run.
  FeatureFinder(const Recording& recording, const Checkpoint& checkpoint, DType dtype)
      : recording_(recording), checkpoint_(checkpoint), dtype_(dtype) {}

  Features take() { return std::move(features_); }

  // Norms, projections, rotary embeddings, logits and single operations.
  void norm();
  // Whether an eps ten times as large would be seen.
  void eps(const NormRows& rows);
  // Numbers below the normal ones in outputs, and whether flushing them to zero would be seen.
  void denormals();
  void biases();
  void function();
  void embedding();
  void frequencies();
  void table();
  void rotary();
  void softcap_block();
  void lm_head();
  void concat();
  void slice();
  void permute();
  void product_of_two();
  void mask_fill();
  void position_ids();
  void conv1d();
  void scale_block();

  // Masks, attention and its caches.
  void cache();
  void static_cache();
  // p: where the params of a static cache are; tokens: new ones.
  void buffers(const blocks::Params& p, int64_t tokens);
  // queries, keys: extents; p: where the mask params are.
  void mask(const blocks::Params& p, int64_t queries, int64_t keys);
  // heads, kv_heads 0: unknown here.
  void attention(const blocks::Params& p, int64_t queries, int64_t keys, int64_t heads,
                 int64_t kv_heads);
  void sdpa();
  void attention_block(const blocks::Params& p, const std::string& prefix);
  void adapters(const blocks::Params& p);
  // The second block's weights, or adapters of a later call than the first.
  void shared(const blocks::Params& p);
  void causal_mask();

  // Mamba2.
  void conv_cache();
  void conv();
  void scan();
  void gated_norm();
  void mixer(const blocks::Params& p);

 private:
  // Whether any of the keys [first, end) is one: without "key_valid" all are.
  bool has_keys(int64_t first, int64_t end, int64_t keys) const;
  bool sees_softcap(double max_abs_score, double cap) const;
  // Whether the lower limit of the time steps is above some of them.
  void clamp(const blocks::Params& p);
  // A state that is given, and one that is kept.
  void carried(const std::string& feature, const char* before, const char* after);
  void axis(int64_t along, int rank);
  void padding(const char* name);

  bool has(const char* name) const { return checkpoint_.params.has(name); }
  double number(const char* name) const { return checkpoint_.params.number(name); }
  const TensorRef& input_ref(const std::string& name) const;
  const std::string& weight_key(const std::string& name) const;
  const OutputRef& output_ref(const std::string& name) const;
  Tensor input(const std::string& name) const;
  const Shape& shape(const std::string& name) const;
  Tensor weight(const std::string& name) const;
  const Shape& weight_shape(const std::string& name) const;
  static double at(const Tensor& t, int64_t i);
  static bool all_equal(const Tensor& t, double value);
  static double share_beyond(const Tensor& t, double limit);
  template <class Map>
  const typename Map::mapped_type& need(const Map& map, const char* role,
                                        const std::string& name) const;
  void seen(const std::string& feature, bool exercised);

  const Recording& recording_;
  const Checkpoint& checkpoint_;
  DType dtype_;
  Features features_;
};

}  // namespace plumb::harness
