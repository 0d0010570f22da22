#include "harness/rounding_family.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "harness/layout.h"
#include "kernels/error.h"

namespace plumb {
namespace {

// Keys of a tile of flash attention: all at once first, then those of real kernels.
constexpr int64_t kTiles[] = {int64_t{1} << 40, 128, 64, 512, 256, 32, 16};

// What a rounding point rounds, in words.
std::string value_at(const std::string& point) {
  static const std::map<std::string, std::string> words = {
      {"rms_norm.normalised", "x / rms(x)"},
      {"rms_norm.factor", "the weight's offset + weight"},
      {"rotary.products", "the products with cos and sin"},
      {"linear.product", "the product before the bias"},
      {"activation.parts", "the parts of the activation"},
      {"activation", "the activation"},
      {"gated_rms_norm.normalised", "v / rms(v)"},
      {"causal_conv1d.sum", "the sum before the activation"},
      {"softmax", "the softmax"},
  };
  const auto found = words.find(point);
  return found == words.end() ? "the result of " + point : found->second;
}

void append(std::string& list, const std::string& word) {
  if (list.find(word) != std::string::npos) return;
  list += (list.empty() ? "" : ", ") + word;
}

std::string words_of_changes(const std::vector<RoundingPoint>& points,
                             const std::vector<bool>& changed, DType storage) {
  std::string kept, rounded;
  for (size_t i = 0; i < changed.size() && i < points.size(); ++i) {
    if (changed[i]) append(points[i].eager ? kept : rounded, value_at(points[i].name));
  }
  std::string out = kept.empty() ? "" : "keeps " + kept + " in float32";
  if (!rounded.empty()) {
    out += text(out.empty() ? "" : ", ", "rounds ", rounded, " to ", name_of(storage));
  }
  return out;
}

// y and what it is compared with, laid out once.
class Comparison {
 public:
  explicit Comparison(const OutputCase& output)
      : output_(output),
        layout_(layout_of(output.y.shape(), output.axes,
                          output.sample ? output.sample->tokens : std::vector<int64_t>())),
        y_(to_matrix(output.y, layout_)),
        valid_(to_mask(output.valid, output.valid_axes, layout_)),
        rule_(conformance_rule(output, floors(output.contract, output.stages, output.max_abs_score),
                               layout_.columns)) {}

  bool applies() const {
    const int64_t n = std::count(valid_.begin(), valid_.end(), 1);
    return conformance_applies(output_.contract.storage, n,
                               rows_aside(rule_, n / std::max<int64_t>(layout_.columns, 1)));
  }
  Conformance with(const Tensor& model) const {
    return conformance(y_, to_matrix(model, layout_), valid_, rule_);
  }

 private:
  const OutputCase& output_;
  Layout layout_;
  std::vector<double> y_;
  std::vector<uint8_t> valid_;
  ConformanceRule rule_;
};

class Search {
 public:
  Search(const OutputCase& output, OracleRuns& runs, std::optional<RoundingPoints> demanded)
      : output_(output), runs_(runs), comparison_(output), demanded_(demanded) {}

  Following run(bool attention) {
    if (!comparison_.applies()) return {};
    if (try_composed("rounds as HF eager does", RoundingPoints::eager, {})) return done();
    if (try_composed("rounds once, at the output", RoundingPoints::fused, all_kept())) {
      return done();
    }
    if (attention && (try_flash() || (!demanded_ && try_scaled_queries()))) return done();
    if (!demanded_) try_single_changes();
    return done();
  }

 private:
  DType storage() const { return output_.contract.storage; }

  Following done() {
    for (FamilyMember& member : out_.members) {
      const bool eager_alone = member.model.raw() == eager_.raw() && output_.reference.defined();
      member.accurate = eager_alone || no_less_accurate(output_, member.model, eager_);
    }
    return std::move(out_);
  }

  // Whether it is what y follows; the better one of two is kept as the best.
  bool offer(FamilyMember member) {
    if (demanded_ && *demanded_ != member.points) return false;
    const bool better = out_.members.empty() || member.found.differ < best().found.differ;
    out_.members.push_back(std::move(member));
    if (better) out_.best = out_.members.size() - 1;
    return best().found.passed && no_less_accurate(output_, best().model, eager_);
  }

  const FamilyMember& best() const { return out_.members[out_.best]; }

  FamilyMember composed(RoundingPoints points, const std::vector<bool>& changed) {
    Arithmetic arithmetic{.changed = changed};
    FamilyMember out{"", points, runs_.with(output_.name, OpSet(), arithmetic), {}};
    if (points_.empty()) points_ = arithmetic.points;
    out.found = comparison_.with(out.model);
    return out;
  }

  bool try_composed(const char* name, RoundingPoints points, const std::vector<bool>& changed) {
    FamilyMember member = composed(points, changed);
    if (!eager_.defined()) eager_ = member.model;
    member.name = name;
    changed_ =
        out_.members.empty() || member.found.differ < best().found.differ ? changed : changed_;
    return offer(std::move(member));
  }

