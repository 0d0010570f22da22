#include "harness/replay/recorded_bits.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "harness/judge/conformance.h"
#include "harness/judge/limit_basis.h"
#include "harness/judge/spread_limit.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

bool has_16_bits(DType dtype) { return is_floating(dtype) && size_of(dtype) == 2; }

// Whether a rounding to 16 bits feeds a later sum: one that falls otherwise moves all that the sum
// makes. A fused attention rounds the weights of its own sum.
bool cascades(const Operations& operations) {
  const auto narrow = std::find_if(operations.begin(), operations.end(),
                                   [](const Operation& it) { return has_16_bits(it.stores); });
  return narrow != operations.end() &&
         (narrow->op.starts_with("_scaled_dot_product") ||
          std::any_of(narrow + 1, operations.end(),
                      [](const Operation& it) { return it.terms > 1; }));
}

// Values of a row that one factor of it brings over a tie together (alike_in_row), in any input
// that is as wide as the output.
int64_t alike_inputs(const Recording& recording, const Checkpoint& checkpoint, const Tensor& y) {
  int64_t most = 0;
  for (const auto& [name, ref] : checkpoint.inputs) {
    const Tensor x = recording.read(ref.tensor);
    if (x.rank() == 0 || y.rank() == 0 || x.dim(-1) != y.dim(-1)) continue;
    most = std::max(most, alike_in_row(x));
  }
  return most;
}

constexpr const char* kOnce = "rounds once, at the output";

// One way to round, and what y's bits are beside it. Where no simulation says how many may differ,
// the sums of the trace do.
struct Member {
  std::string name;
  Tensor model;
  std::optional<SpreadOf> bits;
  std::vector<Stage> stages;
  Conformance found;
  SmallParts parts = {};
  bool passed = false, fits = false, accurate = true;
};

void compare(Member& member, const OutputCase& output, const CaseArrays& arrays) {
  const ConformanceRule rule =
      conformance_rule(output, floors(output.contract, member.stages, 0), arrays.layout.columns);
  const std::vector<double> model = to_matrix(member.model, arrays.layout);
  member.found = conformance(arrays.y, model, arrays.valid, rule, &member.parts);
  const double shown = member.bits ? bits_limit(*member.bits) : 0;
  member.passed = static_cast<double>(member.found.differ) <= std::max(member.found.limit, shown);
}

// What a kernel gives that keeps everything in float32: the oracle's values, rounded.
Member rounded_once(const Checkpoint& checkpoint, const OutputCase& output,
                    const CaseArrays& arrays) {
  Member out{kOnce, host_tensor(output.y.dtype(), output.y.shape()), std::nullopt, {}, {}};
  const std::vector<int64_t> flat = flat_positions(arrays.layout);
  const int64_t size = size_of(output.y.dtype());
  for (size_t i = 0; i < flat.size(); ++i) {
    store(output.y.dtype(), out.model.data<char>() + flat[i] * size, arrays.o[i]);
  }
  for (const Operation& operation : *checkpoint.operations) {
    if (operation.terms > 1) out.stages.push_back({operation.terms, {}});
  }
  return out;
}

// Where the recorded run rounds, then the others of its family.
std::vector<Member> members_of(const Recording& recording, const Checkpoint& checkpoint,
                               const OutputCase& output, const CaseArrays& arrays) {
  const OutputRef& ref = checkpoint.outputs.at(output.name);
  std::vector<Member> out;
  const SpreadOf* bits = output.spread ? output.spread->find("bits") : nullptr;
  out.push_back({"rounds as the recorded run does",
                 output.model,
                 bits ? std::optional(*bits) : std::nullopt,
                 {},
                 {}});
  for (const MemberRef& member : ref.members) {
    out.push_back({member.name, recording.read(member.values), member.bits, {}, {}});
  }
  const bool has_once =
      std::any_of(out.begin(), out.end(), [](const Member& it) { return it.name == kOnce; });
  if (!has_once) out.push_back(rounded_once(checkpoint, output, arrays));
  for (size_t i = 0; i < out.size(); ++i) {
    compare(out[i], output, arrays);
    out[i].accurate = i == 0 || tensor_no_less_accurate(output, out[i].model, {});
  }
  return out;
}

