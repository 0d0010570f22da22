#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <map>
#include <thread>

#include "harness/cli/cli.h"
#include "harness/io/escape.h"
#include "kernels/core/device_kinds.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

std::string& command_line() {
  static std::string line;
  return line;
}

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  char buffer[32];
  std::strftime(buffer, sizeof buffer, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return buffer;
}

// The order in which auto looks for a device.
std::vector<std::string> auto_order(const std::string& priority,
                                    const std::vector<DeviceStatus>& all) {
  if (!priority.empty()) return split_list(priority);
  const char* environment = std::getenv("PLUMB_DEVICES");
  if (environment && *environment) return split_list(environment);
  std::vector<std::string> out;
  for (const DeviceStatus& status : all) {
    if (status.contestant) out.push_back(status.name);
  }
  return out;
}

// "cuda:1" is the row of that name or, where there is none, the row "cuda" that says why.
bool is_named(const DeviceStatus& status, const std::string& name) {
  return status.name == name || status.name == name.substr(0, name.find(':'));
}

std::string first_usable(const std::string& priority) {
  const std::vector<DeviceStatus> all = probe_devices();
  std::string passed_over;
  for (const std::string& name : auto_order(priority, all)) {
    const auto status = std::find_if(all.begin(), all.end(),
                                     [&](const DeviceStatus& s) { return is_named(s, name); });
    require(status != all.end(), "device", "unknown device \"", name,
            "\" in the priority list; harness devices shows all");
    if (!status->usable) {
      passed_over += text(passed_over.empty() ? "; " : ", ", status->name, ": ", status->text);
      continue;
    }
    std::cerr << "device: " << name << " (" << status->text << ")" << passed_over << "\n";
    return name;
  }
  throw DeviceError(text("[device] auto found no usable device", passed_over));
}

void require_threads(int threads) {
  require(threads >= 0 && threads <= 1024, "--threads", threads,
          ", expected 0 (one per core) to 1024");
}

template <class T>
void require_new(const std::vector<std::unique_ptr<T>>& all) {
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    require(all[i]->name() != all.back()->name(), "--device", all[i]->name(), " is named twice");
  }
}

}  // namespace

void remember_command(int argc, char** argv) {
  std::string& line = command_line();
  for (int i = 0; i < argc; ++i) line += (i ? " " : "") + shell_word(argv[i]);
}

CLI::Validator between(double low, double high) {
  return CLI::Validator(
      [low, high](const std::string& word) {
        double value = 0;
        const bool inside = CLI::detail::lexical_cast(word, value) && value >= low && value <= high;
        return inside ? std::string() : text(word, " is not a number in [", low, ", ", high, "]");
      },
      text("in [", low, " - ", high, "]"));
}

void add_selection(CLI::App& app, const std::shared_ptr<Selection>& selection) {
  app.add_option("--fixture,recording", selection->fixtures,
                 "a recording or a folder of them; default: the project's own");
  app.add_option_function<std::string>(
         "--weights", [](const std::string& folder) { setenv("PLUMB_WEIGHTS", folder.c_str(), 1); },
         "where the model's own files are now, for recordings that refer to them")
      ->check(CLI::ExistingDirectory)
      ->option_text("FOLDER");
  add_narrowing(app, *selection);
}

void add_narrowing(CLI::App& app, Selection& selection) {
  app.add_option("--block", selection.blocks, "only blocks of these kinds, e.g. sdpa,linear")
      ->delimiter(',');
  app.add_option("--direction", selection.direction,
                 "only what blocks give, or only gradients of that (inspector record --backward)")
      ->check(CLI::IsMember({kForward, kBackward}));
  app.add_option("--suite", selection.suites,
                 "only blocks of these groups: components, caches; or ops: every op, "
                 "on calls made from its row in the op table")
      ->delimiter(',');
  app.add_option("--checkpoint", selection.checkpoint,
                 "only this id, or ids in which this regular expression is found");
}

void add_dtype(CLI::App& app, std::string& dtype, const std::string& about) {
  app.add_option("--dtype", dtype, about)
      ->transform(CLI::Validator(
          [](std::string& word) {
            static const std::map<std::string, std::string> torch = {
                {"float16", "f16"},   {"half", "f16"},    {"fp16", "f16"},
                {"bfloat16", "bf16"}, {"float32", "f32"}, {"float", "f32"},
                {"fp32", "f32"},      {"float64", "f64"}, {"double", "f64"}};
            const auto ours = torch.find(word.rfind("torch.", 0) == 0 ? word.substr(6) : word);
            if (ours != torch.end()) word = ours->second;
            return std::string();
          },
          ""));
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> out;
  std::stringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) {
    if (!word.empty()) out.push_back(word);
  }
  return out;
}

