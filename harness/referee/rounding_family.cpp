#include "harness/referee/rounding_family.h"

#include <algorithm>
#include <map>

#include "harness/judge/limit_basis.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// Keys of a tile of flash attention: all at once first, then those of real kernels.
constexpr int64_t kTiles[] = {int64_t{1} << 40, 128, 64, 512, 256, 32, 16};

// Subsets of rounding points that are all tried, and the values that this may compute.
constexpr int64_t kMostSubsets = 512, kMostSubsetValues = 1 << 20;

// What a rounding point rounds, in words.
std::string value_at(const std::string& point) {
  static const std::map<std::string, std::string> words = {
      {"rms_norm.normalised", "x / rms(x)"},
      {"rms_norm.factor", "the weight's offset + weight"},
      {"rotary.product_by_cos", "the product with cos"},
      {"rotary.product_by_sin", "the product with sin"},
      {"linear.product", "the product before the bias"},
      {"activation.parts", "the parts of the activation"},
      {"activation.exponential", "exp(|x|)"},
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
        arrays_(load_arrays(output.evidence)),
        rule_(conformance_rule(
            output.rule,
            floors(output.rule.contract, output.rule.stages, output.rule.max_abs_score),
            arrays_.layout.columns)) {}

  bool applies() const {
    const int64_t n = std::count(arrays_.valid.begin(), arrays_.valid.end(), 1);
    return conformance_applies(output_.rule.contract.storage, n,
                               rows_aside(rule_, n / std::max<int64_t>(arrays_.layout.columns, 1)));
  }
  void with(FamilyMember& member) const {
    const std::vector<double> model = to_matrix(member.model, arrays_.layout);
    member.found = conformance(arrays_.y, model, arrays_.valid, rule_, &member.parts);
  }

 private:
  const OutputCase& output_;
  const CaseArrays arrays_;
  const ConformanceRule rule_;
};

std::vector<RoundingPoint> points_of(const std::string& output, OracleRuns& runs, OpSet fused) {
  Arithmetic arithmetic;
  runs.with(output, fused, arithmetic);
  return arithmetic.points;
}

std::vector<bool> changed_where(const std::vector<RoundingPoint>& points, bool eager) {
  std::vector<bool> out;
  for (const RoundingPoint& point : points) out.push_back(point.eager == eager);
  return out;
}

RoundingWay flash_way(int64_t tile) {
  const bool whole = tile == kTiles[0];
  return {whole ? "rounds as flash attention does, all keys at once"
                : text("rounds as flash attention does, tiles of ", tile, " keys"),
          RoundingPoints::flash,
          OpSet().set(),
          {},
          tile};
}

// Those of real programs, the usual ones first.
std::vector<RoundingWay> all_ways(const std::string& output, OracleRuns& runs, bool attention) {
  std::vector<RoundingWay> out = usual_ways(output, runs, attention);
  if (runs.has_rotary_table()) {
    for (size_t i = 0, usual = out.size(); i < usual; ++i) {
      RoundingWay way = out[i];
      way.name += ", cos and sin in float32";
      way.own_table = true;
      way.points = RoundingPoints::fused;
      out.push_back(std::move(way));
    }
  }
  if (!attention) return out;
  for (size_t i = 1; i < std::size(kTiles); ++i) out.push_back(flash_way(kTiles[i]));
  // Queries are scaled instead of scores, and rounded as those and the weights are.
  const std::vector<RoundingPoint> points = points_of(output, runs, OpSet().set());
  out.push_back({"rounds scaled queries, scores and weights",
                 RoundingPoints::fused,
                 OpSet().set(),
                 changed_where(points, false),
                 {}});
  return out;
}

class Search {
 public:
  Search(const OutputCase& output, OracleRuns& runs, std::optional<RoundingPoints> demanded)
      : output_(output), runs_(runs), comparison_(output), demanded_(demanded) {}

  Following run(bool attention) {
    if (!comparison_.applies()) return {};
    for (RoundingWay& way : all_ways(output_.evidence.name, runs_, attention)) {
      const bool first = !eager_.defined();
      if (demanded_ && *demanded_ != way.points && !first) continue;
      if (try_way(std::move(way))) return done();
    }
    if (!demanded_ && !try_single_changes()) try_all_subsets();
    return done();
  }

 private:
  DType storage() const { return output_.rule.contract.storage; }

  Following done() {
    for (FamilyMember& member : out_.members) {
      const bool eager_alone =
          member.model.raw() == eager_.raw() && output_.evidence.reference.defined();
      member.accurate = eager_alone || is_accurate(member);
    }
    return std::move(out_);
  }

  // Whether it is what y follows; the better one of two is kept as the best.
  bool offer(FamilyMember member) {
    if (demanded_ && *demanded_ != member.way.points) return false;
    const auto rank = [](const FamilyMember& of) {
      return std::make_pair(!of.fits(), of.found.differ);
    };
    const bool better = out_.members.empty() || rank(member) < rank(best());
    out_.members.push_back(std::move(member));
    if (better) out_.best = out_.members.size() - 1;
    return best().fits() && is_accurate(best());
  }

  // No less accurate than the reference. o is of the recorded cos and sin, from which a table of
  // the kernel's own differs by their rounding, which is no error: its roundings are what counts.
  bool is_accurate(const FamilyMember& member) {
    if (!member.way.own_table)
      return tensor_no_less_accurate(output_.evidence, output_.rule, member.model, eager_);
    RoundingWay way = member.way;
    way.own_table = false;
    return tensor_no_less_accurate(output_.evidence, output_.rule,
                                   runs_.rounded_as(output_.evidence.name, way), eager_);
  }

  const FamilyMember& best() const { return out_.members[out_.best]; }

  FamilyMember member_of(RoundingWay way) {
    FamilyMember out{std::move(way), {}, {}};
    out.model = runs_.rounded_as(output_.evidence.name, out.way);
    comparison_.with(out);
    return out;
  }

  // Whether y follows it; the first is eager code's.
  bool try_way(RoundingWay way) {
    FamilyMember member = member_of(std::move(way));
    const bool first = !eager_.defined();
    if (first) eager_ = member.model;
    if (member.way.fused.none() && (first || member.found.differ < fewest_)) {
      fewest_ = member.found.differ;
      changed_ = member.way.changed;
    }
    return offer(std::move(member));
  }

  // From the better of eager and all kept: every point once the other way, as long as that helps.
  bool try_single_changes() {
    const std::vector<RoundingPoint> points = points_of(output_.evidence.name, runs_, OpSet());
    changed_.resize(points.size());
    for (bool improved = true; improved;) {
      improved = false;
      for (size_t i = 0; i < points.size(); ++i) {
        std::vector<bool> changed = changed_;
        changed[i] = !changed[i];
        FamilyMember member = member_of(way_of(points, std::move(changed)));
        if (member.found.differ >= fewest_) continue;
        fewest_ = member.found.differ;
        changed_ = member.way.changed;
        improved = true;
        if (offer(std::move(member))) return true;
      }
    }
    return false;
  }

  // Where the points are few and the block is small: of one token, a step in the right direction
  // may not show.
  void try_all_subsets() {
    const std::vector<RoundingPoint> points = points_of(output_.evidence.name, runs_, OpSet());
    const int64_t runs = int64_t{1} << std::min<size_t>(points.size(), 62);
    if (runs > kMostSubsets || runs * output_.evidence.y.numel() > kMostSubsetValues) return;
    for (int64_t subset = 0; subset < runs; ++subset) {
      std::vector<bool> changed;
      for (size_t i = 0; i < points.size(); ++i) changed.push_back(subset >> i & 1);
      FamilyMember member = member_of(way_of(points, std::move(changed)));
      if (!member.found.passed) continue;
      if (offer(std::move(member))) return;
    }
  }

  RoundingWay way_of(const std::vector<RoundingPoint>& points, std::vector<bool> changed) const {
    RoundingWay way{"", RoundingPoints::fused, OpSet(), std::move(changed), {}};
    way.name = words_of_changes(points, way.changed, storage());
    return way;
  }

  const OutputCase& output_;
  OracleRuns& runs_;
  const Comparison comparison_;
  const std::optional<RoundingPoints> demanded_;
  Following out_;
  Tensor eager_;
  int64_t fewest_ = 0;         // elements that differ from a composed model
  std::vector<bool> changed_;  // of that model
};

}  // namespace