// How far the others' roundings move an element of the first.
double furthest_of_others(const std::vector<Member>& members, const OutputCase& output,
                          const CaseArrays& arrays) {
  const DType storage = output.contract.storage;
  const double normal = std::ldexp(1.0, info(storage).min_exponent);
  const std::vector<double> first = to_matrix(members.front().model, arrays.layout);
  const double negligible = noise(first, arrays.valid);
  double out = 0;
  for (size_t i = 1; i < members.size(); ++i) {
    if (!members[i].accurate) continue;
    out = std::max(out, furthest(to_matrix(members[i].model, arrays.layout), first, arrays.valid,
                                 unit_roundoff(storage), normal, negligible));
  }
  return out;
}

void fit(std::vector<Member>& members, const OutputCase& output, int64_t rows) {
  for (Member& member : members) {
    SmallParts& parts = member.parts;
    if (output.leaf) {
      parts.distance_limit =
          std::max(kLimits.furthest_bit, kLimits.furthest_of_others * output.others);
    }
    if (member.bits && member.found.n > 0) {
      const int64_t columns = output.y.numel() / std::max<int64_t>(rows, 1);
      const double share = bits_limit(*member.bits) / static_cast<double>(member.found.n);
      parts.crowd_limit =
          std::max(parts.crowd_limit, crowd_limit(member.found.n / columns, columns, share));
    }
    member.fits = member.passed && parts.fit();
  }
}

// The first that y follows in all, else in the number of bits.
std::vector<Member>::const_iterator followed_of(const std::vector<Member>& members) {
  const auto fits = std::find_if(members.begin(), members.end(),
                                 [](const Member& it) { return it.fits && it.accurate; });
  if (fits != members.end()) return fits;
  return std::find_if(members.begin(), members.end(),
                      [](const Member& it) { return it.passed && it.accurate; });
}

bool is_demanded(const Member& member, bool first, std::optional<RoundingPoints> demanded) {
  if (!demanded) return true;
  return *demanded == RoundingPoints::eager ? first : member.name == kOnce;
}

// The members that are demanded; Unsupported where the recording holds none.
std::vector<Member> demanded_of(std::vector<Member> members,
                                std::optional<RoundingPoints> demanded) {
  std::vector<Member> out;
  for (size_t i = 0; i < members.size(); ++i) {
    const bool possible = demanded != RoundingPoints::flash;
    if (possible && is_demanded(members[i], i == 0, demanded)) out.push_back(members[i]);
  }
  if (out.empty()) {
    throw Unsupported("the recording does not hold the rounding points that --contract demands");
  }
  return out;
}

std::string words_of(const Member& nearest, const std::vector<Member>& members, bool follows) {
  std::string out =
      text(follows ? "" : "follows no rounding points of the recording; nearest: ", nearest.name,
           " (", share_that_differs(nearest.found), " differ)");
  if (nearest.passed && !nearest.accurate) out += ", which is less accurate than the reference";
  const Member& first = members.front();
  if (first.name != nearest.name)
    out += text("; not: ", first.name, " (", share_that_differs(first.found), ')');
  return out;
}

}  // namespace

std::string follow_recorded_bits(const Recording& recording, const Checkpoint& checkpoint,
                                 std::optional<RoundingPoints> demanded, OutputCase& output) {
  if (!output.model.defined() || !output.has_expected_shape()) return {};
  const bool leaf = !cascades(*checkpoint.operations);
  if (leaf) output.cascade_outputs = alike_inputs(recording, checkpoint, output.y);
  const CaseArrays arrays = load_arrays(output);
  const int64_t n = std::count(arrays.valid.begin(), arrays.valid.end(), 1);
  if (!conformance_applies(output.y.dtype(), n)) return {};
  output.leaf = leaf;
  std::vector<Member> members = members_of(recording, checkpoint, output, arrays);
  if (leaf) output.others = furthest_of_others(members, output, arrays);
  fit(members, output, arrays.layout.rows);
  members = demanded_of(std::move(members), demanded);
  const auto followed = followed_of(members);
  const bool follows = followed != members.end();
  const Member& nearest =
      follows ? *followed
              : *std::min_element(members.begin(), members.end(), [](const auto& a, const auto& b) {
                  return a.found.differ < b.found.differ;
                });
  output.conformance = follows || leaf || demanded;
  if (follows) output.rounding = nearest.name;
  if (follows || demanded) {
    output.model = nearest.model;
    output.bits = nearest.bits;
    output.stages = nearest.stages;
  }
  for (const Member& member : members) {
    const bool admitted = follows ? &member == &nearest : !leaf && member.accurate;
    if (admitted) output.peers.push_back(member.model);
  }
  return words_of(nearest, members, follows);
}

}  // namespace plumb::harness
