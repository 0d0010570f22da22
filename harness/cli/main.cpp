// harness: replays recorded transformer blocks on devices and says how wrong each one is, and
// where.
#include <CLI/CLI.hpp>
#include <iostream>

#include "harness/cli/cli.h"
#include "harness/log.h"
#include "harness/printable.h"
#include "harness/status.h"
#include "kernels/error.h"

namespace plumb {
namespace {

constexpr const char* kFooter =
    "Exit codes: 0 all passed, 1 a checkpoint failed, 2 usage, 3 bad input, 4 unsupported,\n"
    "5 device error, 6 timeout, 7 internal error, 8 blind (nothing proved), 9 nondeterministic.";

int report(Status status, const std::exception& error) {
  std::cerr << "harness: " << error.what() << "\n";
  return exit_code(status);
}

struct Subcommand {
  const char* name;
  const char* summary;
  Action (*add)(CLI::App&);
  bool runs = false;  // devices: takes --plugin
};

constexpr Subcommand kSubcommands[] = {
    {"list", "list recordings and their checkpoints, or --blocks", add_list},
    {"devices", "list devices, usable or not, with the reason", add_devices, true},
    {"compare-devices", "the same checkpoints on several devices: which one stands alone",
     add_compare_devices, true},
    {"support", "what each device can verify: block x device x dtype", add_support, true},
    {"show", "show a recording, or one checkpoint's operands", add_show},
    {"export", "write a checkpoint's operands as plain safetensors + JSON", add_export},
    {"judge", "judge outputs that another program computed", add_judge},
    {"forward", "run a whole model: token ids to logits", add_forward, true},
    {"generate", "continue token ids with a whole model", add_generate, true},
    {"bench", "measure blocks of a model's shape, judged before and after", add_bench, true},
};

void add_plugins(CLI::App& app, std::vector<std::string>& files) {
  app.add_option("--plugin", files,
                 "a library of your own kernels (kernels/plugin.h); may be given again");
}

int run(int argc, char** argv) {
  CLI::App app("Replays recorded transformer blocks on a device and judges every result.",
               "harness");
  app.footer(kFooter);
  app.set_version_flag("--version", PLUMB_VERSION);
  std::string level = "warning", log_file;
  app.add_option("--log-level", level, "error, warning, info or debug")->capture_default_str();
  app.add_option("--log", log_file, "append the log to this file instead of stderr");
  const Action verify = add_verify(app);
  std::vector<std::string> plugins;
  add_plugins(app, plugins);
  std::vector<std::pair<CLI::App*, Action>> actions;
  for (const Subcommand& row : kSubcommands) {
    CLI::App* sub = app.add_subcommand(row.name, row.summary);
    actions.emplace_back(sub, row.add(*sub));
    if (row.runs) add_plugins(*sub, plugins);
  }
  app.require_subcommand(0, 1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  const auto parsed = log_level_from_name(level);
  require(parsed.has_value(), "--log-level", "unknown level \"", level,
          "\"; known: error, warning, info, debug");
  configure_log(*parsed, log_file);
  for (const std::string& file : plugins) load_plugin(file);
  for (const auto& [sub, action] : actions) {
    if (sub->parsed()) return action();
  }
  return verify();
}

}  // namespace
}  // namespace plumb

int main(int argc, char** argv) {
  using namespace plumb;
  remember_command(argc, argv);
  try {
    return run(argc, argv);
  } catch (const UsageError& error) {
    std::cerr << "harness: " << error.what() << "\n";
    return kExitUsage;
  } catch (const BadInput& error) {
    return report(Status::bad_input, error);
  } catch (const DeviceError& error) {
    return report(Status::device_error, error);
  } catch (const Unsupported& error) {
    return report(Status::unsupported, error);
  } catch (const std::exception& error) {
    return report(Status::internal_error, error);
  }
}
