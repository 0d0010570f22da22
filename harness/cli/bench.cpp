// harness bench: how fast blocks of a model's shape are, if they are right.
#include <CLI/CLI.hpp>
#include <iostream>
#include <set>

#include "harness/bench/report.h"
#include "harness/cli/bench_model.h"
#include "harness/cli/cli.h"
#include "harness/process/isolated.h"
#include "harness/report/reports.h"
#include "harness/report/results_json.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

struct BenchArguments {
  std::string block = "all", device = "auto", shape, dtype = "bf16", json, model;
  int64_t tokens = 0, context = 0, steps = ModelBenchOptions().steps;
  int threads = 0;
  std::string impl;
  bool no_fuse = false;
  BenchOptions bench;
  WorkerOptions worker;
};

std::vector<BenchCase> selected_cases(const BenchArguments& options, const BenchShape& shape,
                                      const BenchSizes& sizes) {
  std::vector<BenchCase> out;
  const std::vector<std::string> wanted = split_list(options.block);
  std::set<std::string> found;
  std::string known;
  for (BenchCase& one : bench_cases(shape, sizes)) {
    const bool single = one.block == "ops" || one.block == "products";
    if (!single) known += text(known.empty() ? "" : ", ", one.name);
    bool selected = false;
    for (const std::string& name : wanted) {
      const bool of_all = name == "all" && !single;
      if (!of_all && name != one.block && name != one.name) continue;
      selected = true;
      found.insert(name);
    }
    if (selected) out.push_back(std::move(one));
  }
  for (const std::string& name : wanted) {
    require(found.count(name) > 0, "--block", "nothing to measure for \"", name,
            "\" at this shape; known: all, ops, products, ", known);
  }
  require(!out.empty(), "--block", "names nothing; known: all, ops, products, ", known);
  return out;
}

int run_model(const BenchArguments& options, const Step& step) {
  require(options.context == 0 && options.block == "all", "--model",
          "goes without --block and --context, which are for single blocks");
  ModelBenchRequest request{options.model,   options.shape,    options.device,
                            options.dtype,   options.impl,     options.json,
                            options.threads, !options.no_fuse, ModelBenchOptions()};
  request.bench.steps = options.steps;
  if (options.tokens > 0) request.bench.tokens = options.tokens;
  step("the model on " + options.device);
  return bench_model(request);
}

int run(const BenchArguments& options, const Step& step) {
  if (!options.model.empty()) return run_model(options, step);
  constexpr int64_t kDefaultTokens = 4096;
  const BenchShape& shape = find_bench_shape(options.shape);
  const int64_t tokens = options.tokens ? options.tokens : kDefaultTokens;
  const BenchSizes sizes{tokens, options.context ? options.context : tokens,
                         parse_dtype(options.dtype)};
  require(sizes.context >= sizes.tokens, "--context", "is ", sizes.context,
          " keys in all, fewer than --tokens ", sizes.tokens);
  BenchOptions bench = options.bench;
  bench.fuse = !options.no_fuse;
  const std::vector<BenchCase> cases = selected_cases(options, shape, sizes);
  ReportFile json("--json", options.json);
  step("opening " + options.device);
  const auto devices = open_devices(options.device, "", options.threads);
  require(devices.size() == 1, "--device", "names ", devices.size(),
          " devices; a benchmark runs on one");
  Device& device = *devices[0];
  device.ops().force(options.impl);
  const auto oracle = open_device("oracle");

  json.write(
      run_json(run_info(std::vector<std::string>{device.name() + ": " + device.describe()})));
  step("copy and matrix product on " + device.name());
  const Ceilings ceilings = measure_ceilings(device, sizes.dtype);
  json.write(ceilings_json(device, sizes.dtype, ceilings));
  std::vector<BenchResult> results;
  std::vector<Status> statuses;
  for (const BenchCase& one : cases) {
    std::cerr << one.name << "\n";
    step(one.name + " on " + device.name());
    results.push_back(run_bench(one, shape, sizes, device, *oracle, ceilings, bench));
    statuses.push_back(results.back().status);
    json.write(bench_json(results.back(), device, ceilings));
  }
  json.commit();
  std::cout << device.name() << ": " << device.describe() << "\n"
            << shape.name << ", " << sizes.tokens << " tokens, " << sizes.context << " keys, "
            << name_of(sizes.dtype) << "\n"
            << bench_table(results, ceilings);
  const int code = run_exit_code(statuses, false);
  if (code == 0) json.require_whole();
  return code;
}

}  // namespace

Action add_bench(CLI::App& app) {
  auto options = std::make_shared<BenchArguments>();
  std::string shapes;
  for (const BenchShape& shape : bench_shapes())
    shapes += text(shapes.empty() ? "" : ", ", shape.name);
  app.add_option("--block", options->block,
                 "blocks, cases of them (linear.q_proj), or all: a,b; ops: single ops")
      ->capture_default_str();
  app.add_option("--device", options->device, "one device, as harness devices names them")
      ->capture_default_str();
  app.add_option("--shape", options->shape, shapes);
  app.add_option("--model", options->model,
                 "a whole model: random, with weights of the shape, or a folder as for forward");
  app.add_option("--tokens", options->tokens,
                 "new tokens per call (default 4096); of a model's prompt (default 128)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--steps", options->steps, "of a model: single tokens timed behind the prompt")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--context", options->context, "keys in all; 0: as many as tokens")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24));
  add_dtype(app, options->dtype, "f32, f16 or bf16; default: bf16");
  app.add_option("--repeat", options->bench.batches, "timed batches of calls, at most")
      ->capture_default_str()
      ->check(CLI::Range(3, 100000));
  app.add_option("--seconds", options->bench.seconds, "time per case, which may end it earlier")
      ->capture_default_str()
      ->check(between(0, 3600));
  app.add_option("--threads", options->threads, "CPU threads; 0: one per core")
      ->capture_default_str();
  app.add_flag("--no-fuse", options->no_fuse, "run fused ops as compositions");
  app.add_option("--impl", options->impl, "force implementations, as for verifying");
  app.add_option("--json", options->json, "write JSON lines to this file");
  options->worker.timeout = 3600;  // for a case, or a whole model
  add_worker_options(app, options->worker);
  return [options] {
    return run_isolated("bench", options->worker,
                        [&](const Step& step) { return run(*options, step); });
  };
}

}  // namespace plumb::harness