  std::vector<bool> all_kept() const {
    std::vector<bool> out;
    for (const RoundingPoint& point : points_) out.push_back(point.eager);
    return out;
  }

  bool try_flash() {
    for (const int64_t tile : kTiles) {
      Arithmetic arithmetic{.key_tile = tile};
      FamilyMember member{tile > kTiles[3]
                              ? "rounds as flash attention does, all keys at once"
                              : text("rounds as flash attention does, tiles of ", tile, " keys"),
                          RoundingPoints::flash,
                          runs_.with(output_.name, OpSet().set(), arithmetic),
                          {}};
      member.found = comparison_.with(member.model);
      if (offer(std::move(member))) return true;
    }
    return false;
  }

  // Attention that scales its queries instead of the scores, and rounds both and the weights.
  bool try_scaled_queries() {
    Arithmetic arithmetic;
    runs_.with(output_.name, OpSet().set(), arithmetic);
    for (const RoundingPoint& point : arithmetic.points) {
      arithmetic.changed.push_back(!point.eager);
    }
    FamilyMember member{"rounds scaled queries, scores and weights",
                        RoundingPoints::fused,
                        runs_.with(output_.name, OpSet().set(), arithmetic),
                        {}};
    member.found = comparison_.with(member.model);
    return offer(std::move(member));
  }

  // From the better of eager and all kept: every point once the other way, as long as that helps.
  void try_single_changes() {
    changed_.resize(points_.size());
    int64_t fewest = composed(RoundingPoints::fused, changed_).found.differ;
    for (bool improved = true; improved;) {
      improved = false;
      for (size_t i = 0; i < points_.size(); ++i) {
        std::vector<bool> changed = changed_;
        changed[i] = !changed[i];
        FamilyMember member = composed(RoundingPoints::fused, changed);
        if (member.found.differ >= fewest) continue;
        fewest = member.found.differ;
        changed_ = changed;
        improved = true;
        member.name = words_of_changes(points_, changed, storage());
        if (offer(std::move(member))) return;
      }
    }
  }

  const OutputCase& output_;
  OracleRuns& runs_;
  const Comparison comparison_;
  const std::optional<RoundingPoints> demanded_;
  Following out_;
  Tensor eager_;
  std::vector<RoundingPoint> points_;
  std::vector<bool> changed_;
};

std::string percent(const Conformance& c) {
  char buffer[32];
  std::snprintf(
      buffer, sizeof buffer, "%.2g %%",
      100.0 * static_cast<double>(c.differ) / static_cast<double>(std::max<int64_t>(c.n, 1)));
  return buffer;
}

}  // namespace

Tensor Following::flash() const {
  const auto found = std::find_if(members.begin(), members.end(), [](const FamilyMember& member) {
    return member.points == RoundingPoints::flash;
  });
  return found == members.end() ? Tensor() : found->model;
}

Following follow_roundings(const OutputCase& output, OracleRuns& runs, bool attention,
                           std::optional<RoundingPoints> demanded) {
  if (size_of(output.contract.storage) != 2 || !runs.possible(output.name)) return {};
  return Search(output, runs, demanded).run(attention);
}

std::string words_of(const Following& following) {
  if (following.members.empty()) return {};
  const FamilyMember& best = following.member();
  std::string others;
  for (size_t i = 0; i < following.members.size() && i < 2; ++i) {
    if (i == following.best) continue;
    const FamilyMember& other = following.members[i];
    append(others, other.name + " (" + percent(other.found) + ")");
  }
  const char* unless = best.found.passed ? "" : "follows no rounding points; nearest: ";
  std::string out = text(unless, best.name, " (", percent(best.found), " differ)");
  if (best.found.passed && !best.accurate) out += ", which is less accurate than the reference";
  return out + (others.empty() ? "" : "; not: " + others);
}

bool no_less_accurate(const OutputCase& output, const Tensor& model, const Tensor& eager) {
  const Layout layout = layout_of(output.y.shape(), output.axes,
                                  output.sample ? output.sample->tokens : std::vector<int64_t>());
  std::vector<double> o;
  if (output.oracle.defined()) {
    o = to_matrix(output.oracle, layout);
  } else {
    o = to_matrix(output.reference, layout);
    const std::vector<double> delta =
        output.delta.defined() ? to_matrix(output.delta, layout) : std::vector<double>();
    for (size_t i = 0; i < delta.size(); ++i) o[i] += delta[i];
  }
  const std::vector<uint8_t> valid = to_mask(output.valid, output.valid_axes, layout);
  const ReferenceScales scales = reference_scales(layout, o, valid, output.contract.storage);
  const auto of = [&](const Tensor& t) {
    const std::vector<double> values = to_matrix(t, layout);
    return statistics(values, scales, not_finite(values));
  };
  const Statistics m = of(model), r = of(output.reference.defined() ? output.reference : eager);
  const Floors floor = floors(output.contract, output.stages, output.max_abs_score);
  return no_less_accurate(m, r, floor);
}

}  // namespace plumb
