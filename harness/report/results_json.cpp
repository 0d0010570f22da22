#include "harness/report/results_json.h"

#include <nlohmann/json.hpp>

#include "harness/io/json_line.h"

namespace plumb::harness {
namespace {

using Json = nlohmann::ordered_json;

Json failures_json(const std::vector<FailureGroup>& groups) {
  Json out = Json::array();
  for (const FailureGroup& it : groups) {
    out.push_back({{"status", std::string(name_of(it.status))},
                   {"block", it.block},
                   {"device", it.device},
                   {"dtype", it.dtype},
                   {"cause", it.cause},
                   {"checkpoints", it.checkpoints},
                   {"ratio", it.ratio},
                   {"recording", it.recording},
                   {"checkpoint", it.checkpoint},
                   {"reason", it.reason},
                   {"again", it.again}});
  }
  return out;
}

}  // namespace

std::string run_json(const RunInfo& run) {
  Json environment = Json::object();
  for (const auto& [name, value] : run.environment) environment[name] = value;
  Json request = Json::object();
  for (const auto& [name, value] : run.request) request[name] = value;
  return json_line(Json{{"type", "run"},
                        {"schema", kResultsSchema},
                        {"version", run.version},
                        {"command", run.command},
                        {"started", run.started},
                        {"environment", std::move(environment)},
                        {"devices", run.devices},
                        {"request", std::move(request)}});
}

std::string comparison_json(const Comparison& c) {
  std::vector<std::string> devices;
  Json results = Json::array(), look_at = Json::array(), pairs = Json::array();
  for (const CheckpointResult& r : c.results) {
    devices.push_back(r.device);
    results.push_back({{"device", r.device},
                       {"status", std::string(name_of(r.status))},
                       {"contract", r.contract}});
  }
  for (const size_t i : c.look_at) look_at.push_back(devices[i]);
  for (const Pair& p : c.pairs) {
    pairs.push_back({{"devices", {devices[p.a], devices[p.b]}},
                     {"agree", p.agree},
                     {"gate", p.worst.name},
                     {"output", p.output},
                     {"statistic", p.worst.statistic},
                     {"limit", p.worst.limit},
                     {"where", p.worst.where},
                     {"same_contract", p.same_contract},
                     {"elements", p.elements},
                     {"equal_bits", p.equal_bits}});
  }
  const CheckpointResult& first = c.results.front();
  return json_line(Json{{"type", "comparison"},
                        {"finding", std::string(name_of(c.finding))},
                        {"look_at", look_at},
                        {"words", c.words},
                        {"block", first.block},
                        {"checkpoint", first.checkpoint},
                        {"recording", first.recording},
                        {"fixture", first.fixture},
                        {"results", results},
                        {"pairs", pairs}});
}

std::string summary_json(const Outcome& outcome) {
  Json by_status = Json::object();
  for (int i = 0; i < kStatusCount; ++i) {
    const auto status = static_cast<Status>(i);
    by_status[std::string(name_of(status))] = outcome.counts[status];
  }
  Json blind = Json::array();
  for (const BlindFeature& it : outcome.blind) {
    blind.push_back(
        {{"block", it.block}, {"feature", it.feature}, {"blind", it.blind}, {"seen", it.seen}});
  }
  return json_line(Json{{"type", "summary"},
                        {"checkpoints", outcome.counts.total()},
                        {"counts", std::move(by_status)},
                        {"blind_features", std::move(blind)},
                        {"failures", failures_json(outcome.failures)},
                        {"missing", outcome.missing},
                        {"interrupted", outcome.interrupted},
                        {"exit_code", outcome.exit_code},
                        {"verdict", outcome.verdict},
                        {"seconds", outcome.seconds}});
}

}  // namespace plumb::harness
