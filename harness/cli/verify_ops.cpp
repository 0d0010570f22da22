// harness --suite ops: every op of a device on calls made from its row. No recording takes part.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <limits>

#include "harness/cli/verify.h"
#include "harness/io/escape.h"
#include "harness/ops/op_suite.h"
#include "harness/process/isolated.h"
#include "harness/report/console.h"
#include "harness/run/outcome.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

OpRunOptions run_options(const VerifyArguments& options) {
  OpRunOptions out{!options.no_fuse, options.repeat};
  if (!options.relations.empty()) {
    out.relations = options.relations == "bits" ? RowDemand::bits : RowDemand::contract;
    out.options += " --relations " + options.relations;
  }
  if (options.no_fuse) out.options += " --no-fuse";
  if (!options.impl.empty()) out.options += " --impl " + shell_word(options.impl);
  for (const LoadedPlugin& plugin : loaded_plugins()) {
    out.options += " --plugin " + shell_word(plugin.file);
  }
  return out;
}

class OpVerification {
 public:
  OpVerification(const VerifyArguments& options, std::vector<OpCase> cases)
      : options_(options), cases_(std::move(cases)), reports_(options.reports) {}

  int execute(const std::vector<std::string>& names, const Step& step) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::unique_ptr<Device>> devices;
    std::vector<std::string> described;
    Request request;
    for (const std::string& name : names) {
      step("opening " + name);
      devices.push_back(open_device(name, options_.threads));
      described.push_back(devices.back()->name() + ": " + devices.back()->describe());
      request.devices.push_back(devices.back()->name());
    }
    request.strict = options_.strict;
    request.checkpoints = std::ssize(cases_) * std::ssize(devices);
    if (!options_.dtype.empty()) request.dtypes = {options_.dtype};
    RunInfo info = run_info(described);
    info.request = request_facts(options_);
    info.request.emplace_back("selected", text(cases_.size()));
    if (!options_.relations.empty()) info.request.emplace_back("relations", options_.relations);
    if (options_.no_times) info.started.clear();
    reports_.begin(info);
    for (const auto& device : devices) {
      if (!run_on(*device, step)) break;
    }
    Outcome outcome = outcome_of(results_, request);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    outcome.seconds =
        options_.no_times ? std::numeric_limits<double>::quiet_NaN() : seconds.count();
    reports_.finish(results_, outcome);
    outcome.seconds = seconds.count();
    if (!options_.relations.empty()) std::cout << to_string(tally_) << "\n";
    std::cout << closing_text(outcome, colours_wanted(1)) << std::flush;
    return outcome.exit_code;
  }

 private:
  // False after the first failure, where that is to be the last.
  bool run_on(Device& device, const Step& step) {
    const auto oracle = open_referee(device);
    device.ops().force(options_.impl);
    OpRunOptions how = run_options(options_);
    how.tally = &tally_;
    for (const OpCase& op : cases_) {
      step(text(op.id(), " on ", device.name()));
      CheckpointResult result = run_op(op, device, *oracle, how);
      if (options_.no_times) result.seconds = std::numeric_limits<double>::quiet_NaN();
      reports_.write(result);
      const bool failed = is_failure(result.status);
      if (failed && (first_failures_.is_first(result) || options_.verbose)) {
        std::cout << failure_text(result, colours_wanted(1));
      } else if (options_.verbose) {
        std::cout << checkpoint_line(result, colours_wanted(1));
      }
      results_.push_back(std::move(result));
      if (failed && options_.fail_fast) return false;
    }
    return true;
  }

  const VerifyArguments& options_;
  const std::vector<OpCase> cases_;
  Reports reports_;
  FirstFailures first_failures_;
  std::vector<CheckpointResult> results_;
  RelationTally tally_;
};

}  // namespace

bool verifies_ops(const VerifyArguments& options) {
  const Selection& s = *options.selection;
  const bool named = std::ranges::find(s.suites, kOpSuite) != s.suites.end();
  if (!named && options.relations.empty()) return false;
  require(
      s.suites.size() == named && s.blocks.empty() && s.fixtures.empty(), "--suite", kOpSuite,
      " has no recordings: leave out --fixture, --block and other suites; --checkpoint selects");
  require(options.mode == "isolated" && !options.margins && options.shard.empty() &&
              options.journal.empty(),
          "--suite", kOpSuite,
          " has no recordings: leave out --mode, --margins, --shard and --journal");
  return true;
}

int verify_ops(const VerifyArguments& options) {
  std::optional<DType> dtype;
  if (!options.dtype.empty()) dtype = parse_dtype(options.dtype);
  std::vector<OpCase> cases = op_cases(options.selection->checkpoint, dtype);
  require(!cases.empty(), "--checkpoint", options.selection->checkpoint,
          " is found in no call of the ops; -v lists them");
  const std::vector<std::string> names = device_names(options.devices, options.priority);
  OpVerification run(options, std::move(cases));
  return run_isolated("--suite ops", options.worker,
                      [&](const Step& step) { return run.execute(names, step); });
}

}  // namespace plumb::harness