// Throws UsageError when a plugin is for none of the devices: nothing would run it. "emu" is
// "emu:32".
void require_plugins_run(const std::vector<std::string>& devices) {
  for (const LoadedPlugin& plugin : loaded_plugins()) {
    const bool runs = std::any_of(devices.begin(), devices.end(), [&](const std::string& name) {
      return plugin.device == name || plugin.device.rfind(name + ":", 0) == 0;
    });
    require(runs, "--plugin", plugin.file, " is for device ", plugin.device,
            ", which this run does not use: add --device ", plugin.device);
  }
}

std::vector<std::string> device_names(const std::string& devices, const std::string& priority) {
  std::vector<std::string> out;
  for (const std::string& name : split_list(devices)) {
    const bool of_a_command = !out.empty() && out.back().starts_with("exec:");
    if (of_a_command && name != "auto" && !is_device_kind(name)) {  // which may have commas
      out.back() += "," + name;
    } else {
      out.push_back(name == "auto" ? first_usable(priority) : name);
    }
  }
  require(!out.empty(), "--device", "names no device; try auto, or see harness devices");
  require_plugins_run(out);
  return out;
}

void add_worker_options(CLI::App& app, WorkerOptions& options) {
  app.add_option("--timeout", options.timeout,
                 "seconds after which work without a result is given up; 0: never")
      ->capture_default_str()
      ->check(between(0, 1e6));
  app.add_flag("!--no-worker", options.own_process,
               "run devices in this process: for debuggers; a crash then ends the run");
}

// An --impl that some of the devices have is said to those that have it.
void require_impl(const std::vector<std::unique_ptr<Worker>>& workers, const std::string& impl) {
  if (impl.empty()) return;
  std::string lacking;
  bool found = false;
  for (const auto& worker : workers) {
    found = found || worker->finds_impl();
    if (!worker->finds_impl()) lacking += (lacking.empty() ? "" : ",") + worker->name();
  }
  require(found, "--impl", '"', impl, "\" is found in no implementation of ", lacking,
          "; harness support --impl --device ", lacking, " lists them");
  if (lacking.empty()) return;
  std::cerr << "--impl \"" << impl << "\" is found in no implementation of " << lacking
            << ", which chooses freely\n";
}

std::vector<std::unique_ptr<Worker>> open_workers(const std::vector<std::string>& names,
                                                  int threads, const std::vector<Job>& jobs,
                                                  const WorkerOptions& options) {
  require_threads(threads);
  std::vector<std::unique_ptr<Worker>> out;
  for (const std::string& name : names) {
    const auto open = [name, threads] { return open_device(name, threads); };
    WorkerOptions of_worker = options;
    of_worker.threads = threads;
    out.push_back(std::make_unique<Worker>(name, open, jobs, of_worker));
    require_new(out);
  }
  if (!jobs.empty()) require_impl(out, jobs[0].options->impl);
  return out;
}

std::vector<std::unique_ptr<Device>> open_devices(const std::string& devices,
                                                  const std::string& priority, int threads) {
  require_threads(threads);
  std::vector<std::unique_ptr<Device>> out;
  for (const std::string& name : device_names(devices, priority)) {
    out.push_back(open_device(name, threads));
    require_new(out);
  }
  return out;
}

DType parse_dtype(const std::string& name) {
  const auto dtype = dtype_from_name(name);
  require(dtype && is_floating(*dtype) && size_of(*dtype) >= 2, "--dtype", "unknown dtype \"", name,
          "\"; known: f32, f16, bf16, f64 (oracle only)");
  return *dtype;
}

RunInfo run_info(std::vector<std::string> devices) {
  RunInfo out;
  out.command = command_line();
  out.version = PLUMB_VERSION;
  out.started = utc_now();
  out.environment = {{"compiler", __VERSION__},
                     {"build", PLUMB_BUILD_TYPE},
                     {"cores", std::to_string(std::thread::hardware_concurrency())}};
  out.devices = std::move(devices);
  return out;
}

}  // namespace plumb::harness
