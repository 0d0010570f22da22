#include "harness/referee/feature_finder.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/error.h"

namespace plumb::harness {

template <class Map>
const typename Map::mapped_type& FeatureFinder::need(const Map& map, const char* role,
                                                     const std::string& name) const {
  const auto found = map.find(name);
  if (found == map.end()) {
    throw BadInput(text(checkpoint_.params.where(), ": ", role, " \"", name, "\" is missing"));
  }
  return found->second;
}

void FeatureFinder::carried(const std::string& feature, const char* before, const char* after) {
  if (checkpoint_.inputs.count(before)) seen(feature + "_before", !all_equal(input(before), 0));
  if (checkpoint_.outputs.count(after)) seen(feature + "_after", true);
}

void FeatureFinder::axis(int64_t along, int rank) {
  seen(along == rank - 1 ? "last_axis" : "outer_axis", true);
}

void FeatureFinder::padding(const char* name) {
  if (checkpoint_.inputs.count(name)) seen("padding", !all_equal(input(name), 1));
}

const TensorRef& FeatureFinder::input_ref(const std::string& name) const {
  return need(checkpoint_.inputs, "input", name);
}

const std::string& FeatureFinder::weight_key(const std::string& name) const {
  return need(checkpoint_.weights, "weight", name);
}

const OutputRef& FeatureFinder::output_ref(const std::string& name) const {
  return need(checkpoint_.outputs, "output", name);
}

Tensor FeatureFinder::input(const std::string& name) const {
  return recording_.read(input_ref(name).tensor);
}

const Shape& FeatureFinder::shape(const std::string& name) const {
  return recording_.tensor_info(input_ref(name).tensor).shape;
}

Tensor FeatureFinder::weight(const std::string& name) const {
  return recording_.read(weight_key(name));
}

const Shape& FeatureFinder::weight_shape(const std::string& name) const {
  return recording_.tensor_info(weight_key(name)).shape;
}

double FeatureFinder::at(const Tensor& t, int64_t i) {
  return load(t.dtype(), t.data<char>() + i * size_of(t.dtype()));
}

bool FeatureFinder::all_equal(const Tensor& t, double value) {
  for (int64_t i = 0; i < t.numel(); ++i) {
    if (at(t, i) != value) return false;
  }
  return true;
}

double FeatureFinder::share_beyond(const Tensor& t, double limit) {
  int64_t count = 0;
  for (int64_t i = 0; i < t.numel(); ++i) count += std::fabs(at(t, i)) > limit;
  return static_cast<double>(count) / static_cast<double>(std::max<int64_t>(t.numel(), 1));
}

void FeatureFinder::seen(const std::string& feature, bool exercised) {
  (exercised ? features_.exercised : features_.blind).push_back(feature);
}

}  // namespace plumb::harness
