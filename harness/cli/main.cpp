// harness: replays recorded transformer blocks on devices and says how wrong each one is, and
// where.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>

#include "harness/cli/cli.h"
#include "harness/cli/usage.h"
#include "harness/io/log.h"
#include "harness/io/output_place.h"
#include "harness/io/printable.h"
#include "harness/judge/status.h"
#include "harness/process/interrupt.h"
#include "harness/process/isolated.h"
#include "harness/remote/remote_device.h"
#include "kernels/core/error.h"
#include "kernels/plugin/plugin_device.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace plumb::harness {
namespace {

// "0 pass, 1 fail, 2 usage, ...": of all statuses, and of bad usage.
std::string exit_codes() {
  std::map<int, std::string_view> names{{kExitUsage, "usage"}};
  for (int i = 0; i < kStatusCount; ++i) {
    const auto status = static_cast<Status>(i);
    names.emplace(exit_code(status), name_of(status));
  }
  std::string out;
  for (const auto& [code, name] : names) out += text(out.empty() ? "" : ", ", code, ' ', name);
  return out;
}

int report(Status status, const std::exception& error) {
  std::cerr << "harness: " << error.what() << "\n";
  return exit_code(status);
}

// A run whose words were lost does not end as a good one; the log has said so itself.
int checked_output(int code) {
  std::cout.flush();
  if (!std::cout.good()) std::cerr << "harness: [stdout] " << kOutputLost << "\n";
  const bool lost = !std::cout.good() || log_file_lost();
  return code == 0 && lost ? kExitUsage : code;
}

// Replays ask for tensors of the same sizes again and again. Memory that goes back to the system in
// between is cleared page by page each time: a third of the CPU time of a run.
void keep_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_ARENA_MAX, 1);  // others are heaps of 64 MB, which go back when they are empty
  mallopt(M_MMAP_MAX, 0);   // an array with a mapping of its own is cleared each time it is made
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

struct Subcommand {
  const char* name;
  const char* summary;
  Action (*add)(CLI::App&);
  bool runs = false;  // devices: takes --plugin
};

constexpr Subcommand kSubcommands[] = {
    {"verify", "replay recordings and judge them: what harness does without a command", add_verify,
     true},
    {"list", "list recordings and their checkpoints, or --blocks", add_list},
    {"devices", "list devices, usable or not, with the reason", add_devices, true},
    {"compare-devices", "the same checkpoints on several devices: which one differs",
     add_compare_devices, true},
    {"support", "what each device can verify: block x device x dtype", add_support, true},
    {"show", "show a recording, or one checkpoint's operands", add_show},
    {"export", "write a checkpoint's operands as plain safetensors + JSON", add_export},
    {"summary", "the summary of JSON lines that were put together", add_summary},
    {"judge", "judge outputs that another program computed", add_judge},
    {"forward", "run a whole model: token ids to logits", add_forward, true},
    {"generate", "continue token ids with a whole model", add_generate, true},
    {"plugin-flags", "what the compiler needs to build a plugin for a device", add_plugin_flags},
    {"bench", "measure blocks of a model's shape, judged before and after", add_bench, true},
    {"tune", "measure which way of a linear is fastest on a device, and keep it", add_tune, true},
    {"completion", "a script that completes words in bash or zsh", add_completion},
    {"help", "what a subcommand does, and its options", add_help},
};

struct Plugins {
  std::vector<std::string> files;
  bool looser_contracts = false;
};

void add_plugin_options(CLI::App& app, Plugins& plugins) {
  app.add_option("--plugin", plugins.files,
                 "a library of your own kernels (kernels/plugin.h); may be given again");
  app.add_flag("--looser-contracts", plugins.looser_contracts,
               "plugins may promise less than what they replace; verdicts say so");
}

// An option of a command as it was given; null: it was not, or there is none.
const CLI::Option* given(const CLI::App& command, const char* name) {
  const CLI::Option* option = command.get_option_no_throw(name);
  return option && option->count() > 0 ? option : nullptr;
}

WorkerOptions worker_options_of(const CLI::App& command) {
  WorkerOptions out;
  const CLI::Option* timeout = given(command, "--timeout");
  out.own_process = !given(command, "--no-worker");
  require(out.own_process || !timeout, "--timeout",
          "has no effect with --no-worker: this process has no supervisor; leave one of them out");
  if (timeout) out.timeout = timeout->as<double>();
  return out;
}

