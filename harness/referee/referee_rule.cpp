#include "harness/referee/referee_rule.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr double kLittle = 3e8;       // a tenth of a second on one core
constexpr double kAffordable = 2e10;  // a second or two on a few

// The largest score of an attention widens limits by the error of its exponential, in float32.
// Where that is lost in the storage's own rounding it tells no kind from another: each layer has
// its own.
bool widens_limits(double max_abs_score, DType storage) {
  constexpr double kLost = 1.0 / 8;
  return !(unit_roundoff(DType::f32) * max_abs_score <= kLost * unit_roundoff(storage));
}

std::string words(const blocks::Params& params, DType storage);

std::string words(const blocks::Params::Value& value, DType storage) {
  const auto listed = [](const auto& items) {
    std::string out;
    for (const auto& item : items) out += text(item, ',');
    return out;
  };
  return std::visit(
      [&](const auto& it) -> std::string {
        using T = std::decay_t<decltype(it)>;
        if constexpr (std::is_same_v<T, blocks::Params::Null>) return "null";
        else if constexpr (std::is_same_v<T, blocks::Params>) return '{' + words(it, storage) + '}';
        else if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, double> ||
                           std::is_same_v<T, std::string>)
          return text(it);
        else return '[' + listed(it) + ']';
      },
      value);
}

std::string words(const blocks::Params& params, DType storage) {
  std::string out;
  for (const auto& [name, value] : params.values()) {
    const double* number = std::get_if<double>(&value);
    if (name == "max_abs_score" && number && !widens_limits(*number, storage)) continue;
    out += name + '=' + words(value, storage) + ' ';
  }
  return out;
}

// The ids of the cheapest checkpoint of each block and params.
std::set<std::string> representatives(const Recording& recording) {
  std::map<std::string, std::pair<double, std::string>> cheapest;
  for (const Checkpoint& checkpoint : recording.checkpoints()) {
    const double cost = referee_cost(recording, checkpoint);
    const auto [at, is_new] = cheapest.try_emplace(
        checkpoint.block + ' ' + words(checkpoint.params, recording.dtype()), cost, checkpoint.id);
    if (!is_new && cost < at->second.first) at->second = {cost, checkpoint.id};
  }
  std::set<std::string> out;
  for (const auto& [kind, one] : cheapest) out.insert(one.second);
  return out;
}

bool stands_for_others(const Recording& recording, const Checkpoint& checkpoint) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const std::set<std::string>>> known;
  const std::lock_guard lock(mutex);
  auto& ids = known[recording.sha256()];
  if (!ids) ids = std::make_shared<const std::set<std::string>>(representatives(recording));
  return ids->contains(checkpoint.id);
}

}  // namespace

double referee_cost(const Recording& recording, const Checkpoint& checkpoint) {
  double weights = 0, elements = 0, rows = 0, keys = 0;
  for (const auto& [name, key] : checkpoint.weights) {
    const Shape& shape = recording.tensor_info(key).shape;
    if (shape.rank() == 2) weights += static_cast<double>(shape.numel());
  }
  for (const auto& [name, input] : checkpoint.inputs) {
    const TensorInfo& t = recording.tensor_info(input.tensor);
    if (!is_floating(t.dtype) || t.shape.rank() < 2) continue;
    keys = std::max(keys, static_cast<double>(t.shape[-2]));
    if (name != "hidden" && name != "x" && name != "q" && name != "a") continue;
    elements = static_cast<double>(t.shape.numel());
    rows = elements / static_cast<double>(std::max<int64_t>(t.shape[-1], 1));
  }
  // Projections, scores and values of attention; a weight is widened more than once.
  constexpr double kWiden = 30;
  return (rows + kWiden) * weights + 2 * elements * keys;
}

bool is_dear(const Recording& recording, const Checkpoint& checkpoint) {
  return referee_cost(recording, checkpoint) > kLittle;
}

bool is_refereed(const Recording& recording, const Checkpoint& checkpoint, DType dtype,
                 RefereeRule rule, bool fails) {
  const bool other = dtype != recording.dtype();
  if (rule == RefereeRule::never) return other && dtype != DType::f64;
  if (rule == RefereeRule::always || other) return true;
  const double cost = referee_cost(recording, checkpoint);
  if (cost <= kLittle) return true;
  if (cost <= kAffordable && (fails || stands_for_others(recording, checkpoint))) return true;
  const bool narrow = size_of(recording.dtype()) == 2;
  return std::any_of(checkpoint.outputs.begin(), checkpoint.outputs.end(), [&](const auto& output) {
    return !output.second.spread || (narrow && !output.second.model);
  });
}

}  // namespace plumb::harness
