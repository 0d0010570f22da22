#include "harness/chain/external_chain.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "harness/chain/chain_compare.h"
#include "harness/chain/chain_descent.h"
#include "harness/chain/chain_tokens.h"
#include "harness/chain/chain_verdict.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

std::string how_far(const ChainRow& row) {
  const double limit =
      std::isnan(row.simulated) ? row.chained_limit : std::max(row.chained_limit, row.simulated);
  if (!(row.chained <= limit)) return text("its error is ", row.chained, ", allowed ", limit);
  return text("its error is ", row.chained, ", ", row.excess(), " times its forecast, allowed ",
              row.excess_limit());
}

class ExternalChain {
 public:
  ExternalChain(const Recording& recording, const ChainOutputs& outputs, Device& oracle,
                CheckpointResult& result)
      : recording_(recording), oracle_(oracle), result_(result), ids_(recorded_ids(recording)) {
    chain_ = reference_rows(recording, oracle);
    for (size_t i = 0; i < rows().size(); ++i) {
      const auto found = outputs.find(rows()[i].checkpoint);
      const bool there = found != outputs.end() && found->second.contains(rows()[i].output);
      values_.push_back(there ? found->second.at(rows()[i].output) : Tensor());
    }
    try {
      replay_.emplace(recording);
    } catch (const Error&) {  // no native model of this architecture: nothing is simulated
    }
  }

  void run();

 private:
  void compare();
  void simulate();
  void explain();
  void shadow_rows();
  void introduce();
  std::string where_it_begins(size_t row) const;
  std::vector<size_t> missing_before(size_t row) const;
  void keep_given();
  void name_missing_logits();

  std::vector<ChainRow>& rows() { return chain_.rows; }
  bool given(size_t row) const { return values_[row].defined(); }
  bool has_input(size_t row) const {
    const int64_t before = chain_.rows[row].before;
    return before < 0 ? chain_.rows[row].block == "embedding" : given(static_cast<size_t>(before));
  }
  ChainFindings findings() const {
    return {recording_, recording_.dtype(),    chain_, values_, judged_,
            ids_,       continues(recording_), spread_};
  }
  ChainRun chain_run() {
    return {recording_,         oracle_,  oracle_, options_,
            recording_.dtype(), *replay_, seen_,   chain_.checkpoints};
  }

  const Recording& recording_;
  Device& oracle_;
  CheckpointResult& result_;
  const ReplayOptions options_;
  std::vector<TokenRows> ids_;
  ChainRows chain_;
  std::optional<ChainReplay> replay_;
  std::vector<Tensor> values_, judged_;  // of every row
  std::vector<std::vector<Seen>> seen_;  // the same by step
  std::optional<ChainSpread> spread_;
  std::string begins_;  // where it is off first, in words
};

void ExternalChain::run() {
  std::vector<int64_t> tokens;
  for (const TokenRows& ids : ids_) tokens.push_back(static_cast<int64_t>(ids.front().size()));
  judged_ = judged_tokens(recording_, chain_, tokens, continues(recording_));
  leave_out_padding(judged_, recording_, chain_, tokens, recorded_padding(recording_));
  compare();
  simulate();
  explain();
  keep_given();
  result_.outputs = {chain_verdict(result_.chain->rows), logits_verdict(findings())};
  std::erase_if(result_.outputs, [](const OutputVerdict& it) { return it.gates.empty(); });
  settle_chain(result_, std::vector<ChainRow>(result_.chain->rows), recording_.dtype(), false);
  name_missing_logits();
  note_inside(recording_, result_);
  if (result_.status != Status::fail || begins_.empty()) return;
  result_.reason = begins_;
}

void ExternalChain::compare() {
  seen_.resize(ids_.size());
  for (size_t i = 0; i < rows().size(); ++i) {
    ChainRow& row = rows()[i];
    if (!given(i)) continue;
    const Checkpoint& c = *chain_.checkpoints[i];
    compare_chained(row, recording_, c, values_[i], judged_[i], recording_.dtype());
    seen_[static_cast<size_t>(row.step)].push_back({place_of(c), row.output, values_[i]});
  }
  count_changes(findings(), rows());
}

void ExternalChain::simulate() {
  const auto is_bad = [](const ChainRow& row) { return row.chained_failed() && row.changed == 0; };
  bool bad = any_failed(logits_verdict(findings()));
  for (size_t i = 0; i < rows().size(); ++i) bad = bad || (given(i) && is_bad(rows()[i]));
  if (!bad || !replay_) return;
  introduce();
  spread_ = chain_spread(chain_run(), rows(), judged_);
  if (!spread_) return;
  for (size_t i = 0; i < rows().size(); ++i) {
    ChainRow& row = rows()[i];
    const bool was_bad = given(i) && is_bad(row);
    row.simulated = spread_->rows[i];
    if (was_bad && !is_bad(row) && row.simulated > kLimits.chain_saturated) row.saturated = true;
  }
}

// What a right program may introduce in a layer. Where it rounds in 16 bits is its own choice: as
// much as eager code, if the recorded run rounded less. What this program does introduce says
// nothing of that: a wrong one would widen its own limits.
void ExternalChain::introduce() {
  if (size_of(recording_.dtype()) > 2) return;
  for (size_t i = 0; i < rows().size(); ++i) {
    ChainRow& row = rows()[i];
    if (row.is_state() || std::isnan(row.isolated_limit)) continue;
    const double eager = eager_error(chain_run(), rows(), i);
    if (!(eager > row.isolated)) continue;
    row.isolated_limit = std::max(
        row.isolated_limit, c_of(recording_.dtype()) * kappa(row.vectors * row.width, 1) * eager);
    row.isolated = eager;
  }
}

