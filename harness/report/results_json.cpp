#include "harness/report/results_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;

Json number(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  return x;
}

std::string line(const Json& object) {
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json gates(const std::vector<Gate>& all) {
  Json list = Json::array();
  for (const Gate& gate : all) {
    Json derivation = Json::object();
    for (const Term& term : gate.derivation)
      derivation[std::string(term.name)] = number(term.value);
    list.push_back({{"name", gate.name},
                    {"statistic", number(gate.statistic)},
                    {"limit", number(gate.limit)},
                    {"derivation", std::move(derivation)},
                    {"passed", gate.passed},
                    {"where", gate.where}});
  }
  return list;
}

Json counts(const ClassCounts& n) {
  return {{"finite", n.finite},
          {"plus_infinity", n.plus_infinity},
          {"minus_infinity", n.minus_infinity},
          {"nan", n.nan}};
}

Json classes(const ClassCheck& check) {
  return {{"y", counts(check.y)},
          {"reference", counts(check.reference)},
          {"rounded", counts(check.rounded)},
          {"wrong", check.wrong},
          {"first_wrong", check.first_wrong},
          {"padded_wrong", check.padded_wrong},
          {"first_padded_wrong", check.first_padded_wrong},
          {"range_hazards", check.range_hazards},
          {"unknown_oracle", check.unknown_oracle}};
}

Json statistics_json(const Statistics& s) {
  Json families = Json::array();
  for (const GroupStatistic& family : s.families) {
    families.push_back({{"family", std::string(family.family)},
                        {"value", number(family.value)},
                        {"normalised", number(family.normalised)},
                        {"worst", family.worst},
                        {"worst_value", number(family.worst_value)},
                        {"worst_kappa", number(family.worst_kappa)}});
  }
  return {{"E_T", number(s.tensor)},
          {"M_E", number(s.element)},
          {"M_E_at", s.element_at},
          {"gain", number(s.gain)},
          {"families", std::move(families)}};
}

Json informative(const Details& details) {
  Json values = Json::object();
  for (const NamedValue& value : details.values) {
    values[std::string(value.name)] = {{"value", number(value.value)}, {"at", value.at}};
  }
  Json groups = Json::array();
  for (const WorstGroup& group : details.worst_groups) {
    groups.push_back({{"family", std::string(group.family)},
                      {"group", group.name},
                      {"value", number(group.value)}});
  }
  return {{"values", std::move(values)},
          {"octaves", details.octaves},
          {"ulps", details.ulps},
          {"worst_groups", std::move(groups)}};
}

Json conformance_json(const std::optional<Conformance>& c) {
  if (!c) return nullptr;
  return {{"n", c->n},          {"differ", c->differ}, {"set_aside", c->set_aside},
          {"first", c->first},  {"q", number(c->q)},   {"limit", number(c->limit)},
          {"passed", c->passed}};
}

Json where_json(const std::optional<Localisation>& where) {
  if (!where) return nullptr;
  Json maps = Json::array();
  for (const ErrorMap& map : where->maps) {
    Json energy = Json::array();
    for (const double value : map.energy) energy.push_back(number(value));
    maps.push_back({{"name", map.name}, {"energy", std::move(energy)}});
  }
  return {{"region", where->region},
          {"share", number(where->share)},
          {"worst", where->worst},
          {"maps", std::move(maps)}};
}

Json output_json(const OutputVerdict& output) {
  return {{"name", output.name},
          {"status", std::string(name_of(output.status))},
          {"reason", output.reason},
          {"gates", gates(output.gates)},
          {"classes", classes(output.classes)},
          {"statistics", statistics_json(output.statistics)},
          {"reference_statistics", statistics_json(output.reference)},
          {"recorded_error", number(output.recorded_error)},
          {"golden_suspect", output.golden_suspect},
          {"ill_conditioned", output.ill_conditioned},
          {"rounding", output.rounding},
          {"floors",
           {{"accumulation", number(output.floors.accumulation)},
            {"norm", number(output.floors.norm)},
            {"element", number(output.floors.element)}}},
          {"informative", informative(output.details)},
          {"conformance", conformance_json(output.conformance)},
          {"where", where_json(output.where)}};
}

Json margins_json(const std::optional<std::vector<Margin>>& margins) {
  if (!margins) return nullptr;
  Json out = Json::object();
  for (const Margin& margin : *margins) out[margin.bug] = number(margin.margin);
  return out;
}

Json passing_bugs(const std::optional<std::vector<Margin>>& margins) {
  if (!margins) return nullptr;
  Json out = Json::array();
  for (const Margin& margin : *margins) {
    if (margin.passes()) out.push_back(margin.bug);
  }
  return out;
}

Json known_bug_json(const std::optional<KnownBugFound>& found) {
  if (!found) return nullptr;
  return {{"bug", found->bug},
          {"differ", number(found->differ)},
          {"ratio", number(found->ratio)},
          {"rounds", found->rounds}};
}

Json id_or_null(const std::string& id) { return id.empty() ? Json() : Json(id); }

Json chain_json(const std::optional<ChainReport>& chain) {
  if (!chain) return nullptr;
  Json rows = Json::array();
  for (const ChainRow& row : chain->rows) {
    rows.push_back({{"checkpoint", row.checkpoint},
                    {"block", row.block},
                    {"output", row.output},
                    {"step", row.step},
                    {"isolated", number(row.isolated)},
                    {"isolated_limit", number(row.isolated_limit)},
                    {"isolated_failed", row.isolated_failed},
                    {"inherited", number(row.inherited(chain->rows))},
                    {"chained", number(row.chained)},
                    {"chained_limit", number(row.chained_limit)},
                    {"reference", number(row.reference)},
                    {"floor", number(row.floor)},
                    {"forecast", number(row.forecast)},
                    {"excess", number(row.excess())},
                    {"simulated", number(row.simulated)},
                    {"shadow", number(row.shadow)},
                    {"shadow_limit", number(row.shadow_limit)},
                    {"changed_bytes", row.changed},
                    {"saturated", row.saturated},
                    {"diagnosis", std::string(name_of(row.diagnosis))}});
  }
  return {{"first_divergence", id_or_null(chain->first_divergence)},
          {"onset", id_or_null(chain->onset)},
          {"culprit", id_or_null(chain->culprit)},
          {"culprit_block", id_or_null(chain->culprit_block)},
          {"rows", std::move(rows)}};
}

}  // namespace

