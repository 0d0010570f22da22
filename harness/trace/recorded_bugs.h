// Planted bugs as the recording has them: which would pass, and which one a failure is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/judge/output_case.h"
#include "harness/recording/recording.h"
#include "harness/result/result.h"

namespace plumb::harness {

// How far an output has the values of a bug, at the positions that the bug is known by.
class Likeness {
 public:
  explicit Likeness(DType storage);

  // One of them: the bug's value, what came, what is right, how far a correct kernel may be off.
  void add(double bug, double y, double right, double allowed);
  // Whether the bug is what came.
  bool told() const;
  // Of the error, what the bug leaves unexplained.
  double share() const { return all_ > 0 ? left_ / all_ : 1; }
  KnownBugFound named(const std::string& bug) const;

 private:
  double rounding_;
  double nearest_ = 0;         // the largest of |y - bug| / allowed
  bool tells_ = false;         // some |right - bug| is more than roundings
  double left_ = 0, all_ = 0;  // sums of both squared
  bool numbers_ = false;       // the bug gives some: anything can be NaN everywhere
};

std::vector<Margin> recorded_margins(const Checkpoint& checkpoint);

// The bug whose values an output has at all recorded positions, within what correct kernels are
// off from their own model; of several the one that explains most. Nothing where these values are
// hardly the bug's own. `cases` and `verdicts` are of the same outputs, in order.
std::optional<KnownBugFound> recorded_bug(const Recording& recording, const Checkpoint& checkpoint,
                                          const std::vector<OutputCase>& cases,
                                          const std::vector<OutputVerdict>& verdicts);

}  // namespace plumb::harness
