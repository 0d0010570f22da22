// Implementations: which kernel of a device computes an op, chosen among those compiled in, by
// name.
//
// A name is op/kernel[.variant] in the words of the device's own files: "linear/gemv.m4",
// "sdpa/tiles.d128", "rms_norm/avx512". A variant is what the compiler made of one kernel: rows or
// head_dim it is unrolled for, 16-byte or single accesses, an instruction set.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops/op_id.h"

namespace plumb {

struct ImplName {
  std::string_view kernel, variant;  // of static lifetime; empty: the op has only one, unnamed
  bool operator==(const ImplName&) const = default;
};

struct Implementation {
  OpId op;
  ImplName name;
  std::string_view absent = {};  // why it cannot run on this machine, or empty
};

std::string to_string(OpId op, ImplName name);  // "linear/gemv.m4"

// Which implementations may run. Choosing one of an unrestricted op costs a test of one bit.
class ImplChoice {
 public:
  explicit ImplChoice(std::vector<Implementation> all) : all_(std::move(all)) {}

  const std::vector<Implementation>& all() const { return all_; }

  // From now on an op of which the regular expression is found in some but not all names runs only
  // those; the other ops are free. "" frees all. Throws UsageError when it is no regular
  // expression or is found in no name of this device.
  void force(const std::string& regex, const std::string& device);

  // Starts the choice for one call of an op.
  void begin(OpId op) {
    op_ = op;
    chosen_ = {};
  }
  // Whether the op that runs is restricted: then what is fastest does not matter, only what can.
  bool forced() const { return forced_[static_cast<size_t>(op_)]; }
  // Whether this one may compute the op that runs; notes it as the one that does.
  bool choose(ImplName name) {
    if (forced() && !allows(op_, name)) return false;
    chosen_ = name;
    return true;
  }
  // What a device within this one chose.
  void note(ImplName name) { chosen_ = name; }
  ImplName chosen() const { return chosen_; }
  // Whether --impl leaves it.
  bool allows(OpId op, ImplName name) const;
  // Whether the regular expression is found in any name.
  bool finds(const std::string& regex) const;

  // Throws Unsupported: none of those that --impl leaves can compute this case.
  [[noreturn]] void exhausted() const;
  // Throws std::logic_error when the op has run in an implementation that the device does not
  // declare.
  void require_declared() const;

 private:
  std::vector<Implementation> all_;
  std::vector<bool> allowed_;  // parallel to all_
  OpSet forced_;
  std::string regex_;
  OpId op_ = OpId::embedding;
  ImplName chosen_;
};

}  // namespace plumb
