// What our own float64 block gives to verdicts: the same runs judged with it, and by the recordings
// alone (--referee none). ci/referee makes reports/referee.txt of this.
#include <iostream>
#include <map>
#include <set>

#include "blocks/catalog.h"
#include "harness/replay/external.h"
#include "kernels/core/error.h"
#include "tests/catch.h"
#include "tests/faults/kills.h"
#include "tests/faults/referee_rows.h"

namespace plumb::harness::testing {
namespace {

bool is_green(Status status) { return status == Status::pass || status == Status::blind; }

struct Way {
  std::string device;
  bool fuse = true;
  std::optional<DType> dtype = {};  // another than the recording's
  bool external = false;            // as outputs of another program
  bool traced = true;               // false: as recorded by --spread 0
};

// On every device, fused and composed.
std::vector<Way> ways() {
  std::vector<Way> out;
  for (const std::string& device : referee_devices()) {
    out.push_back({device});
    out.push_back({device, false});
  }
  return out;
}

std::string name_of_way(const Way& way) {
  return text(way.external ? "outputs of " : "", way.traced ? "" : "untraced, ", way.device,
              way.fuse ? "" : " --no-fuse",
              way.dtype ? text(" --dtype ", name_of(*way.dtype)) : "");
}

Checkpoint without_trace(Checkpoint checkpoint) {
  checkpoint.operations.reset();
  for (auto& [name, output] : checkpoint.outputs) {
    output.spread.reset();
    output.truncated.reset();
    output.model.reset();
    output.members.clear();
    output.ill_conditioned.reset();
  }
  return checkpoint;
}

CheckpointResult external(const Case& c, const Outputs& outputs, bool alone) {
  CheckpointResult out;
  ExternalOptions options;
  options.margins = false;
  options.alone = alone;
  status_of_exception(out, c.checkpoint->params.where(), [&] {
    judge_external(*c.recording, *c.checkpoint, outputs, options, suite().oracle(), out);
  });
  return out;
}

std::vector<Case> all_cases() {
  std::vector<Case> out;
  for (const std::string& block : suite().blocks()) {
    if (!blocks::find_block(block)) continue;
    out.insert(out.end(), suite().cases(block).begin(), suite().cases(block).end());
  }
  return out;
}

std::string kind_of(const Case& c, const CheckpointResult& result) {
  return text(c.checkpoint->block, ' ', name_of(c.recording->dtype()), ": ",
              name_of(result.status));
}

void print_alarms(const Way& way) {
  int judged = 0, alarms[2] = {};
  std::map<std::string, int> kinds;
  const auto device = open_device(way.device, 1);
  for (Case c : all_cases()) {
    // An emulated kernel takes minutes for the sizes of real models.
    if (way.device.starts_with("emu") && c.recording->name().starts_with("border-")) continue;
    if (way.dtype == c.recording->dtype()) continue;
    ++judged;
    const Checkpoint bare = without_trace(*c.checkpoint);
    if (!way.traced) c.checkpoint = &bare;
    CheckpointResult results[2];
    for (const RefereeRule rule : kRules) {
      const bool alone = rule == RefereeRule::never;
      ReplayOptions options;
      options.fuse = way.fuse;
      options.explain = false;
      options.dtype = way.dtype;
      options.referee = rule;
      Replayed run =
          Replayer(*c.recording, *device, suite().oracle(), options).run_and_keep(*c.checkpoint);
      if (way.external && !run.outputs.empty()) run.result = external(c, run.outputs, alone);
      alarms[alone] += !is_green(run.result.status);
      results[alone] = std::move(run.result);
    }
    const bool alarm = !is_green(results[0].status), alarm_alone = !is_green(results[1].status);
    if (alarm == alarm_alone) continue;
    ++kinds[text(alarm ? "refereed" : "alone", " only: ", kind_of(c, results[alarm_alone]))];
  }
  print_row("right, not passed: " + name_of_way(way), judged, alarms[0], alarms[1]);
  print_kinds(kinds);
}

}  // namespace

// `-c "cpu --no-fuse"` runs one way of a suite.
TEST_CASE("right outputs with our own float64 block and without", "[.][referee-right]") {
  for (const Way& way : ways()) {
    DYNAMIC_SECTION(name_of_way(way)) { print_alarms(way); }
  }
}

TEST_CASE("another program's outputs with our own block and without", "[.][referee-external]") {
  for (Way way : ways()) {
    way.external = true;
    DYNAMIC_SECTION(name_of_way(way)) { print_alarms(way); }
  }
}

TEST_CASE("recordings without a trace with our own float64 block and without",
          "[.][referee-untraced]") {
  for (Way way : ways()) {
    way.traced = false;
    DYNAMIC_SECTION(name_of_way(way)) { print_alarms(way); }
  }
}

TEST_CASE("other dtypes with our own float64 block and without", "[.][referee-dtypes]") {
  for (Way way : ways()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      way.dtype = dtype;
      DYNAMIC_SECTION(name_of_way(way)) { print_alarms(way); }
    }
  }
}

