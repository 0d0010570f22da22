// Which listed faults a generic one is: `faults_test "[generic-table]"`. They are the same where
// their outputs are, on the first small checkpoints of the block, but for a share of what the fault
// changes: two ways to write a mistake round otherwise.
#include <cmath>
#include <iomanip>
#include <iostream>
#include <set>

#include "tests/catch.h"
#include "tests/faults/fault.h"
#include "tests/faults/generic.h"
#include "tests/faults/kills.h"
#include "tests/faults/wrong_ops.h"

namespace plumb::harness::testing {
namespace {

constexpr size_t kCases = 12;
constexpr int64_t kElements = 8192;  // of a case's outputs
constexpr double kShare = 0.05;

using Runs = std::vector<Values>;  // outputs of each case; empty where the fault was not reached

// The block's operands of some cases, for runs with one fault or another.
class Block {
 public:
  explicit Block(const std::string& name) {
    for (const Case& c : suite().cases(name)) {
      const HostOperands operands =
          read_operands(*c.recording, *c.checkpoint, c.recording->dtype());
      int64_t elements = 0;
      for (const OutputSpec& spec : operands.outputs) elements += spec.shape.numel();
      if (elements > kElements) continue;
      cases_.push_back(c);
      operands_.push_back(operands);
      if (cases_.size() == kCases) break;
    }
  }

  Runs run(const Hooks& hooks) {
    FaultyDevice device(suite().device(), hooks);
    const auto* entry = blocks::find_block(cases_.empty() ? "" : cases_[0].checkpoint->block);
    Runs out;
    for (size_t i = 0; i < cases_.size(); ++i) {
      out.emplace_back();
      const int64_t hits = device.ops().hits();
      try {
        const Execution made = execute(*entry, *cases_[i].checkpoint, operands_[i], device, {});
        if (device.ops().hits() == hits) continue;
        for (const auto& [name, t] : made.outputs) {
          const size_t begin = out.back().size();
          out.back().resize(begin + static_cast<size_t>(t.numel()));
          load_all(t.dtype(), t.raw(), t.numel(), out.back().data() + begin);
        }
      } catch (const std::exception&) {
        out.back() = {std::nan("")};
      }
    }
    return out;
  }
  // Ops that some case calls.
  std::set<OpId> ops() {
    std::set<OpId> out;
    for (int i = 0; i < kOpCount; ++i) {
      const auto op = static_cast<OpId>(i);
      const auto right = [](Call& c, const OpCall& call) { call.on(c.ops); };
      for (const Values& v : run({.op = op, .whole = right})) {
        if (!v.empty()) out.insert(op);
      }
    }
    return out;
  }

 private:
  std::vector<Case> cases_;
  std::vector<HostOperands> operands_;
};

double distance(const Values& a, const Values& b) {
  if (a.size() != b.size()) return INFINITY;
  double out = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    if (!same) out += (a[i] - b[i]) * (a[i] - b[i]);
  }
  return std::isnan(out) ? INFINITY : std::sqrt(out);
}

// How far `other` is from the fault, as a share of what that changes; of the worst case.
double share(const Runs& fault, const Runs& other, const Runs& right) {
  double worst = -1;
  for (size_t i = 0; i < fault.size(); ++i) {
    if (fault[i].empty()) continue;
    if (other[i].empty()) return INFINITY;
    const double off = distance(fault[i], other[i]), changes = distance(fault[i], right[i]);
    if (off == 0 && changes == 0) continue;
    worst = std::max(worst, off == 0 ? 0 : off / changes);
  }
  return worst < 0 ? INFINITY : worst;  // it changes nothing
}

}  // namespace

TEST_CASE("listed faults that are generic ones", "[.][generic-table]") {
  int all = 0, same = 0;
  for (const std::vector<Fault>& faults : own_faults()) {
    Block block(faults.front().block);
    std::vector<std::pair<std::string, Runs>> generic;
    Runs unfaulted;
    for (const OpId op : block.ops()) {
      const auto pass = [](Call& c, const OpCall& call) { call.on(c.ops); };
      const Runs reached = block.run({.op = op, .whole = pass});
      if (unfaulted.empty()) unfaulted = reached;
      for (size_t i = 0; i < reached.size(); ++i) {
        if (unfaulted[i].empty()) unfaulted[i] = reached[i];
      }
      for (const GenericFault& it : generic_faults(op)) {
        generic.emplace_back(text(name_of(op), ": ", it.name), block.run(it.hooks));
      }
    }
    for (const Fault& fault : faults) {
      ++all;
      const Runs made = fault.numbers ? Runs() : block.run(fault.hooks);
      std::string nearest;
      double least = INFINITY;
      for (const auto& [name, runs] : generic) {
        if (made.empty()) break;
        const double it = share(made, runs, unfaulted);
        if (it < least) nearest = name, least = it;
      }
      const bool found = least <= kShare;
      same += found;
      std::cout << std::left << std::setw(20) << fault.block << std::setw(52) << fault.name
                << std::setw(6) << (found ? "is" : "-") << std::setw(10) << least << nearest
                << std::endl;
    }
  }
  std::cout << same << " of " << all << " listed faults are generic ones\n";
}

}  // namespace plumb::harness::testing