Tensor Following::flash() const {
  const auto found = std::find_if(members.begin(), members.end(), [](const FamilyMember& member) {
    return member.way.points == RoundingPoints::flash;
  });
  return found == members.end() ? Tensor() : found->model;
}

std::vector<RoundingWay> usual_ways(const std::string& output, OracleRuns& runs, bool attention) {
  std::vector<RoundingWay> out = {{"rounds as HF eager does", RoundingPoints::eager, {}, {}, {}}};
  const std::vector<RoundingPoint> points = points_of(output, runs, OpSet());
  out.push_back(
      {"rounds once, at the output", RoundingPoints::fused, {}, changed_where(points, true), {}});
  // Where nothing has a fused version that is eager code's once more.
  if (points_of(output, runs, OpSet().set()).size() != points.size()) {
    out.push_back({"rounds once in every fused op", RoundingPoints::fused, OpSet().set(), {}, {}});
  }
  for (size_t i = 0; i < points.size(); ++i) {
    if (points[i].name != "rms_norm.normalised" || points[i].eager) continue;
    RoundingWay way{"rounds x / rms(x) before the weight", RoundingPoints::fused, {}, {}, {}};
    way.changed.assign(points.size(), false);
    way.changed[i] = true;
    out.push_back(std::move(way));
  }
  if (attention) out.push_back(flash_way(kTiles[0]));
  return out;
}

Following follow_roundings(const OutputCase& output, OracleRuns& runs, bool attention,
                           std::optional<RoundingPoints> demanded) {
  if (size_of(output.rule.contract.storage) != 2 || !runs.possible(output.evidence.name)) return {};
  return Search(output, runs, demanded).run(attention);
}

std::string words_of(const Following& following) {
  if (following.members.empty()) return {};
  const FamilyMember& best = following.member();
  std::string others;
  for (size_t i = 0; i < following.members.size() && i < 2; ++i) {
    if (i == following.best) continue;
    const FamilyMember& other = following.members[i];
    append(others, other.way.name + " (" + share_that_differs(other.found) + ")");
  }
  const char* unless = best.found.passed ? "" : "follows no rounding points; nearest: ";
  std::string out = text(unless, best.way.name, " (", share_that_differs(best.found), " differ)");
  if (best.found.passed && !best.accurate) out += ", which is less accurate than the reference";
  return out + (others.empty() ? "" : "; not: " + others);
}

}  // namespace plumb::harness
