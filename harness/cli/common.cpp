#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "harness/cli/cli.h"
#include "kernels/error.h"

namespace plumb {
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

std::string quoted(const std::string& word) {
  const bool plain =
      !word.empty() &&
      word.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%") ==
          std::string::npos;
  if (plain) return word;
  std::string out = "'";
  for (char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// The order in which auto looks for a device.
std::vector<std::string> auto_order(const std::string& priority) {
  if (!priority.empty()) return split_list(priority);
  const char* environment = std::getenv("PLUMB_DEVICES");
  if (environment && *environment) return split_list(environment);
  std::vector<std::string> out;
  for (const DeviceStatus& status : list_devices()) {
    if (status.contestant) out.push_back(status.name);
  }
  return out;
}

std::unique_ptr<Device> first_usable(const std::string& priority, int threads) {
  const std::vector<DeviceStatus> all = list_devices();
  std::string passed_over;
  for (const std::string& name : auto_order(priority)) {
    const auto status = std::find_if(all.begin(), all.end(), [&](const DeviceStatus& s) {
      return s.name == name || s.name == name.substr(0, name.find(':'));
    });
    require(status != all.end(), "device", "unknown device \"", name,
            "\" in the priority list; harness devices shows all");
    if (!status->usable) {
      passed_over += text(passed_over.empty() ? "; " : ", ", status->name, ": ", status->text);
      continue;
    }
    auto device = open_device(name, threads);
    std::cerr << "device: " << device->name() << " (" << device->describe() << ")" << passed_over
              << "\n";
    return device;
  }
  throw DeviceError(text("[device] auto found no usable device", passed_over));
}

}  // namespace

void remember_command(int argc, char** argv) {
  std::string& line = command_line();
  for (int i = 0; i < argc; ++i) line += (i ? " " : "") + quoted(argv[i]);
}

void add_selection(CLI::App& app, const std::shared_ptr<Selection>& selection) {
  app.add_option("--fixture", selection->fixtures,
                 "a recording or a folder of them; default: the project's own");
  app.add_option("--block", selection->block, "only this kind of block, e.g. sdpa");
  app.add_option("--checkpoint", selection->checkpoint,
                 "only this id, or ids in which this regular expression is found");
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> out;
  std::stringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) {
    if (!word.empty()) out.push_back(word);
  }
  return out;
}

std::vector<std::unique_ptr<Device>> open_devices(const std::string& devices,
                                                  const std::string& priority, int threads) {
  require(threads >= 0 && threads <= 1024, "--threads", threads,
          ", expected 0 (one per core) to 1024");
  std::vector<std::unique_ptr<Device>> out;
  for (const std::string& name : split_list(devices)) {
    out.push_back(name == "auto" ? first_usable(priority, threads) : open_device(name, threads));
    for (size_t i = 0; i + 1 < out.size(); ++i) {
      require(out[i]->name() != out.back()->name(), "--device", out[i]->name(), " is named twice");
    }
  }
  require(!out.empty(), "--device", "names no device; try auto, or see harness devices");
  return out;
}

DType parse_dtype(const std::string& name) {
  const auto dtype = dtype_from_name(name);
  require(dtype && is_floating(*dtype) && size_of(*dtype) >= 2, "--dtype", "unknown dtype \"", name,
          "\"; known: f32, f16, bf16, f64 (oracle only)");
  return *dtype;
}

RunInfo run_info(const std::vector<std::unique_ptr<Device>>& devices) {
  RunInfo out;
  out.command = command_line();
  out.version = PLUMB_VERSION;
  out.started = utc_now();
  out.environment = {{"compiler", __VERSION__},
                     {"cores", std::to_string(std::thread::hardware_concurrency())}};
  for (const auto& device : devices)
    out.devices.push_back(device->name() + ": " + device->describe());
  return out;
}

}  // namespace plumb
