// Every fault that any op may have is seen by the suite of ops, in every op that it changes.
#include "tests/faults/generic.h"

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <map>
#include <utility>

#include "harness/ops/op_suite.h"
#include "harness/ops/placed_sample.h"
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
  explicit OpSuite(OpId op, DTypes dtypes = kFloats) {
    for (const OpCase& it : cases_of(op)) {
      if (!dtypes.has(it.storage)) continue;
      const CheckpointResult right = run_op(it, *device_, *oracle_);
      INFO(it.id() << ": " << right.reason);
      CHECK((right.status == Status::pass || right.status == Status::blind));
      right_.push_back(outputs(it, *device_));
      cases_.push_back(it);
    }
  }

  // Until the first call that shows it, or on all of them.
  Seen of(const GenericFault& fault, bool all) {
    Seen out;
    FaultyDevice faulty(*device_, fault.hooks);
    for (size_t i = 0; i < cases_.size(); ++i) {
      if (!is_changed(i, faulty)) continue;  // most faults change few calls: these alone are judged
      const CheckpointResult result = run_op(cases_[i], faulty, *oracle_);
      const bool green = result.status == Status::pass || result.status == Status::blind;
      ++out.changed;
      if (green) continue;
      if (out.killed++ == 0) out.reason = result.reason;
      if (!all) break;
    }
    return out;
  }

 private:
  static std::vector<Tensor> outputs(const OpCase& it, Device& device) {
    std::vector<OpRecord> records;
    device.ops().set_fused(OpSet().set());
    PlacedSample placed(it.sample, device);
    placed.run(kNaNBytes, records);
    return placed.damage().empty() ? placed.outputs() : std::vector<Tensor>();
  }

  // Its bytes, or that it ends in an exception or writes elsewhere.
  bool is_changed(size_t i, Device& faulty) const try {
    return !std::ranges::equal(outputs(cases_[i], faulty), right_[i], [](auto& a, auto& b) {
      return a.defined() == b.defined() &&
             (!a.defined() || std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0);
    });
  } catch (const std::exception&) {
    return true;
  }

  std::unique_ptr<Device> device_ = open_device("cpu", 1), oracle_ = open_device("oracle", 1);
  std::vector<OpCase> cases_;
  std::vector<std::vector<Tensor>> right_;
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

// How many are.
int require_that_faults_are_seen(OpSuite& suite, OpId op, DType dtype = DType::f32) {
  int killed = 0;
  for (const GenericFault& fault : generic_faults(op)) {
    // Of two zeros it is one of them: -0 is as good as +0.
    const bool chooses = op == OpId::minimum || op == OpId::maximum;
    if (chooses && fault.name == "a and b swapped") continue;
    // Of a NaN alone: they are even. A sum of squares has other bits where x is stored otherwise.
    const bool even =
        op == OpId::square || op == OpId::cos || op == OpId::norm || op == OpId::sigmoid_backward;
    if (even && fault.name == "x: negated") continue;
    // One float32 number, of a sum over tokens: its last bit is within the limit.
    const bool is_loss = op == OpId::cross_entropy || op == OpId::linear_cross_entropy;
    if (is_loss && fault.name == "truncating store") continue;
    // What float64 gives is no other number there.
    if (dtype == DType::f64 && fault.name == "truncating store") continue;
    INFO(name_of(op) << ": " << fault.name);
    const Seen seen = suite.of(fault, false);
    CHECK((seen.changed == 0 || seen.killed > 0));
    killed += seen.killed > 0;
  }
  return killed;
}

void require_that_faults_are_seen(bool like_others) {
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<OpId>(i);
    if (is_like_another(op) != like_others) continue;
    OpSuite suite(op);
    const int killed = require_that_faults_are_seen(suite, op);
    INFO(name_of(op));
    CHECK(killed > 5);
  }
}

}  // namespace

TEST_CASE("every generic fault of every op is seen") { require_that_faults_are_seen(false); }

// Of whole numbers those that doubles hold: faults edit them as such.
TEST_CASE("every generic fault is seen in float64 and in whole numbers") {
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<OpId>(i);
    for (const DType dtype : {DType::f64, DType::i32}) {
      if (!row_of(op).dtypes.has(dtype)) continue;
      INFO(name_of(dtype));
      OpSuite suite(op, {dtype});
      require_that_faults_are_seen(suite, op, dtype);
    }
  }
}

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
