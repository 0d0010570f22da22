#include "blocks/models/rotary_angles.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/error.h"

namespace plumb::blocks {
namespace {

bool depends_on_length(const Params& params) {
  const std::string& type = params.string("type");
  return type == "dynamic" || type == "longrope";
}

RotaryFrequencies frequencies(Params params, int64_t length) {
  if (depends_on_length(params)) params.set("length", static_cast<double>(length));
  return RotaryFrequencies::compute(params);
}

}  // namespace

void RotaryAngles::check(const Params& params) { frequencies(params, 1); }

bool RotaryAngles::depend_on_length() const { return depends_on_length(params_); }

RotaryAngles::RotaryAngles(Device& device, DType dtype, const Params& params, int64_t max_length,
                           const std::vector<int64_t>& padding)
    : device_(&device), params_(params) {
  const std::vector<int64_t> skipped = padding.empty() ? std::vector<int64_t>{0} : padding;
  const Tensor positions =
      host_tensor(DType::i64, {static_cast<int64_t>(skipped.size()), max_length});
  int64_t* next = positions.data<int64_t>();
  for (const int64_t before : skipped) {
    for (int64_t t = 0; t < max_length; ++t) *next++ = std::max(t - before, int64_t{0});
  }
  least_skipped_ = *std::min_element(skipped.begin(), skipped.end());
  positions_ = device.allocate(DType::i64, positions.shape());
  device.upload(positions_, positions.raw());

  const DType precise = dtype == DType::f64 ? DType::f64 : DType::f32;
  inv_freq_ = device.allocate(precise, {params.integer("dim") / 2});
  if (params.string("type") == "dynamic") longest_ = params.integer("max_position");
  compute(length_for(1));
}

// The length that the frequencies of a call with positions below this are made for.
int64_t RotaryAngles::length_for(int64_t length) {
  const std::string& type = params_.string("type");
  if (type == "dynamic") {
    const int64_t trained = params_.integer("max_position");
    longest_ = length < trained ? trained : std::max(longest_, length);
    return longest_;
  }
  if (type == "longrope") {
    const int64_t trained = params_.integer("original_max_position");
    return length > trained ? trained + 1 : trained;
  }
  return 0;
}

void RotaryAngles::set_frequencies(std::vector<double> inv_freq) {
  given_ = std::move(inv_freq);
  computed_for_ = -1;
}

// The exponent 2i/r is off by u, which the power multiplies by ln theta; a vectorised pow is off by
// up to an ulp, the reciprocal and the scaling of a type by u each. Twice that.
void RotaryAngles::require_roundings(const std::vector<double>& own) const {
  require<BadInput>(given_.size() == own.size(), "rotary", given_.size(),
                    " inverse frequencies are given, the model has ", own.size());
  const double allowed = 2 * unit_roundoff(DType::f32) * (4 + std::log(params_.number("theta")));
  for (size_t i = 0; i < own.size(); ++i) {
    require<BadInput>(std::fabs(given_[i] - own[i]) <= allowed * own[i], "rotary",
                      "inverse frequency ", i, " is given as ", given_[i], ", the model's is ",
                      own[i]);
  }
}

void RotaryAngles::compute(int64_t length) {
  computed_for_ = length;
  RotaryFrequencies found = frequencies(params_, length);
  if (!given_.empty()) {
    require_roundings(found.inv_freq);
    found.inv_freq = given_;
  }
  scaling_ = found.attention_scaling;
  const Tensor host = host_tensor(inv_freq_.dtype(), inv_freq_.shape());
  for (size_t i = 0; i < found.inv_freq.size(); ++i) {
    // Float32 in transformers, whatever the model's dtype.
    const double rounded = static_cast<float>(found.inv_freq[i]);
    store(host.dtype(), host.data<char>() + static_cast<int64_t>(i) * size_of(host.dtype()),
          rounded);
  }
  device_->upload(inv_freq_, host.raw());
}

void RotaryAngles::operator()(Context& ctx, const Tensor& cos, const Tensor& sin, int64_t past,
                              const Tensor& position) {
  const int64_t tokens = cos.dim(1), length = past + tokens;
  require(length <= positions_.dim(1), "rotary", "position ", length - 1,
          " is beyond the maximum length ", positions_.dim(1), " that was asked for");
  const int64_t made_for = length_for(std::max(length - least_skipped_, int64_t{1}));
  if (made_for != computed_for_) compute(made_for);
  const Tensor positions =
      position.defined() ? position.view({1, 1}) : positions_.slice(1, past, length);
  ctx.ops.rotary_table(cos, sin, positions, inv_freq_, scaling_);
}

}  // namespace plumb::blocks
