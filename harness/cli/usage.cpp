#include "harness/cli/usage.h"

#include <CLI/CLI.hpp>
#include <iostream>

#include "harness/cli/cli.h"
#include "harness/io/escape.h"
#include "harness/io/nearest_name.h"
#include "harness/recording/select.h"
#include "harness/run/outcome.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

const CLI::App& parsed_command(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : *parsed.back();
}

std::vector<std::string> options_of(const CLI::App& command) {
  std::vector<std::string> out;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) out.push_back("--" + name);
  }
  return out;
}

// The options among the words that nothing takes; where there is none, the words.
std::vector<std::string> unexpected(const CLI::App& app) {
  std::vector<std::string> words = app.remaining(true), options;
  for (const std::string& word : words) {
    if (word.size() > 1 && word[0] == '-') options.push_back(word.substr(0, word.find('=')));
  }
  return options.empty() ? words : options;
}

}  // namespace

int explain(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);
  const CLI::App& command = parsed_command(app);
  std::string said = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
    said.clear();
    for (const std::string& word : unexpected(app)) {
      said += text(said.empty() ? "" : "; ", command.get_display_name(), " does not take ",
                   terminal_text(word), did_you_mean(word, options_of(command)));
    }
  }
  std::cerr << "harness: " << said << "\nharness help"
            << (&command == &app ? "" : " " + command.get_name()) << " has all options\n";
  return kExitUsage;
}

void require_recordings(const CLI::App& app, const CLI::App& command) {
  const CLI::Option* recordings = command.get_option_no_throw("--fixture");
  if (!recordings) return;
  std::vector<std::string> known;
  for (const CLI::App* sub : app.get_subcommands({})) known.push_back(sub->get_name());
  for (const std::string& word : recordings->results()) {
    try {
      recording_folder(word);
      continue;
    } catch (const BadInput&) {  // says so itself where no command is meant
    }
    const auto meant = nearest_name(word, known);
    require(!meant, "harness", "has no command \"", terminal_text(word),
            "\", and no recording is called so; did you mean harness ", meant.value_or(""), "?");
  }
}

}  // namespace plumb::harness
