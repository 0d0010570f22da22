// What is said of a command line that is not understood.
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace plumb::harness {

// Says what is wrong, and what may have been meant; --help and --version print what they ask for.
// The exit code.
int explain(const CLI::App& app, const CLI::ParseError& error);

// Throws UsageError for a recording that is none and is spelt nearly as a subcommand.
void require_recordings(const CLI::App& app, const CLI::App& command);

}  // namespace plumb::harness
