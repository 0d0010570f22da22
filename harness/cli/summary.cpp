// harness summary: the last line of results that were put together from several files.
#include <CLI/CLI.hpp>
#include <iostream>

#include "harness/cli/cli.h"
#include "harness/report/results_json.h"
#include "harness/report/results_summary.h"

namespace plumb::harness {

Action add_summary(CLI::App& app) {
  auto results = std::make_shared<std::string>();
  app.add_option("results", *results,
                 "JSON lines: a run and its checkpoints, as `reports merge` puts them "
                 "together")
      ->required();
  return [results] {
    std::cout << summary_json(summarised(*results)) << '\n';
    return 0;
  };
}

}  // namespace plumb::harness
