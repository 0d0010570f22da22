// Which roundings the bits of a 16-bit output follow. A correct kernel may round where eager code
// does, or keep values in float32, or round as flash attention does: all of one block make a family
// of rounded models, and some programs' own rounding points belong to it, too.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/judge/conformance.h"
#include "harness/referee/oracle_runs.h"

namespace plumb::harness {

struct FamilyMember {
  RoundingWay way;
  Tensor model;
  Conformance found;      // of y, compared with the model
  SmallParts parts = {};  // the same
  bool accurate = false;  // its tensor error is at most 1.5 times the reference's

  bool fits() const { return found.passed && parts.fit(); }
};

// What a search found: the member that y follows best, and other members of interest. Empty where
// the output has too few elements for bits, or cannot be computed.
struct Following {
  std::vector<FamilyMember> members;  // eager, all kept, flash ..., then the best other one
  size_t best = 0;

  const FamilyMember& member() const { return members[best]; }
  // The model of flash attention, all keys at once; undefined where it was not tried.
  Tensor flash() const;
  // Whether y's bits are those of a member that is no less accurate than the reference.
  bool conforms() const { return !members.empty() && member().found.passed && member().accurate; }
};

// Searches until a member conforms: the roundings of eager code, none but the last, flash
// attention's by tile, then one point after the other. `demanded` restricts it to the members of
// one contract.
Following follow_roundings(const OutputCase& output, OracleRuns& runs, bool attention,
                           std::optional<RoundingPoints> demanded = {});

// The ways that need no search: eager code's, once at the output, and flash attention's.
std::vector<RoundingWay> usual_ways(const std::string& output, OracleRuns& runs, bool attention);

// "rounds like: weight before cast (0.02 % differ), not like: HF eager (26 %)", or "rounds like
// none: ..."; empty where nothing was searched.
std::string words_of(const Following& following);

}  // namespace plumb::harness