void check_impl(const CLI::App& command) {
  const CLI::Option* impl = given(command, "--impl");
  require(!impl || !impl->results().front().empty(), "--impl",
          "is empty; leave it out to let the device choose");
}

constexpr const char* kOutputs[] = {"--log",   "--journal",  "--json",
                                    "--junit", "--markdown", "--out"};

// Files that an option or an operand names and that are there.
void add_inputs(const CLI::App& command, std::vector<NamedFile>& files) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (std::find(std::begin(kOutputs), std::end(kOutputs), name) != std::end(kOutputs)) continue;
    for (const std::string& word : option->results()) {
      std::error_code no;
      if (std::filesystem::is_regular_file(word, no)) files.push_back({name, word});
    }
  }
}

// Before anything is opened: a file of two reports would be that of the last one alone, and one
// that is read would be lost.
void check_outputs(const CLI::App& app, const CLI::App& command) {
  std::vector<NamedFile> outputs, inputs;
  for (const char* name : kOutputs) {
    const CLI::Option* option = given(name == std::string_view("--log") ? app : command, name);
    if (option) outputs.push_back({name, option->results().front()});
  }
  add_inputs(app, inputs);
  if (&command != &app) add_inputs(command, inputs);
  require_different(outputs, inputs);
}

// What verifies does so without a command: its options in front of one would be lost.
void check_place(const CLI::App& app, const CLI::App& command) {
  if (&command == &app) return;
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    const bool of_all = name == "--log" || name == "--log-level" || name == "--plugin" ||
                        name == "--looser-contracts";
    require(option->count() == 0 || of_all, name.c_str(), "precedes ", command.get_name(),
            ", where it has no effect; put it after, if ", command.get_name(), " takes it");
  }
}

int run(int argc, char** argv) {
  CLI::App app("Replays recorded transformer blocks on a device and judges every result.",
               "harness");
  app.footer("Exit codes: " + exit_codes() + ".");
  app.set_version_flag("--version", PLUMB_VERSION);
  std::string level = "warning", log_file;
  app.add_option("--log-level", level, "error, warning, info or debug")->capture_default_str();
  app.add_option("--log", log_file, "append the log to this file instead of stderr");
  const Action verify = add_verify(app);
  Plugins plugins;
  add_plugin_options(app, plugins);
  std::vector<std::pair<CLI::App*, Action>> actions;
  for (const Subcommand& row : kSubcommands) {
    CLI::App* sub = app.add_subcommand(row.name, row.summary);
    actions.emplace_back(sub, row.add(*sub));
    if (row.runs) add_plugin_options(*sub, plugins);
  }
  app.require_subcommand(0, 1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return explain(app, error);
  }
  const CLI::App* command = &app;
  Action action = verify;
  for (const auto& [sub, its_action] : actions) {
    if (!sub->parsed()) continue;
    command = sub;
    action = its_action;
  }
  check_place(app, *command);
  check_impl(*command);
  require_recordings(app, *command);
  check_outputs(app, *command);
  const auto parsed = log_level_from_name(level);
  require(parsed.has_value(), "--log-level", "unknown level \"", level,
          "\"; known: error, warning, info, debug");
  configure_log(*parsed, log_file);
  allow_looser_contracts(plugins.looser_contracts);
  add_plugins(plugins.files, worker_options_of(*command));
  return action();
}

int program(int argc, char** argv) {
  keep_freed_memory();
  know_remote_devices();
  remember_command(argc, argv);
  try {
    return checked_output(run(argc, argv));
  } catch (const UsageError& error) {
    std::cerr << "harness: " << error.what() << "\n";
    return kExitUsage;
  } catch (const BadInput& error) {
    return report(Status::bad_input, error);
  } catch (const DeviceError& error) {
    return report(Status::device_error, error);
  } catch (const TimedOut& error) {
    return report(Status::timeout, error);
  } catch (const Interrupted& error) {
    std::cerr << "harness: " << error.what() << "\n";
    return 128 + interrupt();
  } catch (const Unsupported& error) {
    return report(Status::unsupported, error);
  } catch (const std::exception& error) {
    return report(Status::internal_error, error);
  }
}

}  // namespace
}  // namespace plumb::harness

int main(int argc, char** argv) { return plumb::harness::program(argc, argv); }
