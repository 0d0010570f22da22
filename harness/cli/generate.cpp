// harness generate: continues token ids with a whole model.
#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "harness/cli/cli.h"
#include "harness/cli/model_options.h"
#include "harness/model/sampling.h"
#include "harness/report/reports.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

struct GenerateArguments {
  ModelOptions model;
  Sampling sampling;
  int64_t most = 64;
  std::string stops;
  bool ignore_stops = false;
};

std::vector<int64_t> stop_tokens(const GenerateArguments& options, const ModelFolder& folder) {
  if (options.ignore_stops) return {};
  if (options.stops.empty()) return folder.stop_tokens();
  return read_tokens(options.stops)[0];
}

double rate(double tokens, double seconds) { return seconds > 0 ? tokens / seconds : 0; }

// How a GPU's launches came about.
std::string launches(const OpenedModel& opened) {
  if (!opened.device->counters()) return "";
  const std::string reason = opened.inference.why_eager();
  return reason.empty() ? ", launches replayed" : ", launches not replayed: " + reason;
}

int run(const GenerateArguments& options, ReportFile& json, const Step& step) {
  require(options.sampling.temperature > 0 ||
              (options.sampling.top_k == 0 && options.sampling.top_p == 1),
          "generate", "--top-k and --top-p need a --temperature above 0");
  OpenedModel opened(options.model, options.most, step);
  const std::string where = " on " + opened.device->name();
  step("the prompt" + where);
  const size_t rows = opened.tokens.size();
  int64_t tokens = 0;
  // One sequence appears as it is made, several at the end, a line each.
  const Generated made = generate(opened.inference, opened.tokens, options.most, options.sampling,
                                  stop_tokens(options, opened.folder), [&](size_t, int64_t id) {
                                    step(text("after ", ++tokens, " new tokens", where));
                                    if (rows == 1) std::cout << id << ' ' << std::flush;
                                  });
  if (rows == 1) {
    std::cout << "\n";
  } else {
    for (const auto& row : made.tokens) {
      for (const int64_t id : row) std::cout << id << ' ';
      std::cout << "\n";
    }
  }
  const double prompt = static_cast<double>(rows * opened.tokens[0].size()) -
                        static_cast<double>(std::accumulate(opened.padding.begin(),
                                                            opened.padding.end(), int64_t{0}));
  const double decoded = static_cast<double>(rows) * static_cast<double>(made.decoded_per_row);
  std::cerr << opened.device->name() << " " << name_of(opened.dtype) << ": prompt of " << prompt
            << " tokens in " << std::setprecision(3) << made.prompt_seconds << " s, then "
            << std::setprecision(4) << rate(decoded, made.decode_seconds) << " tokens/s"
            << launches(opened) << "\n";
  const nlohmann::ordered_json line = {
      {"type", "generated"},       {"tokens", made.tokens},
      {"prompt_tokens", prompt},   {"prompt_seconds", made.prompt_seconds},
      {"decoded_tokens", decoded}, {"decode_seconds", made.decode_seconds}};
  json.write(model_json(opened));
  json.write(line.dump());
  json.commit();
  json.require_whole();
  return 0;
}

}  // namespace

Action add_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateArguments>();
  add_model_options(app, options->model);
  app.add_option("--max-new,--max-new-tokens", options->most, "new tokens at most")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  app.add_option("--temperature", options->sampling.temperature, "0: greedy")
      ->capture_default_str()
      ->check(between(0, 100));
  app.add_option("--top-k", options->sampling.top_k, "only the k likeliest; 0: all")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--top-p", options->sampling.top_p, "only the likeliest that hold this share")
      ->capture_default_str()
      ->check(between(0, 1));
  app.add_option("--seed", options->sampling.seed, "of the draws")->capture_default_str();
  app.add_option("--stop", options->stops, "token ids that end a sequence: 1,2; default: eos");
  app.add_flag("--eager", options->model.eager,
               "queue every launch of every token; default: GPUs record a token's and replay them");
  app.add_flag("--ignore-stop", options->ignore_stops, "no token ends a sequence");
  return [options] {
    // Opened before the process that could crash is made, as for forward.
    ReportFile json("--json", options->model.json);
    return run_isolated("generate", options->model.worker,
                        [&](const Step& step) { return run(*options, json, step); });
  };
}

}  // namespace plumb::harness
