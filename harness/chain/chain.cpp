#include "harness/chain/chain.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "harness/chain/chain_compare.h"
#include "harness/chain/chain_descent.h"
#include "harness/chain/chain_rows.h"
#include "harness/chain/chain_spread.h"
#include "harness/chain/chain_tokens.h"
#include "harness/chain/chain_verdict.h"
#include "harness/recording/recording_chain.h"
#include "kernels/core/error.h"
#include "kernels/core/thread_pool.h"

namespace plumb::harness {
namespace {

class Chain {
 public:
  Chain(const Recording& recording, Device& device, Device& oracle, const ReplayOptions& options,
        RunAlone run_alone, CheckpointResult& result)
      : recording_(recording),
        device_(device),
        oracle_(oracle),
        options_(options),
        run_alone_(std::move(run_alone)),
        result_(result),
        dtype_(dtype_of_run(recording, device.name(), options)),
        replay_(recording) {}

  void run();

 private:
  void run_model();
  void compare();
  void simulate();
  void explain();
  void settle();

  std::vector<ChainRow>& rows() { return chain_.rows; }
  Tensor seen(size_t row) const {
    const auto step = static_cast<size_t>(chain_.rows[row].step);
    return find_seen(seen_[step], place_of(*chain_.checkpoints[row]), chain_.rows[row].output);
  }

  ChainFindings findings() const {
    return {recording_,        dtype_, chain_, values_, judged_, replay_.ids(),
            replay_.goes_on(), spread_};
  }

