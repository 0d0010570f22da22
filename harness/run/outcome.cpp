#include "harness/run/outcome.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "harness/process/interrupt.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// The element with this key, appended when it is new: a map that keeps the order of appearance.
template <class Key, class Value>
class Ordered {
 public:
  Value& at(const Key& key, const Value& fresh) {
    const auto [position, is_new] = index_.try_emplace(key, values_.size());
    if (is_new) values_.push_back(fresh);
    return values_[position->second];
  }
  std::vector<Value> take() { return std::move(values_); }

 private:
  std::map<Key, size_t> index_;
  std::vector<Value> values_;
};

// How many checkpoints each result represents.
class Times {
 public:
  explicit Times(const std::vector<int64_t>& times) : times_(times) {}
  int64_t of(size_t result) const { return times_.empty() ? 1 : times_[result]; }

 private:
  const std::vector<int64_t>& times_;
};

bool judged(Status status) {
  return status == Status::pass || status == Status::fail || status == Status::nondeterministic;
}

// A block's rows are neighbours.
std::vector<OverviewRow> rows_of(const std::vector<CheckpointResult>& results, const Times& times) {
  Ordered<std::tuple<std::string, std::string, std::string>, OverviewRow> rows;
  for (size_t i = 0; i < results.size(); ++i) {
    const CheckpointResult& result = results[i];
    OverviewRow& row = rows.at({result.block, result.device, result.dtype},
                               {result.block, result.device, result.dtype, {}, {}});
    row.counts.add(result.status, times.of(i));
    auto worst = worst_gate(result);
    if (worst && (!row.worst || worst->ratio > row.worst->ratio)) row.worst = std::move(worst);
  }
  std::vector<OverviewRow> all = rows.take();
  std::map<std::string, size_t> place;
  for (const OverviewRow& row : all) place.try_emplace(row.block, place.size());
  std::stable_sort(all.begin(), all.end(), [&](const OverviewRow& a, const OverviewRow& b) {
    return place.at(a.block) < place.at(b.block);
  });
  return all;
}

// Blocks of which something was run to a verdict, and nothing but blind came of it.
std::set<std::string> wholly_blind(const std::vector<CheckpointResult>& results) {
  std::set<std::string> blind, seen;
  for (const CheckpointResult& result : results) {
    if (result.status == Status::blind) blind.insert(result.block);
    if (judged(result.status)) seen.insert(result.block);
  }
  for (const std::string& block : seen) blind.erase(block);
  return blind;
}

// Whether that a checkpoint is blind to it says nothing of the recording, only of 16 bits.
bool of_the_dtype(const std::string& feature, const std::string& dtype) {
  return (feature == "eps" || feature == "denormals") && (dtype == "bf16" || dtype == "f16");
}

std::vector<BlindFeature> blind_features(const std::vector<CheckpointResult>& results,
                                         const Times& times) {
  const std::set<std::string> whole = wholly_blind(results);
  Ordered<std::pair<std::string, std::string>, BlindFeature> found;
  const auto entry = [&](const CheckpointResult& result,
                         const std::string& feature) -> BlindFeature& {
    return found.at({result.block, feature}, {result.block, feature, 0, 0, 0});
  };
  for (size_t i = 0; i < results.size(); ++i) {
    const CheckpointResult& result = results[i];
    const int64_t n = times.of(i);
    if (!judged(result.status) && result.status != Status::blind) continue;
    if (whole.count(result.block)) {
      entry(result, "").blind += n;
      continue;
    }
    const std::set<std::string> unseen(result.blind_to.begin(), result.blind_to.end());
    for (const std::string& feature : unseen) {
      BlindFeature& it = entry(result, feature);
      it.blind += n;
      it.narrow += of_the_dtype(feature, result.dtype) ? n : 0;
    }
    for (const std::string& feature : result.features) {
      if (unseen.count(feature)) continue;
      BlindFeature& it = entry(result, feature);
      (result.status == Status::blind ? it.blind : it.seen) += n;
    }
  }
  std::vector<BlindFeature> all = found.take();
  std::erase_if(all, [](const BlindFeature& it) { return it.blind == 0; });
  std::stable_partition(all.begin(), all.end(),
                        [](const BlindFeature& it) { return it.everywhere(); });
  return all;
}

std::vector<ReasonGroup> not_judged(const std::vector<CheckpointResult>& results,
                                    const Times& times) {
  std::vector<ReasonGroup> all;
  for (const Status status : {Status::unsupported, Status::blind}) {
    Ordered<std::tuple<std::string, std::string, std::string, std::string>, ReasonGroup> groups;
    for (size_t i = 0; i < results.size(); ++i) {
      const CheckpointResult& result = results[i];
      if (result.status != status) continue;
      groups
          .at({result.block, result.device, result.dtype, result.reason},
              {status, result.block, result.device, result.dtype, result.reason, 0})
          .checkpoints += times.of(i);
    }
    for (ReasonGroup& group : groups.take()) all.push_back(std::move(group));
  }
  return all;
}

