// harness judge RECORDING OUTPUTS.safetensors: the verdict on what another program computed.
#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>

#include "harness/cli/cli.h"
#include "harness/cli/judge_chained.h"
#include "harness/io/escape.h"
#include "harness/io/printable.h"
#include "harness/io/safetensors.h"
#include "harness/recording/inside.h"
#include "harness/replay/external.h"
#include "harness/replay/replay.h"
#include "harness/report/console.h"
#include "harness/report/reports.h"
#include "harness/run/outcome.h"
#include "harness/trace/asked_contract.h"

namespace plumb::harness {
namespace {

struct JudgeArguments {
  std::string folder, outputs, points = "inferred";
  ReportPaths reports;
  Selection selection;
  std::string mode = "isolated";
  bool strict = false, verbose = false, no_margins = false, partial = false;
};

std::string repeat_command(const JudgeArguments& options, const Checkpoint& checkpoint) {
  return text("harness judge ", shell_word(options.folder), ' ', shell_word(options.outputs),
              " --checkpoint ", shell_word(checkpoint.id),
              options.points == JudgeArguments().points ? "" : " --contract " + options.points,
              options.no_margins ? " --no-margins" : "");
}

int judge_outputs(const JudgeArguments& options) {
  const auto start = std::chrono::steady_clock::now();
  const AskedContract asked = asked_contract(options.points);
  const Recording recording = open_recording(options.folder);
  require_recorded_with(recording, asked);
  const std::vector<size_t> selected = selected_checkpoints(options.selection, recording);
  require_some(selected, options.selection, recording);
  const SafetensorsFile file(File::open(options.outputs));
  const OutputsOfCheckpoints outputs = read_outputs(file, recording, selected);
  const auto oracle = open_device("oracle");
  Reports reports(options.reports);
  reports.begin(run_info(std::vector<std::string>()));

  std::vector<CheckpointResult> results;
  FirstFailures first_failures;
  for (size_t i : selected) {
    const Checkpoint& checkpoint = recording.checkpoints()[i];
    const auto given = outputs.find(checkpoint.id);
    if (given == outputs.end()) continue;
    const ExternalOptions how{asked.points, !options.no_margins};
    CheckpointResult result = external_result(recording, checkpoint);
    result.fixture = options.folder;
    result.again = repeat_command(options, checkpoint);
    status_of_exception(result, checkpoint.params.where(), [&] {
      judge_external(recording, checkpoint, given->second, how, *oracle, result);
    });
    reports.write(result);
    const bool failed = is_failure(result.status);
    if (failed && (first_failures.is_first(result) || options.verbose)) {
      std::cout << failure_text(result, colours_wanted(1));
    } else if (options.verbose) {
      std::cout << checkpoint_line(result, colours_wanted(1));
    }
    results.push_back(std::move(result));
  }
  Request request;
  request.strict = options.strict;
  request.checkpoints = std::ssize(selected);
  request.not_given = request.checkpoints - std::ssize(results);
  request.partial = options.partial;
  Outcome outcome = outcome_of(results, request);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  outcome.seconds = took.count();
  reports.finish(results, outcome);
  std::cout << closing_text(outcome, colours_wanted(1));
  return outcome.exit_code;
}

}  // namespace

Action add_judge(CLI::App& app) {
  auto options = std::make_shared<JudgeArguments>();
  app.add_option("recording", options->folder, "folder of the recording")->required();
  app.add_option("outputs", options->outputs,
                 "safetensors file; tensors named \"<checkpoint id>/<output name>\"")
      ->required();
  app.add_option(
         "--contract", options->points,
         "demands one way to round to 16 bits: eager (after every operation, as HuggingFace does), "
         "fused (once, at the output), flash (as flash attention does); inferred takes any that is "
         "no less accurate than the reference. What kernels may do inside is added by +, and is "
         "what the recording was made with: " +
             words_listed(inside_words()))
      ->capture_default_str();
  add_judge_mode(app, options->mode);
  add_narrowing(app, options->selection);
  app.add_option("--json", options->reports.json, "write JSON lines to this file");
  app.add_option("--junit", options->reports.junit, "write JUnit XML to this file");
  app.add_option("--markdown", options->reports.markdown, "write a Markdown summary to this file");
  app.add_flag("--strict", options->strict, "blind and unsupported checkpoints fail the run");
  app.add_flag("--partial", options->partial,
               "outputs of some of the selected checkpoints will do; without it the run is "
               "incomplete (exit code 4) unless all are given");
  app.add_flag("--no-margins", options->no_margins,
               "do not tell which known bugs would pass here: faster");
  app.add_flag("-v,--verbose", options->verbose,
               "a line per checkpoint, and every failure in full");
  return [options] {
    if (options->mode == "chained") {
      require(!options->partial && !options->no_margins, "--mode",
              "chained judges what outputs are given and tells no margins: leave out --partial and "
              "--no-margins");
      return judge_chained({options->folder, options->outputs, options->reports, options->selection,
                            options->points, options->strict, options->verbose});
    }
    require_known_blocks(options->selection);
    return judge_outputs(*options);
  };
}

}  // namespace plumb::harness