std::string run_json(const RunInfo& run) {
  Json environment = Json::object();
  for (const auto& [name, value] : run.environment) environment[name] = value;
  Json request = Json::object();
  for (const auto& [name, value] : run.request) request[name] = value;
  return line({{"type", "run"},
               {"schema", kResultsSchema},
               {"version", run.version},
               {"command", run.command},
               {"started", run.started},
               {"environment", std::move(environment)},
               {"devices", run.devices},
               {"request", std::move(request)}});
}

std::string checkpoint_json(const CheckpointResult& result) {
  Json outputs = Json::array();
  for (const OutputVerdict& output : result.outputs) outputs.push_back(output_json(output));
  return line({{"type", "checkpoint"},
               {"status", std::string(name_of(result.status))},
               {"block", result.block},
               {"checkpoint", result.checkpoint},
               {"recording", result.recording},
               {"fixture", result.fixture},
               {"device", result.device},
               {"dtype", result.dtype},
               {"contract", result.contract},
               {"looser_contracts", result.looser},
               {"impl", result.impl},
               {"fused", result.fused},
               {"step", result.step},
               {"reason", result.reason},
               {"details", result.details},
               {"diagnosis", result.diagnosis},
               {"known_bug", known_bug_json(result.known_bug)},
               {"not_judged", result.not_judged},
               {"outputs", std::move(outputs)},
               {"features", result.features},
               {"blind_to", result.blind_to},
               {"output_sha256", result.output_sha256},
               {"golden_sha256", result.golden_sha256},
               {"determinism", std::string(name_of(result.determinism))},
               {"runs", result.runs},
               {"margins", margins_json(result.margins)},
               {"passing_bugs", passing_bugs(result.margins)},
               {"seconds", number(result.seconds)},
               {"chain", chain_json(result.chain)},
               {"again", result.again}});
}

}  // namespace plumb