// Of a checkpoint's outputs the first whose reference is not believed.
std::string golden_suspect(const CheckpointResult& result) {
  for (const OutputVerdict& output : result.outputs) {
    if (!output.golden_suspect.empty()) return output.golden_suspect;
  }
  return {};
}

std::vector<ReasonGroup> suspects(const std::vector<CheckpointResult>& results) {
  Ordered<std::tuple<std::string, std::string, std::string>, ReasonGroup> groups;
  for (const CheckpointResult& result : results) {
    const std::string reason = golden_suspect(result);
    if (reason.empty()) continue;
    ++groups
          .at({result.block, result.device, result.dtype},
              {result.status, result.block, result.device, result.dtype,
               text(result.recording, ' ', result.checkpoint, ": ", reason), 0})
          .checkpoints;
  }
  return groups.take();
}

std::vector<std::string> missing(const std::vector<CheckpointResult>& results,
                                 const Request& request) {
  std::vector<std::string> all;
  const auto check = [&](const char* kind, const std::vector<std::string>& names,
                         std::string CheckpointResult::*member) {
    for (const std::string& name : names) {
      Counts counts;
      for (const CheckpointResult& result : results) {
        if (result.*member == name) counts.add(result.status);
      }
      if (counts.total() > 0 && counts[Status::unsupported] == counts.total()) {
        all.push_back(text(kind, ' ', name));
      }
    }
  };
  check("block", request.blocks, &CheckpointResult::block);
  check("device", request.devices, &CheckpointResult::device);
  check("dtype", request.dtypes, &CheckpointResult::dtype);
  return all;
}

std::vector<std::string> looser_contracts(const std::vector<CheckpointResult>& results) {
  std::set<std::string> all;
  for (const CheckpointResult& result : results) {
    all.insert(result.looser.begin(), result.looser.end());
  }
  return {all.begin(), all.end()};
}

int code_of(const std::vector<CheckpointResult>& results, const Outcome& outcome,
            const Request& request) {
  std::vector<Status> statuses;
  for (const CheckpointResult& result : results) statuses.push_back(result.status);
  if (request.shard) statuses.push_back(Status::pass);  // of others
  const int code = run_exit_code(statuses, request.strict);
  if (request.shard) return code;
  const int unsupported = exit_code(Status::unsupported), blind = exit_code(Status::blind);
  if (code == 0 && !outcome.missing.empty()) return unsupported;
  const bool blind_selection = std::any_of(outcome.blind.begin(), outcome.blind.end(),
                                           [](const BlindFeature& it) { return it.decides(); });
  return code == 0 && blind_selection ? blind : code;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += (all.empty() ? "" : ", ") + part;
  return all;
}

std::string blind_words(const Outcome& outcome) {
  std::vector<std::string> names, blocks;
  for (const BlindFeature& it : outcome.blind) {
    if (!it.decides()) continue;
    if (it.feature.empty()) blocks.push_back(it.block);
    else names.push_back(it.block + " " + it.feature);
  }
  if (names.empty() && !blocks.empty()) {
    return "nothing failed, but no selected checkpoint proves anything of " + joined(blocks);
  }
  names.insert(names.end(), blocks.begin(), blocks.end());
  if (names.empty())
    return text("nothing failed, but ", outcome.counts[Status::blind],
                " checkpoints prove nothing");
  return "nothing failed, but no selected checkpoint can see " + joined(names);
}

std::string words_for(const Outcome& outcome) {
  const Counts& n = outcome.counts;
  const auto of_all = [&](Status status, const char* what) {
    return text(name_of(status), ": ", n[status], " of ", n.total(), ' ', what);
  };
  if (outcome.exit_code == kExitUsage) return "nothing was selected, so nothing was verified";
  if (n.total() == 0) return "the shard is empty, so there was nothing to verify";
  if (outcome.exit_code == 0) {
    const int64_t left = n[Status::blind] + n[Status::unsupported];
    return text(
        "pass: every gate of ", n[Status::pass], " checkpoints is within its limit",
        left > 0 ? text("; ", left, " more are blind or unsupported and do not count") : "");
  }
  if (outcome.exit_code == exit_code(Status::blind)) return "blind: " + blind_words(outcome);
  if (outcome.exit_code == exit_code(Status::unsupported)) {
    return outcome.missing.empty()
               ? of_all(Status::unsupported, "checkpoints could not be run")
               : "unsupported wherever it was tried, though asked for: " + joined(outcome.missing);
  }
  constexpr std::pair<Status, const char*> kWords[] = {
      {Status::fail, "checkpoints are worse than they may be"},
      {Status::nondeterministic, "checkpoints gave different bytes when repeated"},
      {Status::bad_input, "checkpoints have bad input: a recording, or outputs to judge"},
      {Status::device_error, "checkpoints ended in an error of the device"},
      {Status::timeout, "checkpoints did not finish in time"},
      {Status::internal_error, "checkpoints ended in an error of the harness itself"}};
  for (const auto& [status, words] : kWords) {
    if (exit_code(status) == outcome.exit_code) return of_all(status, words);
  }
  return text("exit code ", outcome.exit_code);
}