TEST_CASE("recordings verified by the oracle device alone", "[.][referee-oracle]") {
  int judged = 0, refused = 0;
  std::map<std::string, int> kinds;
  for (const Case& c : all_cases()) {
    const CheckpointResult result = suite().verification(c, suite().oracle());
    ++judged;
    if (is_green(result.status)) continue;
    ++refused;
    ++kinds[kind_of(c, result)];
  }
  print_row("right, not passed: oracle, f64 and as recorded", judged, 0, refused);
  print_kinds(kinds);
}

// The block with a bug (harness/referee/mutants.h), judged in the device's place.
TEST_CASE("known bugs with our own float64 block and without", "[.][referee-bugs]") {
  const auto device = open_device("cpu", 1);
  int planted = 0, killed[2] = {};
  std::map<std::string, int> kinds;
  for (const Case& c : all_cases()) {
    std::map<std::string, double> margins[2];
    for (const RefereeRule rule : kRules) {
      ReplayOptions options;
      options.explain = false;
      options.margins = true;
      options.referee = rule;
      const CheckpointResult result =
          Replayer(*c.recording, *device, suite().oracle(), options).run(*c.checkpoint);
      for (const Margin& it : result.margins.value_or(std::vector<Margin>())) {
        margins[rule == RefereeRule::never][it.bug] = it.margin;
      }
    }
    for (const auto& [bug, refereed] : margins[0]) {
      const bool dies = !(refereed <= 1), dies_alone = !(margins[1][bug] <= 1);
      ++planted;
      killed[0] += dies;
      killed[1] += dies_alone;
      if (dies == dies_alone) continue;
      ++kinds[text(dies ? "refereed" : "alone", " only: ", c.checkpoint->block, ' ',
                   name_of(c.recording->dtype()), ": ", bug)];
    }
  }
  print_row("known bugs, killed", planted, killed[0], killed[1]);
  print_kinds(kinds);
}

TEST_CASE("faults with our own float64 block and without", "[.][referee-faults]") {
  int all = 0, killed[2][2] = {};
  std::map<std::string, int> kinds[2];
  std::set<std::string> wrong;
  for (const auto& faults : all_faults()) {
    for (const Fault& fault : faults) {
      ++all;
      bool died[2][2] = {};
      for (const RefereeRule rule : kRules) {
        const bool alone = rule == RefereeRule::never;
        suite().judge_by(rule);
        for (const bool common : {false, true}) {
          const Kills kills = common ? common_kills_of(fault, false) : kills_of(fault, false);
          died[common][alone] = kills.killed > 0;
          killed[common][alone] += kills.killed > 0;
          for (const std::string& text : kills.wrong) wrong.insert(text);
        }
      }
      for (const bool common : {false, true}) {
        if (died[common][0] == died[common][1]) continue;
        ++kinds[common][text(died[common][0] ? "refereed" : "alone", " only: ", fault.block, ": ",
                             fault.name)];
      }
    }
  }
  suite().judge_by(RefereeRule::affordable);
  print_row("faults of the device, killed", all, killed[0][0], killed[0][1]);
  print_kinds(kinds[0]);
  print_row("faults of device and oracle alike, killed", all, killed[1][0], killed[1][1]);
  print_kinds(kinds[1]);
  for (const std::string& text : wrong) std::cout << "    " << text << '\n';
}

}  // namespace plumb::harness::testing
