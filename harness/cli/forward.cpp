// harness forward: logits of token ids by a whole model.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "harness/chain/chain.h"
#include "harness/cli/cli.h"
#include "harness/cli/model_options.h"
#include "harness/report/chain_text.h"
#include "harness/report/console.h"
#include "harness/report/reports.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

struct ForwardArguments {
  ModelOptions model;
  std::string out;
  int64_t keep = 0;
  int64_t top = 5;
  int64_t chunk = 0;
};

// Opened before the process that could crash is made: what has no place is refused at once, and
// nothing half written stays.
struct Files {
  explicit Files(const ForwardArguments& options) : json("--json", options.model.json) {
    if (!options.out.empty()) logits.emplace(options.out);
  }

  ReportFile json;
  std::optional<AtomicFile> logits;
};

struct Candidate {
  int64_t id;
  double logit;
};

// The largest logits of a row, largest first; of equal ones the smaller id.
std::vector<Candidate> largest(const Tensor& logits, int64_t row, int64_t count) {
  const int64_t vocabulary = logits.dim(-1);
  const char* values = logits.data<char>() + row * vocabulary * size_of(logits.dtype());
  std::vector<Candidate> all;
  for (int64_t id = 0; id < vocabulary; ++id) {
    all.push_back({id, load(logits.dtype(), values + id * size_of(logits.dtype()))});
  }
  const auto end = all.begin() + std::min(count, vocabulary);
  std::partial_sort(all.begin(), end, all.end(), [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  });
  all.erase(end, all.end());
  return all;
}

// Whole, or a number of tokens at a time: all logits, [B, T', V].
Tensor run_chunks(OpenedModel& opened, int64_t chunk, int64_t keep, const Step& step) {
  const std::string where = " on " + opened.device->name();
  step("the tokens" + where);
  if (chunk == 0) return opened.inference.forward(opened.tokens, keep);
  const auto total = static_cast<int64_t>(opened.tokens[0].size());
  const auto batch = static_cast<int64_t>(opened.tokens.size());
  const int64_t kept = keep > 0 ? std::min(keep, total) : total;
  const Tensor out = host_tensor(opened.dtype, {batch, kept, opened.inference.vocabulary()});
  for (int64_t begin = 0; begin < total; begin += chunk) {
    const int64_t end = std::min(total, begin + chunk);
    step(text("tokens ", begin, " to ", end - 1, where));
    TokenRows part;
    for (const auto& row : opened.tokens) part.emplace_back(row.begin() + begin, row.begin() + end);
    const Tensor logits = opened.inference.forward(part, 0);
    const int64_t first = std::max(begin, total - kept);  // of those that are wanted
    if (first >= end) continue;
    for (int64_t b = 0; b < batch; ++b) {
      const Tensor from = logits.slice(0, b, b + 1).slice(1, first - begin, end - begin);
      const Tensor to =
          out.slice(0, b, b + 1).slice(1, first - (total - kept), end - (total - kept));
      std::copy_n(from.data<char>(), from.bytes(), to.data<char>());
    }
  }
  return out;
}

// The recording's own run, layer by layer against its chained oracle.
int run_recorded(const ForwardArguments& options, const Step& step) {
  const auto folder = find_model(options.model.model);
  const Recording recording = Recording::open(folder);
  ReplayOptions replay;
  if (!options.model.dtype.empty()) replay.dtype = parse_dtype(options.model.dtype);
  replay.fuse = !options.model.no_fuse;
  replay.impl = options.model.impl;
  replay.threads = options.model.threads;
  replay.fixture = folder.string();
  step("the recording on " + options.model.device);
  const auto devices = open_devices(options.model.device, "", options.model.threads);
  require(devices.size() == 1, "--device", "names ", devices.size(),
          " devices; a model runs on one");
  const auto oracle = open_device("oracle");
  const CheckpointResult result = run_chain(recording, *devices[0], *oracle, replay);
  std::cout << (result.chain && !is_failure(result.status)
                    ? chain_text(result, true)
                    : failure_text(result, colours_wanted(1)));
  return exit_code(result.status);
}

int run(const ForwardArguments& options, Files& files, const Step& step) {
  if (options.model.tokens.empty()) return run_recorded(options, step);
  OpenedModel opened(options.model, 0, step);
  const auto start = std::chrono::steady_clock::now();
  const Tensor logits = run_chunks(opened, options.chunk, options.keep, step);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;

  files.json.write(model_json(opened));
  const int64_t kept = logits.dim(1);
  for (int64_t b = 0; b < logits.dim(0); ++b) {
    const std::vector<Candidate> top = largest(logits, (b + 1) * kept - 1, options.top);
    nlohmann::ordered_json line = {{"type", "top"}, {"batch", b}, {"ids", {}}, {"logits", {}}};
    std::cout << "sequence " << b << ", next token:";
    for (const Candidate& candidate : top) {
      std::cout << "  " << candidate.id << " (" << std::setprecision(6) << candidate.logit << ")";
      line["ids"].push_back(candidate.id);
      line["logits"].push_back(candidate.logit);
    }
    std::cout << "\n";
    files.json.write(line.dump());
  }
  files.json.commit();
  if (files.logits) write_safetensors(*files.logits, {{"logits", logits}});
  std::cerr << opened.device->name() << " " << name_of(opened.dtype) << ": " << opened.tokens.size()
            << " x " << opened.tokens[0].size() << " tokens in " << std::setprecision(3)
            << taken.count() << " s\n";
  files.json.require_whole();
  return 0;
}

}  // namespace

Action add_forward(CLI::App& app) {
  auto options = std::make_shared<ForwardArguments>();
  add_model_options(app, options->model);
  app.get_option("--tokens")
      ->required(false)
      ->description(
          "ids 1,2,3, or a file with one sequence per line; left out: a chained "
          "recording's own run, with the figures of every layer");
  app.add_option("--out", options->out,
                 "write the logits [batch, token, vocab], safetensors; padding has some, too");
  app.add_option("--logits-to-keep", options->keep, "only of the last tokens; 0: of all")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--chunk", options->chunk, "so many tokens at a time; 0: all at once")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--top", options->top, "how many candidates to show")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  return [options] {
    Files files(*options);
    return run_isolated("forward", options->model.worker,
                        [&](const Step& step) { return run(*options, files, step); });
  };
}

}  // namespace plumb::harness