void note_not_given(Outcome& outcome, const Request& request) {
  const std::string count = text(request.not_given, " of ", request.checkpoints,
                                 request.checkpoints == 1 ? " checkpoint" : " checkpoints");
  const bool passes = outcome.exit_code == 0 || outcome.exit_code == exit_code(Status::blind);
  if (request.partial || !passes) {
    outcome.verdict += text("; outputs of ", count, " were not given");
    return;
  }
  outcome.exit_code = exit_code(Status::unsupported);
  outcome.verdict = text("incomplete: outputs of ", count, " were not given (is that meant: ",
                         "--partial, --block or --checkpoint); of the others ", outcome.verdict);
}

}  // namespace

int64_t Counts::total() const { return std::accumulate(of.begin(), of.end(), int64_t{0}); }

std::optional<WorstGate> worst_gate(const CheckpointResult& result) {
  std::optional<WorstGate> worst;
  for (const OutputVerdict& output : result.outputs) {
    for (const Gate& gate : output.gates) {
      if (worst && ratio(gate) < worst->ratio) continue;  // of equals the last, which says most
      worst = WorstGate{ratio(gate), gate.name, output.name, result.checkpoint, result.recording};
    }
  }
  return worst;
}

std::vector<KnownBug> known_bugs_of(const std::vector<const CheckpointResult*>& results) {
  Ordered<std::pair<std::string, std::string>, KnownBug> found;
  for (const CheckpointResult* result : results) {
    for (const Margin& it : result->margins.value_or(std::vector<Margin>())) {
      KnownBug& bug = found.at({result->block, it.bug}, {});
      const bool first = bug.passes + bug.caught == 0;
      ++(it.passes() ? bug.passes : bug.caught);
      if (!first && it.margin >= bug.nearest.margin) continue;
      bug.nearest = it;
      bug.block = result->block;
      bug.recording = result->recording;
      bug.checkpoint = result->checkpoint;
      bug.device = result->device;
      bug.dtype = result->dtype;
    }
  }
  std::vector<KnownBug> all = found.take();
  std::stable_sort(all.begin(), all.end(), [](const KnownBug& a, const KnownBug& b) {
    return a.nearest.margin < b.nearest.margin;
  });
  return all;
}

Outcome outcome_of(const std::vector<CheckpointResult>& results, const Request& request,
                   const std::vector<int64_t>& times) {
  const Times counted(times);
  Outcome outcome;
  for (size_t i = 0; i < results.size(); ++i) outcome.counts.add(results[i].status, counted.of(i));
  outcome.rows = rows_of(results, counted);
  outcome.blind = blind_features(results, counted);
  std::vector<const CheckpointResult*> all;
  for (const CheckpointResult& result : results) all.push_back(&result);
  outcome.bugs = known_bugs_of(all);
  outcome.failures = failure_groups(results);
  outcome.not_judged = not_judged(results, counted);
  outcome.suspects = suspects(results);
  outcome.missing = missing(results, request);
  outcome.exit_code = code_of(results, outcome, request);
  outcome.looser = looser_contracts(results);
  outcome.verdict = words_for(outcome);
  if (request.not_given > 0) note_not_given(outcome, request);
  if (request.signal != 0) {
    outcome.interrupted = signal_name(request.signal);
    outcome.exit_code = 128 + request.signal;
    outcome.verdict = text("interrupted by ", outcome.interrupted, " after ", results.size(),
                           " of ", request.checkpoints, " checkpoints",
                           results.empty() ? "" : ", until then " + outcome.verdict);
  }
  const auto unrefereed = std::count_if(results.begin(), results.end(),
                                        [](const CheckpointResult& it) { return !it.refereed; });
  if (unrefereed > 0) {
    outcome.verdict += text("; ", unrefereed, " of ", results.size(),
                            " by what their recordings say alone (--referee native: not so)");
  }
  if (!outcome.looser.empty()) {
    outcome.verdict += "; judged by looser contracts: " + joined(outcome.looser);
  }
  return outcome;
}

void note_lost(Outcome& outcome, const std::string& reason) {
  outcome.lost.push_back(reason);
  outcome.verdict += "; " + reason;
  if (outcome.exit_code == 0) outcome.exit_code = kExitUsage;
}

}  // namespace plumb::harness
