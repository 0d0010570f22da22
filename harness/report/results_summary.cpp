#include "harness/report/results_summary.h"

#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "harness/io/json.h"
#include "harness/report/results_json.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

std::vector<std::string> strings(const JsonValue& list) {
  std::vector<std::string> out;
  for (const JsonValue item : list.items()) out.emplace_back(item.string());
  return out;
}

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> out;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    out.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return out;
}

Request request_of(const JsonValue& run) {
  run.at("schema").integer(kResultsSchema, kResultsSchema);
  const JsonValue asked = run.at("request");
  const auto value = [&](std::string_view name) {
    const auto found = asked.find(name);
    return found ? found->string() : std::string_view();
  };
  Request out;
  out.strict = !value("strict").empty();
  out.blocks = split(value("block"));
  out.dtypes = split(value("dtype"));
  for (const std::string& device : strings(run.at("devices"))) {
    out.devices.push_back(device.substr(0, device.find(": ")));
  }
  return out;
}

std::vector<OutputVerdict> outputs_of(const JsonValue& list) {
  std::vector<OutputVerdict> out;
  for (const JsonValue output : list.items()) {
    OutputVerdict& verdict = out.emplace_back();
    verdict.name = output.at("name").string();
    for (const JsonValue gate : output.at("gates").items()) {
      verdict.gates.push_back({std::string(gate.at("name").string()),
                               gate.at("statistic").number_or_name(),
                               gate.at("limit").number_or_name(),
                               {},
                               gate.at("passed").boolean(),
                               ""});
    }
  }
  return out;
}

// As much of a result as an outcome depends on. Of what has not failed that is little, and the same
// for many: a million of them are few.
CheckpointResult result_of(const JsonValue& line) {
  CheckpointResult out;
  const JsonValue status = line.at("status");
  const auto known = status_from_name(status.string());
  if (!known) status.fail('"', status.string(), "\" is no status");
  out.status = *known;
  out.reason = line.at("reason").string();
  out.block = line.at("block").string();
  out.checkpoint = line.at("checkpoint").string();
  out.recording = line.at("recording").string();
  out.device = line.at("device").string();
  out.dtype = line.at("dtype").string();
  out.looser = strings(line.at("looser_contracts"));
  out.again = line.at("again").string();
  out.outputs = outputs_of(line.at("outputs"));
  if (const auto bug = line.find("known_bug"); bug && !bug->is_null()) {
    out.known_bug =
        KnownBugFound{std::string(bug->at("bug").string()), bug->at("differ").number_or_name(),
                      bug->at("ratio").number_or_name(), ""};
  }
  if (const JsonValue chain = line.at("chain"); !chain.is_null()) out.chain.emplace();
  out.features = strings(line.at("features"));
  out.blind_to = strings(line.at("blind_to"));
  return out;
}

class Results {
 public:
  void add(CheckpointResult&& result) {
    if (!is_failure(result.status)) {
      const auto [place, is_new] =
          kinds_.try_emplace({result.status, result.block, result.device, result.dtype,
                              result.reason, result.features, result.blind_to, result.looser},
                             all_.size());
      if (!is_new) {
        ++times_[place->second];
        return;
      }
    }
    all_.push_back(std::move(result));
    times_.push_back(1);
  }
  Outcome outcome(const Request& request) const { return outcome_of(all_, request, times_); }

 private:
  using Words = std::vector<std::string>;
  std::map<
      std::tuple<Status, std::string, std::string, std::string, std::string, Words, Words, Words>,
      size_t>
      kinds_;
  std::vector<CheckpointResult> all_;
  std::vector<int64_t> times_;
};

}  // namespace

Outcome summarised(const std::filesystem::path& results) {
  std::ifstream file(results);
  require<BadInput>(file.is_open(), "summary", results.string(), ": cannot be read");
  std::optional<Request> request;
  Results all;
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    const auto document =
        JsonDocument::parse(text(results.string(), ':', ++number), std::move(line));
    const JsonValue root = document->root(), type = root.at("type");
    if ((type.string() == "run") == request.has_value()) {
      type.fail("is \"", type.string(), "\"; the first line, and no other, has to be a run");
    }
    if (type.string() == "run") request = request_of(root);
    else if (type.string() == "checkpoint") all.add(result_of(root));
    else if (type.string() != "summary")
      type.fail("is \"", type.string(), "\", expected checkpoint");
  }
  require<BadInput>(request.has_value() && !file.bad(), "summary", results.string(),
                    ": has no line that could be read");
  Outcome out = all.outcome(*request);
  out.seconds = std::numeric_limits<double>::quiet_NaN();
  return out;
}

}  // namespace plumb::harness
