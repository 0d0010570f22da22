// Faults that the device has in common with the judge: a parameter that is wrong in the recording,
// which both read, and an op that is wrong in the oracle device, too. Whatever the judge computes
// itself shares them; only what transformers computed does not. Each must be seen all the same,
// fused and composed.
#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <optional>
#include <set>

#include "blocks/catalog.h"
#include "tests/catch.h"
#include "tests/faults/kills.h"
#include "tests/faults/parameter_edits.h"
#include "tests/faults/referee_rows.h"

namespace plumb::harness::testing {
namespace {

using Outputs = std::map<std::string, Tensor>;

// The float64 block on a checkpoint's operands; nothing where it refuses.
std::optional<Outputs> float64_block(const Case& c, const HostOperands& operands) {
  const blocks::BlockEntry* block = blocks::find_block(c.checkpoint->block);
  try {
    return execute(*block, *c.checkpoint, operands, suite().oracle(), {OpSet().set(), 0xff})
        .outputs;
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool same_values(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) return false;
  if (a.dtype() != DType::f64) {
    return std::equal(a.data<char>(), a.data<char>() + a.bytes(), b.data<char>());
  }
  double largest = 0, off = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const double x = a.data<double>()[i], y = b.data<double>()[i];
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    off = std::max(off, std::isfinite(x - y) ? std::fabs(x - y) : INFINITY);
  }
  return off <= kLimits.float64_relative * largest;
}

bool same_outputs(const Outputs& a, const Outputs& b) {
  return std::all_of(a.begin(), a.end(),
                     [&](const auto& it) { return same_values(it.second, b.at(it.first)); });
}

bool is_green(Status status) { return status == Status::pass || status == Status::blind; }

// One way to run a block.
struct Way {
  const char* device;
  bool fuse;
  bool all;  // the checkpoints of all parameters; else the first of each model and dtype
};
constexpr Way kWays[] = {
    {"cpu", true, true}, {"cpu", false, true}, {"emu:32", true, false}, {"emu:32", false, false}};

std::string name_of_way(const Way& way) {
  return std::string(way.device) + (way.fuse ? "" : " --no-fuse");
}

// What became of the edits of one block.
struct Tally {
  int edits = 0, refused = 0, failed = 0, unseen = 0;
  std::map<std::string, int> blind;  // by parameter: the float64 block gives the same
  std::vector<std::string> passed;   // wrongly
};

// A figure about the tensors: no block reads it, and limits take what the operands give. Where
// the checkpoint's own operands give it (sdpa), another figure is refused; none is as good.
bool is_figure(const std::string& parameter) { return parameter.ends_with("max_abs_score"); }

bool must_be_seen(const Case& c, const ParameterEdit& edit) {
  if (!is_figure(edit.parameter)) return true;
  const bool absent = edit.change == "null" || edit.change == "removed";
  return c.checkpoint->block == "sdpa" && !absent;
}

void run_edit(Tally& tally, const Case& c, const ParameterEdit& edit, const HostOperands& operands,
              const Outputs& right, Device& device, bool fuse) {
  Checkpoint changed = *c.checkpoint;
  changed.params = edit.params;
  const Case wrong{c.recording, &changed};
  ++tally.edits;
  if (const auto outputs = float64_block(wrong, operands);
      outputs && same_outputs(right, *outputs)) {
    ++tally.blind[edit.parameter];
    if (!is_figure(edit.parameter)) return;
  }
  ReplayOptions options;
  options.fuse = fuse;
  options.explain = false;
  options.repeat = 1;
  changed.params.rewind();
  options.referee = suite().rule();
  CheckpointResult result = Replayer(*c.recording, device, suite().oracle(), options).run(changed);
  if (suite().alone() && is_green(result.status)) {
    result = suite().verification(wrong, suite().oracle());
  }
  if (result.status == Status::fail) ++tally.failed;
  else if (!is_green(result.status)) ++tally.refused;
  else if (must_be_seen(c, edit))
    tally.passed.push_back(
        text(c.recording->name(), ' ', c.checkpoint->id, ": ", edit.parameter, ' ', edit.change));
}

// The model of a recording: "llama-a1" of "llama-a1/decode-bf16".
std::string model_of(const Recording& recording) {
  return recording.name().substr(0, recording.name().find('/'));
}

// The first checkpoint with these parameters in this dtype, or of this model.
std::vector<Case> distinct_cases(const std::string& block, bool all) {
  std::set<std::string> known;
  std::vector<Case> out;
  for (const Case& c : suite().cases(block)) {
    const auto& outputs = c.checkpoint->outputs;
    const bool sampled = std::any_of(outputs.begin(), outputs.end(),
                                     [](const auto& it) { return it.second.sampled.has_value(); });
    // An emulated kernel takes minutes for the sizes of real models.
    if (sampled || (!all && c.recording->name().starts_with("border-"))) continue;
    const std::string words = text(name_of(c.recording->dtype()), ' ',
                                   all ? words_of(c.checkpoint->params) : model_of(*c.recording));
    if (known.insert(words).second) out.push_back(c);
  }
  return out;
}

Tally tally_of(const std::string& block, const Way& way) {
  Tally out;
  const auto device = open_device(way.device, 1);
  for (const Case& c : distinct_cases(block, way.all)) {
    const std::vector<ParameterEdit> edits = parameter_edits(c.checkpoint->params);
    if (edits.empty()) continue;
    const HostOperands operands = read_operands(*c.recording, *c.checkpoint, DType::f64);
    const auto right = float64_block(c, operands);
    if (!right) continue;
    for (const ParameterEdit& edit : edits) {
      run_edit(out, c, edit, operands, *right, *device, way.fuse);
    }
  }
  return out;
}

// Why the float64 block may give the same on some checkpoints. What is not here must be seen.
const std::map<std::string, std::string>& blind_parameters() {
  static const std::map<std::string, std::string> reasons = {
      {"window", "as long as the keys, or there is none"},
      {"causal", "a query behind all keys sees them all"},
      {"query_offset", "no key is between the old and the new border"},
      {"key_offset", "no key is between the old and the new border"},
      {"max_abs_score", "a figure: limits are of what the operands give"},
      {"rotary", "whether there are cos and sin among the inputs says it, too"},
      {"adapters", "whether their weights are there says it, too"},
      {"call", "numbers the use of a shared block, whose weights are recorded by name"},
      {"block", "names the shared block, whose weights are recorded"},
      {"seen", "the buffers still hold the window's tokens, or are full"},
      {"max_length", "the buffers' own length decides"},
      {"value", "no element is masked"},
      {"dt_min", "no step of time is that short"},
      {"factor", "the rope type's formula does not use it here"},
      {"length", "within the length from which the frequencies change"},
      {"max_position", "the rope type's formula does not use it here"},
      {"original_max_position", "the same list of factors is chosen"},
      {"short_factor", "the long factors are chosen at this length"},
      {"long_factor", "the short factors are chosen at this length"},
      {"beta_fast", "no frequency is between the old and the new border"},
      {"beta_slow", "no frequency is between the old and the new border"},
      {"chunk_size", "chunks of a scan are one sum, whatever their length"},
  };
  return reasons;
}

std::string last_name(const std::string& parameter) {
  return parameter.substr(parameter.find_last_of('.') + 1);
}

// Every edit is killed, or the block does not depend on the parameter.
void require_all_seen(const Way& way, int least) {
  INFO(name_of_way(way));
  int edits = 0;
  for (const std::string& block : suite().blocks()) {
    if (!blocks::find_block(block)) continue;
    const Tally tally = tally_of(block, way);
    edits += tally.edits;
    INFO(block << ": " << tally.edits << " edits, passed " << tally.passed.size());
    for (const std::string& passed : tally.passed) FAIL_CHECK(passed);
    for (const auto& [parameter, count] : tally.blind) {
      INFO(parameter << ": " << count << " edits change nothing in float64");
      CHECK(blind_parameters().contains(last_name(parameter)));
    }
  }
  CHECK(edits > least);
}

}  // namespace

// A test case for each way: ctest runs them side by side.
TEST_CASE("parameter faults are killed on cpu") { require_all_seen(kWays[0], 10000); }
TEST_CASE("parameter faults are killed on cpu, composed") { require_all_seen(kWays[1], 10000); }
TEST_CASE("parameter faults are killed on emu:32") { require_all_seen(kWays[2], 1000); }
TEST_CASE("parameter faults are killed on emu:32, composed") { require_all_seen(kWays[3], 1000); }

TEST_CASE("common faults are killed in the oracle device, too") {
  for (const auto& faults : all_faults()) {
    for (const Fault& fault : faults) {
      INFO(fault.block << ": " << fault.name);
      const Kills kills = common_kills_of(fault, false);
      for (const std::string& wrong : kills.wrong) FAIL_CHECK(wrong);
      CHECK(kills.killed > 0);
    }
  }
}

// `faults_test "[trust]"` prints how many faults are killed, and those that pass.
TEST_CASE("count of killed faults", "[.][trust]") {
  int all = 0, alone = 0, common = 0;
  for (const auto& faults : all_faults()) {
    for (const Fault& fault : faults) {
      const Kills in_device = kills_of(fault, false), in_both = common_kills_of(fault, false);
      ++all;
      alone += in_device.killed > 0;
      common += in_both.killed > 0;
      for (const Kills& kills : {in_device, in_both}) {
        if (kills.killed > 0) continue;
        std::cout << fault.block << ": " << fault.name << ": passes in " << kills.reached << '\n';
      }
    }
  }
  std::cout << alone << " of " << all << " are killed in the device\n"
            << common << " of " << all << " are killed in the device and the oracle alike\n";
}

// `faults_test "[parameters]"` prints what became of every block's edits.
TEST_CASE("table of changed parameters", "[.][parameters]") {
  for (const Way& way : kWays) {
    std::cout << name_of_way(way) << "\n  " << std::left << std::setw(20) << "block" << std::right
              << std::setw(8) << "edits" << std::setw(8) << "fail" << std::setw(9) << "refused"
              << std::setw(7) << "blind" << std::setw(8) << "passed\n";
    for (const std::string& block : suite().blocks()) {
      if (!blocks::find_block(block)) continue;
      const Tally tally = tally_of(block, way);
      if (tally.edits == 0) continue;
      int blind = 0;
      for (const auto& [parameter, count] : tally.blind) blind += count;
      std::cout << "  " << std::left << std::setw(20) << block << std::right << std::setw(8)
                << tally.edits << std::setw(8) << tally.failed << std::setw(9) << tally.refused
                << std::setw(7) << blind << std::setw(7) << tally.passed.size() << '\n';
      for (const auto& [parameter, count] : tally.blind) {
        const auto reason = blind_parameters().find(last_name(parameter));
        std::cout << "      blind: " << parameter << " in " << count << ": "
                  << (reason == blind_parameters().end() ? "NOT EXPECTED" : reason->second) << '\n';
      }
      for (const std::string& passed : tally.passed)
        std::cout << "      passed: " << passed << '\n';
    }
  }
}

// The same edits with our own float64 block and by the recordings alone, which the oracle device
// verifies.
TEST_CASE("edits with our own float64 block and without", "[.][referee-edits]") {
  for (const Way& way : kWays) {
    DYNAMIC_SECTION(name_of_way(way)) {
      int edits = 0, passed[2] = {};
      std::map<std::string, int> kinds;
      for (const RefereeRule rule : kRules) {
        const bool alone = rule == RefereeRule::never;
        suite().judge_by(rule);
        edits = 0;
        for (const std::string& block : suite().blocks()) {
          if (!blocks::find_block(block)) continue;
          const Tally tally = tally_of(block, way);
          edits += tally.edits;
          passed[alone] += static_cast<int>(tally.passed.size());
          for (const std::string& words : tally.passed) ++kinds[words];
        }
      }
      suite().judge_by(RefereeRule::affordable);
      print_row("edited parameters, passed: " + name_of_way(way), edits, passed[0], passed[1]);
      print_kinds(kinds);
    }
  }
}

}  // namespace plumb::harness::testing
