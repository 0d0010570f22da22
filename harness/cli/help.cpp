// harness help: the text of --help, of the program or of a subcommand.
#include <CLI/CLI.hpp>
#include <iostream>

#include "harness/cli/cli.h"
#include "harness/io/nearest_name.h"
#include "kernels/core/error.h"

namespace plumb::harness {

Action add_help(CLI::App& app) {
  auto name = std::make_shared<std::string>();
  app.add_option("command", *name, "a subcommand; default: the program itself");
  return [name, program = app.get_parent()] {
    if (name->empty()) {
      std::cout << program->help();
      return 0;
    }
    std::vector<std::string> known;
    for (const CLI::App* command : program->get_subcommands({})) {
      known.push_back(command->get_name());
      if (command->get_name() != *name) continue;
      std::cout << command->help();
      return 0;
    }
    throw UsageError(text("[help] no subcommand \"", *name, '"', did_you_mean(*name, known)));
  };
}

}  // namespace plumb::harness
