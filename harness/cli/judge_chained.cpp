#include "harness/cli/judge_chained.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <map>

#include "harness/chain/external_chain.h"
#include "harness/cli/cli.h"
#include "harness/io/escape.h"
#include "harness/io/safetensors.h"
#include "harness/report/chain_text.h"
#include "harness/report/console.h"
#include "harness/run/outcome.h"
#include "harness/trace/asked_contract.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

ChainOutputs read_outputs(const std::string& path, const Recording& recording) {
  const SafetensorsFile file(File::open(path));
  std::map<std::string, Tensor> named;
  for (const auto& [name, entry] : file.entries()) named[name] = file.read(name);
  return chain_outputs_of(recording, named, file.file().name());
}

CheckpointResult judged(const ChainedJudgement& asked, const AskedContract& contract) {
  const Recording recording = open_recording(asked.folder);
  require_recorded_with(recording, contract);
  const ChainOutputs outputs = read_outputs(asked.outputs, recording);
  const auto oracle = open_device("oracle");
  CheckpointResult result = judge_chain(recording, outputs, *oracle);
  result.fixture = asked.folder;
  result.again = text("harness judge --mode chained ", shell_word(asked.folder), ' ',
                      shell_word(asked.outputs));
  return result;
}

}  // namespace

void add_judge_mode(CLI::App& app, std::string& mode) {
  app.add_option("--mode", mode,
                 "isolated: outputs of single checkpoints; chained: a whole model, its logits "
                 "(\"logits\", \"logits#<step>\") and, if you like, layers and caches "
                 "(\"<checkpoint id>/<output name>\")")
      ->check(CLI::IsMember({"isolated", "chained"}))
      ->capture_default_str();
}

int judge_chained(const ChainedJudgement& asked) {
  require(asked.selection.blocks.empty() && asked.selection.checkpoint.empty(), "--mode",
          "chained judges the whole model: leave out --block and --checkpoint");
  const AskedContract contract = asked_contract(asked.contract);
  require(!contract.points, "--contract",
          "chained judges a model by its errors, in which a rounding of outputs does not show: "
          "leave out ",
          asked.contract.substr(0, asked.contract.find('+')),
          ", or judge its blocks without --mode chained");
  const auto start = std::chrono::steady_clock::now();
  Reports reports(asked.reports);
  reports.begin(run_info(std::vector<std::string>()));
  const CheckpointResult result = judged(asked, contract);
  reports.write(result);
  std::cout << (result.chain && !is_failure(result.status)
                    ? chain_text(result, asked.verbose)
                    : failure_text(result, colours_wanted(1)));
  Request request;
  request.strict = asked.strict;
  Outcome outcome = outcome_of({result}, request);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  outcome.seconds = took.count();
  reports.finish({result}, outcome);
  std::cout << closing_text(outcome, colours_wanted(1));
  return outcome.exit_code;
}

}  // namespace plumb::harness
