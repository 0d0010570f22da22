// moved_native CONSTANTS FIRST STEP RIGHT: the harness's verdicts on faults, on right kernels and
// on the known bugs of their blocks, each run once and judged with every constant moved that its
// verdict read. Prints lines of a kind, a constant, what it is multiplied by, and a name.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "blocks/catalog.h"
#include "harness/replay/checkpoint_run.h"
#include "tests/constants/moved.h"
#include "tests/faults/kills.h"

namespace plumb::harness::testing {
namespace {

using Move = std::pair<int, double>;

bool is_green(Status status) { return status == Status::pass || status == Status::blind; }

void print_read(std::set<int>& known) {
  for (int i = 0; i < moved::kMost; ++i) {
    if (!moved::used[i] || !known.insert(i).second) continue;
    std::cout << "read\t" << i << "\t2\t\nread\t" << i << "\t0.5\t" << std::endl;
  }
}

// A block on recorded operands, that ran.
class Ran {
 public:
  Ran(const Recording& recording, const Checkpoint& checkpoint, Device& device,
      const ReplayOptions& options)
      : run_(recording, checkpoint, device.name(), options) {
    run_.prepare();
    run_.execute(device);
  }

  CheckpointResult judged(const Move& by = {-1, 1}) const {
    moved::move(by.first, by.second);
    CheckpointRun again = run_;
    again.judge(suite().oracle());
    moved::move(-1, 1);
    return again.result();
  }
  bool is_green(const Move& by) const { return testing::is_green(judged(by).status); }

 private:
  CheckpointRun run_;
};

std::set<Move> every_move(int constants) {
  std::set<Move> out;
  for (int i = 0; i < constants; ++i) out.insert({{i, 2}, {i, 0.5}});
  return out;
}

// With constants as they are; moved::used are those that it read.
CheckpointResult as_it_is(const Ran& ran) {
  static std::set<int> known;
  std::fill(std::begin(moved::used), std::end(moved::used), false);
  CheckpointResult out = ran.judged();
  print_read(known);
  return out;
}

std::set<Move> moves_of_used(int constants) {
  std::set<Move> out = every_move(constants);
  std::erase_if(out, [](const Move& by) { return !moved::used[by.first]; });
  return out;
}

void print(const char* kind, const std::string& name, const std::set<Move>& moves) {
  for (const auto& [constant, factor] : moves) {
    std::cout << kind << '\t' << constant << '\t' << factor << '\t' << name << std::endl;
  }
}

// Moves with which no checkpoint shows the fault, of those with which one did not yet.
void judge_fault(const Fault& fault, int constants) {
  ReplayOptions options;
  options.explain = false;
  FaultyDevice device(suite().device(), fault.hooks);
  std::set<Move> unseen = every_move(constants);
  bool killed = false;
  for (const Case& c : suite().cases(fault.block)) {
    if (fault.narrow_only && size_of(c.recording->dtype()) != 2) continue;
    Checkpoint other = *c.checkpoint;
    if (fault.numbers && !fault.numbers(other.params)) continue;
    const int64_t hits = device.ops().hits();
    const Ran ran(*c.recording, other, device, options);
    if (!fault.numbers && device.ops().hits() == hits) continue;
    if (is_green(as_it_is(ran).status)) continue;
    killed = true;
    const std::set<Move> used = moves_of_used(constants);
    std::erase_if(unseen, [&](const Move& by) { return !used.contains(by) || !ran.is_green(by); });
    if (unseen.empty()) break;
  }
  const std::string name = fault.block + ": " + fault.name;
  std::cout << (killed ? "fault" : "never") << "\t-1\t1\t" << name << std::endl;
  if (killed) print("missed", name, unseen);
}

// Known bugs that show.
std::set<std::string> shown(const CheckpointResult& result) {
  std::set<std::string> out;
  for (const Margin& it : result.margins.value_or(std::vector<Margin>())) {
    if (!it.passes()) out.insert(it.bug);
  }
  return out;
}

// Whether a known bug is less than sixteen limits off: no other passes with one constant moved.
bool has_near_bug(const CheckpointResult& result) {
  const std::vector<Margin> bugs = result.margins.value_or(std::vector<Margin>());
  return std::any_of(bugs.begin(), bugs.end(),
                     [](const Margin& it) { return !it.passes() && it.margin < 16; });
}

void judge_right(const std::string& block, size_t most, int constants) {
  ReplayOptions options;
  options.explain = false;
  size_t count = 0;
  for (const Case& c : suite().cases(block)) {
    if (count == most) break;
    options.margins = true;
    const Ran ran(*c.recording, *c.checkpoint, suite().device(), options);
    const CheckpointResult before = as_it_is(ran);
    if (!is_green(before.status)) continue;
    ++count;
    const std::string name = c.recording->name() + ' ' + c.checkpoint->id;
    const std::set<std::string> bugs = shown(before);
    options.margins = has_near_bug(before);
    std::cout << "right\t-1\t1\t" << name << std::endl;
    for (const std::string& bug : bugs)
      std::cout << "fault\t-1\t1\t" << name << ": " << bug << '\n';
    for (const Move& by : moves_of_used(constants)) {
      const CheckpointResult after = ran.judged(by);
      if (!is_green(after.status)) print("alarm", name, {by});
      if (!options.margins) continue;
      const std::set<std::string> still = shown(after);
      for (const std::string& bug : bugs) {
        if (!still.contains(bug)) print("missed", name + ": " + bug, {by});
      }
    }
  }
}

}  // namespace

int run(int constants, size_t first, size_t step, size_t right) {
  size_t at = 0;
  for (const std::vector<Fault>& faults : all_faults()) {
    for (const Fault& fault : faults) {
      if (at++ % step == first) judge_fault(fault, constants);
    }
  }
  for (const std::string& block : suite().blocks()) {
    if (at++ % step == first && blocks::find_block(block)) judge_right(block, right, constants);
  }
  return 0;
}

}  // namespace plumb::harness::testing

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const auto number = [&](int i) { return static_cast<size_t>(std::atoll(argv[i])); };
  return plumb::harness::testing::run(static_cast<int>(number(1)), number(2), number(3), number(4));
}