  const Recording& recording_;
  Device& device_;
  Device& oracle_;
  const ReplayOptions& options_;
  const RunAlone run_alone_;
  CheckpointResult& result_;
  const DType dtype_;
  ChainReplay replay_;
  ChainRows chain_;
  std::optional<ChainSpread> spread_;    // where a limit was exceeded
  std::vector<Tensor> judged_;           // tokens of every row; undefined: all
  std::vector<std::vector<Seen>> seen_;  // of the chained outputs, by step
  std::vector<Tensor> values_;           // of every row
};

void Chain::run() {
  if (dtype_ != recording_.dtype() && dtype_ != DType::f64) {
    throw Unsupported(text("the chained oracle is one of ", name_of(recording_.dtype()),
                           " weights: a chain runs in that dtype, or in f64"));
  }
  if (dtype_ == DType::f64 && recording_.dtype() != DType::f32) {
    throw Unsupported(text("a float64 chain of a recording in ", name_of(recording_.dtype()),
                           ", whose constants were rounded to that"));
  }
  chain_ = chain_rows(recording_, run_alone_, result_);
  for (ChainRow& row : rows()) {
    if (dtype_ == DType::f64 && !row.is_state()) row.isolated_limit = kLimits.chain_float64;
  }
  run_model();
  std::vector<int64_t> tokens;
  for (const TokenRows& ids : replay_.ids()) {
    tokens.push_back(static_cast<int64_t>(ids.front().size()));
  }
  judged_ = judged_tokens(recording_, chain_, tokens, replay_.goes_on());
  compare();
  count_changes(findings(), rows());
  if (dtype_ != DType::f64) {
    forecast(rows());
    simulate();
  }
  explain();
  settle();
}

void Chain::run_model() {
  const auto is_row = [this](int64_t step, const std::string& place, std::string_view output) {
    for (size_t i = 0; i < chain_.rows.size(); ++i) {
      const ChainRow& row = chain_.rows[i];
      if (row.step == step && row.output == output && place_of(*chain_.checkpoints[i]) == place) {
        return true;
      }
    }
    return false;
  };
  Ops& ops = device_.ops();
  ops.set_fused(options_.fuse ? OpSet().set() : OpSet());
  ops.arena().set_poison(0xff);
  ops.confine(PageEnd::right);
  const auto start = std::chrono::steady_clock::now();
  seen_ = replay_.run(device_, dtype_, replay_.steps() - 1, is_row);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  result_.seconds = taken.count();
  for (size_t i = 0; i < rows().size(); ++i) {
    if (rows()[i].block != "lm_head") continue;
    const std::string place = place_of(*chain_.checkpoints[i]);
    for (Seen& it : seen_[static_cast<size_t>(rows()[i].step)]) {
      if (it.checkpoint == place) it.value = last_tokens(it.value, recorded_tokens(findings(), i));
    }
  }
  for (size_t i = 0; i < rows().size(); ++i) values_.push_back(seen(i));
}

// Each row by itself, side by side.
void Chain::compare() {
  ThreadPool threads(options_.threads > 0 ? options_.threads : usable_cores());
  threads.for_each(static_cast<int64_t>(rows().size()), 1e9, [this](int64_t at, int) {
    const auto i = static_cast<size_t>(at);
    compare_chained(rows()[i], recording_, *chain_.checkpoints[i], values_[i], judged_[i], dtype_);
  });
}

// Simulates correct kernels where a closed form is exceeded; a row that only they let pass, and by
// so much that nothing is proved, counts as saturated.
void Chain::simulate() {
  const auto is_bad = [](const ChainRow& row) { return row.chained_failed() && row.changed == 0; };
  if (!any_failed(logits_verdict(findings())) && std::none_of(rows().begin(), rows().end(), is_bad))
    return;
  const ChainRun run{recording_, device_, oracle_, options_,
                     dtype_,     replay_, seen_,   chain_.checkpoints};
  spread_ = chain_spread(run, rows(), judged_);
  if (!spread_) return;
  for (size_t i = 0; i < rows().size(); ++i) {
    ChainRow& row = rows()[i];
    const bool bad = is_bad(row);
    row.simulated = spread_->rows[i];
    if (bad && !is_bad(row) && row.simulated > kLimits.chain_saturated) row.saturated = true;
  }
}

void Chain::explain() {
  const bool bad = chain_.wrong_table ||
                   std::any_of(rows().begin(), rows().end(),
                               [](const ChainRow& row) {
                                 return row.chained_failed() || row.isolated_failed;
                               }) ||
                   any_failed(logits_verdict(findings()));
  const ChainRun run{recording_, device_, oracle_, options_,
                     dtype_,     replay_, seen_,   chain_.checkpoints};
  for (size_t i = 0; i < rows().size() && (bad || options_.shadow); ++i) {
    if (!rows()[i].is_state()) shadow(run, rows(), i);
  }
  diagnose(rows());
  ChainReport report;
  if (chain_.wrong_table) {
    const Culprit culprit = wrong_alone(*chain_.wrong_table);
    report.first_divergence = report.culprit = culprit.name;
    report.culprit_block = culprit.block;
    result_.details = culprit.words;
  } else if (const int64_t at = first_divergence(rows()); at >= 0) {
    const auto index = static_cast<size_t>(at);
    const ChainRow& row = rows()[index];
    report.first_divergence = row.checkpoint;
    Culprit culprit;
    if (row.isolated_failed) {
      culprit = wrong_part(run, rows(), index);
    } else if (row.changed > 0) {
      culprit = {row.checkpoint,
                 row.block,
                 {text("wiring: ", row.changed, " bytes of ", row.output, " of ", row.checkpoint,
                       " changed that this call has to leave as they are")}};
    } else {
      culprit = wrong_edge(run, rows(), index);
    }
    report.culprit = culprit.name;
    report.culprit_block = culprit.block;
    result_.details = culprit.words;
  }
  if (report.culprit.empty() && bad) {
    const Culprit culprit = suspect(rows());
    report.culprit = culprit.name;
    report.culprit_block = culprit.block;
    result_.details = culprit.words;
  }
  if (const int64_t at = onset(rows()); at >= 0) {
    report.onset = rows()[static_cast<size_t>(at)].checkpoint;
  }
  result_.chain = std::move(report);
}

void Chain::settle() {
  result_.outputs = {chain_verdict(rows())};
  if (dtype_ != DType::f64) result_.outputs.push_back(logits_verdict(findings()));
  const bool alone =
      chain_.wrong_table || std::any_of(rows().begin(), rows().end(),
                                        [](const ChainRow& row) { return row.isolated_failed; });
  settle_chain(result_, rows(), dtype_, alone);
  if (dtype_ == recording_.dtype()) note_inside(recording_, result_);
}

}  // namespace

CheckpointResult run_chain(const Recording& recording, Device& device, Device& oracle,
                           const ReplayOptions& options, RunAlone run_alone) {
  if (!run_alone) run_alone = run_in_turn(recording, device, oracle, options);
  CheckpointResult result = chain_to_be(recording, device.name(), options);
  status_of_exception(result, recording.folder().string(), [&] {
    require<BadInput>(recording.chained(), "chain", recording.name(),
                      " has no chained oracle; record it again with one");
    Chain(recording, device, oracle, options, run_alone, result).run();
  });
  return result;
}

}  // namespace plumb::harness
