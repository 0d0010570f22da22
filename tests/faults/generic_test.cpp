// Every fault that any op may have is seen by the suite of ops, in every op that it changes.
#include "tests/faults/generic.h"

#include <iomanip>
#include <iostream>
#include <map>
#include <utility>

#include "harness/ops/op_suite.h"
#include "kernels/ops/table.h"
#include "tests/catch.h"

namespace plumb::harness::testing {
namespace {

struct Seen {
  int changed = 0;  // calls whose bytes it changes
  int killed = 0;   // of these
  std::string reason;
};

class OpSuite {
 public:
  explicit OpSuite(OpId op) {
    for (const OpCase& it : cases_of(op)) {
      const CheckpointResult right = run_op(it, *device_, *oracle_);
      INFO(it.id() << ": " << right.reason);
      CHECK((right.status == Status::pass || right.status == Status::blind));
      right_.push_back(right.output_sha256);
      cases_.push_back(it);
    }
  }

  // Until the first call that shows it, or on all of them.
  Seen of(const GenericFault& fault, bool all) {
    Seen out;
    FaultyDevice faulty(*device_, fault.hooks);
    for (size_t i = 0; i < cases_.size(); ++i) {
      const CheckpointResult result = run_op(cases_[i], faulty, *oracle_);
      const bool green = result.status == Status::pass || result.status == Status::blind;
      if (green && result.output_sha256 == right_[i]) continue;
      ++out.changed;
      if (green) continue;
      if (out.killed++ == 0) out.reason = result.reason;
      if (!all) break;
    }
    return out;
  }

 private:
  std::unique_ptr<Device> device_ = open_device("cpu", 1), oracle_ = open_device("oracle", 1);
  std::vector<OpCase> cases_;
  std::vector<std::string> right_;
};

// An elementwise op that differs from an earlier one of as many inputs in its formula alone.
bool is_like_another(OpId op) {
  const auto form = [](const OpRow& row) {
    return std::pair(row.operands.count, row.operands.operands[0].type);
  };
  if (!row_of(op).formula) return false;
  for (int i = 0; i < static_cast<int>(op); ++i) {
    const OpRow& other = row_of(static_cast<OpId>(i));
    if (other.formula && form(other) == form(row_of(op))) return true;
  }
  return false;
}

void require_that_faults_are_seen(bool like_others) {
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<OpId>(i);
    if (is_like_another(op) != like_others) continue;
    OpSuite suite(op);
    for (const GenericFault& fault : generic_faults(op)) {
      // Of two zeros it is one of them: -0 is as good as +0.
      const bool chooses = op == OpId::minimum || op == OpId::maximum;
      if (chooses && fault.name == "a and b swapped") continue;
      // Of a NaN alone: they are even. A sum of squares has other bits where x is stored otherwise.
      const bool even =
          op == OpId::square || op == OpId::cos || op == OpId::norm || op == OpId::sigmoid_backward;
      if (even && fault.name == "x: negated") continue;
      // One float32 number, of a sum over tokens: its last bit is within the limit.
      if (op == OpId::cross_entropy && fault.name == "truncating store") continue;
      INFO(name_of(op) << ": " << fault.name);
      const Seen seen = suite.of(fault, false);
      CHECK((seen.changed == 0 || seen.killed > 0));
    }
  }
}

}  // namespace

TEST_CASE("every generic fault of every op is seen") { require_that_faults_are_seen(false); }

TEST_CASE("every generic fault is seen, of elementwise ops like others") {
  require_that_faults_are_seen(true);
}

// `faults_test "[generic]"` prints how many of the calls that a fault changes show it.
TEST_CASE("table of generic faults", "[.][generic]") {
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<OpId>(i);
    OpSuite suite(op);
    for (const GenericFault& fault : generic_faults(op)) {
      const Seen seen = suite.of(fault, true);
      std::cout << std::left << std::setw(18) << name_of(op) << std::setw(46) << fault.name
                << std::right << std::setw(3) << seen.killed << " of " << std::setw(2)
                << seen.changed << "  " << seen.reason.substr(0, seen.reason.find('\n')) << '\n';
    }
  }
}

}  // namespace plumb::harness::testing
