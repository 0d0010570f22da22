// harness tune: measures which way of a device's linear is fastest for a shape, and keeps it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <set>

#include "harness/bench/tune_linear.h"
#include "harness/cli/cli.h"
#include "harness/io/table.h"
#include "harness/process/isolated.h"
#include "harness/report/console.h"
#include "harness/report/reports.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

struct TuneArguments {
  std::string device = "auto", shape, tokens = "16,128,512,4096", dtype = "bf16";
  int threads = 0;
  bool bias = false, forget = false;
  BenchOptions bench;
  WorkerOptions worker;
};

// "512x14336x4096", or no such thing.
std::optional<LinearShape> parse_product(const std::string& word, DType dtype) {
  std::vector<int64_t> extents;
  const char *at = word.data(), *const end = at + word.size();
  while (true) {
    int64_t value = 0;
    const auto [stop, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < 1 || value > (int64_t{1} << 31)) return {};
    extents.push_back(value);
    if (stop == end) break;
    if (*stop != 'x' || stop + 1 == end) return {};
    at = stop + 1;
  }
  if (extents.size() != 3) return {};
  return LinearShape{dtype, extents[0], extents[1], extents[2], false};
}

std::vector<LinearShape> selected(const TuneArguments& options) {
  const DType dtype = parse_dtype(options.dtype);
  std::set<LinearShape> seen;
  std::vector<LinearShape> out;
  const auto add = [&](LinearShape shape) {
    shape.bias = options.bias;
    if (seen.insert(shape).second) out.push_back(shape);
  };
  std::vector<int64_t> tokens;
  for (const std::string& word : split_list(options.tokens)) {
    int64_t value = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    require(error == std::errc() && stop == word.data() + word.size() && value > 0 &&
                value <= (int64_t{1} << 20),
            "--tokens", '"', word, "\" is no number of tokens from 1 to 2^20");
    tokens.push_back(value);
  }
  for (const std::string& word : split_list(options.shape)) {
    if (const auto product = parse_product(word, dtype)) {
      add(*product);
      continue;
    }
    for (const int64_t rows : tokens) {
      for (const LinearShape& one : linears_of(find_bench_shape(word), rows, dtype)) add(one);
    }
  }
  require(!out.empty(), "--shape", "names nothing: a model's shape, or ROWSxOUTPUTSxINNER");
  return out;
}

std::string table_of(const std::vector<LinearTuning>& results) {
  Table table;
  for (const char* title : {"linear", "status", "first choice"}) table.add_column(title, false);
  table.add_column("us", true);
  table.add_column("fastest", false);
  for (const char* title : {"us", "gain", "ways"}) table.add_column(title, true);
  table.add_column("kept", false);
  std::string reasons;
  for (const LinearTuning& r : results) {
    const auto microseconds = [](double seconds) { return short_number(1e6 * seconds); };
    const bool measured = r.status == Status::pass;
    std::vector<Table::Cell> row;
    for (const std::string& words :
         {to_string(r.shape), std::string(name_of(r.status)), r.first,
          measured ? microseconds(r.first_seconds) : "", r.best,
          measured ? microseconds(r.best_seconds) : "", measured ? short_number(r.gain()) : "",
          text(r.ways), std::string(r.kept ? "yes" : "no")}) {
      row.push_back({words, ""});
    }
    table.add_row(std::move(row));
    if (!measured) reasons += text(to_string(r.shape), ": ", r.reason, "\n");
  }
  return table.to_text() + reasons;
}

int forget(const std::string& file) {
  const bool removed = !file.empty() && std::filesystem::remove(file);
  std::cout << (removed ? "removed " : "there is no ") << file << "\n";
  return 0;
}

int run(const TuneArguments& options, const Step& step) {
  step("opening " + options.device);
  const auto devices = open_devices(options.device, "", options.threads);
  require(devices.size() == 1, "--device", "names ", devices.size(), " devices; one is tuned");
  Device& device = *devices[0];
  const std::string file = TunedLinears::file_of(device.describe());
  if (options.forget) return forget(file);
  require(!file.empty(), "tune", "there is no folder to keep the result in: set PLUMB_CACHE");
  TunedLinears* tuned = device.ops().tuned_linears();
  require<Unsupported>(tuned, "tune", device.name(), " has one way to compute a linear");
  const std::vector<LinearShape> shapes = selected(options);
  const auto oracle = open_device("oracle");
  step("copy and matrix product on " + device.name());
  const Ceilings ceilings = measure_ceilings(device, shapes.front().dtype);
  std::vector<LinearTuning> results;
  std::vector<Status> statuses;
  for (const LinearShape& shape : shapes) {
    step("linear " + to_string(shape) + " on " + device.name());
    const LinearTuning& result =
        results.emplace_back(tune_linear(shape, device, *oracle, ceilings, options.bench));
    statuses.push_back(result.status);
    tuned->write(file, device.describe());  // what is measured stays, whatever comes behind it
    std::cerr << to_string(shape) << ": " << (result.kept ? result.best : "as before") << "\n";
  }
  std::cout << device.name() << ": " << device.describe() << "\n"
            << table_of(results) << "kept in " << file << "\n";
  return run_exit_code(statuses, false);
}

}  // namespace

Action add_tune(CLI::App& app) {
  auto options = std::make_shared<TuneArguments>();
  app.add_option("--shape", options->shape,
                 "models' shapes, whose linears are tuned, or ROWSxOUTPUTSxINNER: a,b");
  app.add_option("--tokens", options->tokens, "rows of a model's linears: a,b")
      ->capture_default_str();
  app.add_flag("--bias", options->bias, "of linears that have one");
  app.add_option("--device", options->device, "one device, as harness devices names them")
      ->capture_default_str();
  add_dtype(app, options->dtype, "f32, f16 or bf16; default: bf16");
  options->bench.seconds = 0.1;
  app.add_option("--seconds", options->bench.seconds, "time of one measurement of one way")
      ->capture_default_str()
      ->check(between(0, 3600));
  app.add_option("--threads", options->threads, "CPU threads; 0: one per core")
      ->capture_default_str();
  app.add_flag("--forget", options->forget, "remove what was kept for the device");
  options->worker.timeout = 3600;  // for a shape
  add_worker_options(app, options->worker);
  return [options] {
    return run_isolated("tune", options->worker,
                        [&](const Step& step) { return run(*options, step); });
  };
}

}  // namespace plumb::harness