void ExternalChain::shadow_rows() {
  if (!replay_) return;
  const ChainRun run = chain_run();
  for (size_t i = 0; i < rows().size(); ++i) {
    if (!given(i) || rows()[i].is_state() || !has_input(i)) continue;
    shadow(run, rows(), i);
    // What is good in the chain is good, however small the error that its block is to introduce.
    if (!rows()[i].chained_failed() && rows()[i].shadow <= rows()[i].chained_limit) {
      rows()[i].shadow_limit = std::max(rows()[i].shadow_limit, rows()[i].shadow);
    }
  }
}

void ExternalChain::explain() {
  const auto is_off = [&](size_t i) { return given(i) && rows()[i].chained_failed(); };
  size_t first = 0;
  while (first < rows().size() && !is_off(first)) ++first;
  ChainReport report;
  const bool bad = first < rows().size() || any_failed(logits_verdict(findings()));
  if (bad) shadow_rows();
  diagnose(rows());
  for (size_t i = 0; i < rows().size(); ++i) {
    ChainRow& row = rows()[i];
    if (row.diagnosis == Diagnosis::wiring) row.diagnosis = Diagnosis::here;
    const bool told = !std::isnan(row.shadow) || row.changed > 0;
    if (row.diagnosis == Diagnosis::inherited && !told) row.diagnosis = Diagnosis::unlocated;
  }
  const auto begins = [&](size_t i) {
    const Diagnosis found = rows()[i].diagnosis;
    return given(i) && (found == Diagnosis::here || found == Diagnosis::unlocated);
  };
  size_t named = 0;
  while (named < rows().size() && !begins(named)) ++named;
  if (first < rows().size()) report.onset = rows()[first].checkpoint;
  if (bad && named < rows().size()) {
    report.first_divergence = rows()[named].checkpoint;
    report.culprit = rows()[named].checkpoint;
    report.culprit_block = rows()[named].block;
    begins_ = where_it_begins(named);
    const std::string tokens = wrong_tokens(recording_, *chain_.checkpoints[named], rows()[named],
                                            values_[named], judged_[named]);
    if (!tokens.empty()) begins_ += "; " + tokens;
  }
  result_.chain = std::move(report);
}

std::string ExternalChain::where_it_begins(size_t index) const {
  const ChainRow& row = chain_.rows[index];
  const std::string name = text(row.checkpoint, " (", row.block, ')');
  if (row.changed > 0) {
    return text(name, ": ", row.changed, " bytes of ", row.output,
                " changed that this call has to leave as they are");
  }
  if (row.diagnosis == Diagnosis::here) {
    return text(name, " is wrong on what it was given: its error against the float64 block on the ",
                "program's own input is ", row.shadow, ", allowed ", row.shadow_limit);
  }
  const std::string off = how_far(row);
  const std::vector<size_t> missing = missing_before(index);
  if (missing.empty()) return text(name, " is the first that is off: ", off);
  std::string names;
  constexpr size_t kNamed = 3;
  for (size_t i = 0; i < std::min(kNamed, missing.size()); ++i) {
    names += (i ? ", " : "") + chain_.rows[missing[i]].checkpoint;
  }
  if (missing.size() > kNamed) names += text(" and ", missing.size() - kNamed, " more");
  size_t after = index;
  while (after > 0 && !given(after - 1)) --after;
  const std::string last = after == 0 ? "" : " after " + chain_.rows[after - 1].checkpoint;
  return text(name, " is the first that is off of what was given", last, ": ", off,
              "; to learn where it begins give the outputs of ", names);
}

// The layers between what was given last and this one.
std::vector<size_t> ExternalChain::missing_before(size_t index) const {
  std::vector<size_t> out;
  for (size_t i = index; i-- > 0 && !given(i);) {
    if (!chain_.rows[i].is_state()) out.insert(out.begin(), i);
  }
  return out;
}

// The rows that a reader is shown: those that were given.
void ExternalChain::keep_given() {
  std::vector<int64_t> now(rows().size(), -1);
  for (size_t i = 0; i < rows().size(); ++i) {
    if (!given(i)) continue;
    ChainRow row = rows()[i];
    row.before = row.before < 0 ? -1 : now[static_cast<size_t>(row.before)];
    row.isolated = kNoFigure;  // what the program introduces alone was not measured
    now[i] = static_cast<int64_t>(result_.chain->rows.size());
    result_.chain->rows.push_back(std::move(row));
  }
}

// Logits that were not captured may have any error: no pass of the whole model.
void ExternalChain::name_missing_logits() {
  std::string names;
  for (size_t i = 0; i < rows().size(); ++i) {
    if (rows()[i].block != "lm_head" || given(i)) continue;
    const std::string name = text("logits#", rows()[i].step);
    result_.not_judged.push_back(name);
    names += (names.empty() ? "" : ", ") + name;
  }
  if (names.empty() || result_.status != Status::pass) return;
  result_.status = Status::blind;
  result_.reason = text("not given: ", names, "; what was given is within its limits");
}

CheckpointResult external_chain_to_be(const Recording& recording) {
  CheckpointResult result;
  result.block = "model";
  result.checkpoint = "(chain)";
  result.recording = recording.name();
  result.fixture = recording.folder().string();
  result.device = "external";
  result.dtype = name_of(recording.dtype());
  result.golden_sha256 = recording.sha256();
  return result;
}

}  // namespace

CheckpointResult judge_chain(const Recording& recording, const ChainOutputs& outputs,
                             Device& oracle) {
  CheckpointResult result = external_chain_to_be(recording);
  status_of_exception(result, recording.folder().string(),
                      [&] { ExternalChain(recording, outputs, oracle, result).run(); });
  return result;
}

}  // namespace plumb::harness
