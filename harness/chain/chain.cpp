#include "harness/chain/chain.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "harness/chain/chain_compare.h"
#include "harness/chain/chain_descent.h"
#include "harness/chain/chain_rows.h"
#include "harness/chain/chain_spread.h"
#include "harness/chain/chain_tokens.h"
#include "harness/recording/recording_chain.h"
#include "kernels/error.h"

namespace plumb {
namespace {

Tensor zeros_like(const Tensor& host) {
  const Tensor out = host_tensor(host.dtype(), host.shape());
  std::memset(out.raw(), 0, static_cast<size_t>(out.bytes()));
  return out;
}

class Chain {
 public:
  Chain(const Recording& recording, Device& device, Device& oracle, const ReplayOptions& options,
        CheckpointResult& result)
      : recording_(recording),
        device_(device),
        oracle_(oracle),
        options_(options),
        result_(result),
        dtype_(dtype_of_run(recording, device.name(), options)),
        replay_(recording) {}

  void run();

 private:
  void run_model();
  void count_changes();
  void simulate();
  void explain();
  OutputVerdict chain_verdict() const;
  OutputVerdict logits_verdict() const;
  void settle();

  std::vector<ChainRow>& rows() { return chain_.rows; }
  Tensor seen(size_t row) const {
    const auto step = static_cast<size_t>(chain_.rows[row].step);
    return find_seen(seen_[step], place_of(*chain_.checkpoints[row]), chain_.rows[row].output);
  }

  // Tokens of a row whose logits a recording keeps.
  int64_t recorded_tokens(size_t row) const {
    const OutputRef& out = chain_.checkpoints[row]->outputs.at(chain_.rows[row].output);
    return recording_.tensor_info(out.tensor).shape[1];
  }

  const Recording& recording_;
  Device& device_;
  Device& oracle_;
  const ReplayOptions& options_;
  CheckpointResult& result_;
  const DType dtype_;
  ChainReplay replay_;
  ChainRows chain_;
  std::optional<ChainSpread> spread_;    // where a limit was exceeded
  std::vector<Tensor> judged_;           // tokens of every row; undefined: all
  std::vector<std::vector<Seen>> seen_;  // of the chained outputs, by step
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
  chain_ = chain_rows(recording_, device_, oracle_, options_, result_);
  for (ChainRow& row : rows()) {
    if (dtype_ == DType::f64 && !row.is_state()) row.isolated_limit = kLimits.chain_float64;
  }
  run_model();
  std::vector<int64_t> tokens;
  for (const TokenRows& ids : replay_.ids()) {
    tokens.push_back(static_cast<int64_t>(ids.front().size()));
  }
  judged_ = judged_tokens(recording_, chain_, tokens, replay_.goes_on());
  for (size_t i = 0; i < rows().size(); ++i) {
    compare_chained(rows()[i], recording_, *chain_.checkpoints[i], seen(i), judged_[i], dtype_);
  }
  count_changes();
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
  const auto start = std::chrono::steady_clock::now();
  seen_ = replay_.run(device_, dtype_, replay_.steps() - 1, is_row);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  result_.seconds = taken.count();
  for (size_t i = 0; i < rows().size(); ++i) {
    if (rows()[i].block != "lm_head") continue;
    const std::string place = place_of(*chain_.checkpoints[i]);
    for (Seen& it : seen_[static_cast<size_t>(rows()[i].step)]) {
      if (it.checkpoint == place) it.value = last_tokens(it.value, recorded_tokens(i));
    }
  }
}

// Slots of caches and convolution states: stored ones must stay as they are, bit for bit.
void Chain::count_changes() {
  for (size_t i = 0; i < rows().size(); ++i) {
    ChainRow& row = rows()[i];
    const Tensor after = seen(i);
    if (!row.is_state() || row.block == "ssd_scan" || !after.defined()) continue;
    const Checkpoint& c = *chain_.checkpoints[i];
    const bool fixed = row.block == "static_kv_cache";
    Tensor before;
    if (row.step > 0) {
      before = find_seen(seen_[static_cast<size_t>(row.step - 1)], place_of(c), row.output);
    } else if (fixed) {
      before = zeros_like(after);
    }
    if (!before.defined()) continue;
    const auto& tokens = replay_.ids()[static_cast<size_t>(row.step)].front();
    row.changed = changed_bytes(before, after, 2, static_cast<int64_t>(tokens.size()),
                                fixed ? std::optional(c.params.integer("seen")) : std::nullopt);
  }
}

// Simulates correct kernels where a closed form is exceeded; a row that only they let pass, and by
// so much that nothing is proved, counts as saturated.
void Chain::simulate() {
  const auto is_bad = [](const ChainRow& row) { return row.chained_failed() && row.changed == 0; };
  const std::vector<Gate> gates = logits_verdict().gates;
  const bool divergent = std::any_of(gates.begin(), gates.end(), [](const Gate& gate) {
    return gate.name.starts_with("KL") && !gate.passed;
  });
  if (!divergent && std::none_of(rows().begin(), rows().end(), is_bad)) return;
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
  const std::vector<Gate> gates = logits_verdict().gates;
  const bool bad =
      std::any_of(
          rows().begin(), rows().end(),
          [](const ChainRow& row) { return row.chained_failed() || row.isolated_failed; }) ||
      std::any_of(gates.begin(), gates.end(), [](const Gate& gate) { return !gate.passed; });
  const ChainRun run{recording_, device_, oracle_, options_,
                     dtype_,     replay_, seen_,   chain_.checkpoints};
  for (size_t i = 0; i < rows().size() && (bad || options_.shadow); ++i) {
    if (!rows()[i].is_state()) shadow(run, rows(), i);
  }
  diagnose(rows());
  ChainReport report;
  if (const int64_t at = first_divergence(rows()); at >= 0) {
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

// The worst of every kind of gate over all rows.
OutputVerdict Chain::chain_verdict() const {
  OutputVerdict out;
  out.name = "chain";
  const auto add = [&](const Gate& gate) {
    const auto same = std::find_if(out.gates.begin(), out.gates.end(),
                                   [&](const Gate& g) { return g.name == gate.name; });
    if (same == out.gates.end()) out.gates.push_back(gate);
    else if (ratio(gate) > ratio(*same)) *same = gate;
  };
  for (const ChainRow& row : chain_.rows) {
    const std::string where = row.checkpoint + (row.is_state() ? " " + row.output : "");
    if (row.is_state()) {
      add(make_gate("stored bytes", static_cast<double>(row.changed), 0, {}, where));
    }
    if (row.saturated) continue;
    const bool has_spread = !std::isnan(row.simulated);
    const double least = has_spread ? row.simulated : 0;
    std::vector<Term> ratio = {{"reference", row.reference}, {"floor", row.floor}};
    std::vector<Term> excess = {{"forecast", row.forecast},
                                {"kappa", kappa(row.vectors * row.width, 1)}};
    if (has_spread) {
      ratio.push_back({"simulated", least});
      excess.push_back({"simulated", least});
    }
    add(make_gate("chained", row.chained, std::max(row.chained_limit, least), ratio, where));
    if (std::isnan(row.excess())) continue;
    const double allowed = least / std::max(row.forecast, row.floor);
    add(make_gate("excess", row.excess(), std::max(row.excess_limit(), allowed), excess, where));
  }
  return out;
}

OutputVerdict Chain::logits_verdict() const {
  OutputVerdict out;
  out.name = "logits";
  if (dtype_ == DType::f64) return out;
  std::vector<TokenLogits> tokens;
  double error = chain_.element_floor;
  for (size_t i = 0; i < chain_.rows.size(); ++i) {
    const ChainRow& row = chain_.rows[i];
    if (row.block != "lm_head" || row.saturated) continue;
    const auto step = static_cast<size_t>(row.step);
    TokenRows next = replay_.ids()[step];
    for (size_t b = 0; b < next.size(); ++b) {
      const auto unseen = static_cast<int64_t>(next[b].size()) - recorded_tokens(i);
      next[b].erase(next[b].begin(), next[b].begin() + unseen + 1);
      if (replay_.goes_on() && step + 1 < replay_.ids().size()) {
        next[b].push_back(replay_.ids()[step + 1][b].front());
      }
    }
    add_tokens(tokens, error, recording_, *chain_.checkpoints[i], seen(i), judged_[i], next);
  }
  if (tokens.empty()) return out;
  const double c = c_of(dtype_);
  const ModelFigures figures = model_figures(tokens, c, error);
  out.gates = model_gates(figures, c, chain_.head_floor);
  for (Gate& gate : out.gates) {
    if (!spread_ || !gate.name.starts_with("KL")) continue;
    const double least = gate.name == "KL mean" ? spread_->mean_kl : spread_->max_kl;
    gate.derivation.push_back({"simulated", least});
    gate = make_gate(gate.name, gate.statistic, std::max(gate.limit, least), gate.derivation);
  }
  out.details.values = {
      {"tokens", static_cast<double>(figures.tokens)},
      {"decidable", static_cast<double>(figures.decidable)},
      {"top-5 overlap", figures.top5_overlap},
      {"NLL difference", figures.nll_difference},
      {"NLL standard error", figures.nll_standard_error},
  };
  return out;
}

void Chain::settle() {
  result_.outputs = {chain_verdict()};
  if (dtype_ != DType::f64) result_.outputs.push_back(logits_verdict());
  bool failed = false;
  for (OutputVerdict& output : result_.outputs) {
    const auto worst = std::find_if(output.gates.begin(), output.gates.end(),
                                    [](const Gate& gate) { return !gate.passed; });
    output.status = worst == output.gates.end() ? Status::pass : Status::fail;
    failed = failed || output.status == Status::fail;
    if (output.status == Status::fail) {
      output.reason = text(worst->name, ' ', worst->statistic, ", allowed ", worst->limit,
                           worst->where.empty() ? "" : " at ", worst->where);
      if (result_.reason.empty()) result_.reason = output.name + ": " + output.reason;
    }
  }
  ChainReport& report = *result_.chain;
  const auto saturated = std::find_if(chain_.rows.begin(), chain_.rows.end(),
                                      [](const ChainRow& row) { return row.saturated; });
  const bool alone = std::any_of(chain_.rows.begin(), chain_.rows.end(),
                                 [](const ChainRow& row) { return row.isolated_failed; });
  if (failed || alone) {
    result_.status = Status::fail;
    if (!report.culprit.empty()) {
      result_.reason = text("first divergence ", report.first_divergence, ", culprit ",
                            report.culprit, report.onset.empty() ? "" : ", onset ", report.onset);
    }
  } else if (saturated != chain_.rows.end()) {
    result_.status = Status::blind;
    const bool own = is_saturated(dtype_, saturated->reference);
    result_.reason =
        own ? text("saturated: the reference's own error is ", saturated->reference, " at ",
                   saturated->checkpoint, ", above ", kLimits.chain_saturated)
            : text("ill conditioned: the error is ", saturated->chained, " at ",
                   saturated->checkpoint, ", correct kernels may reach ", saturated->simulated);
  }
  report.rows = chain_.rows;
}

}  // namespace

CheckpointResult run_chain(const Recording& recording, Device& device, Device& oracle,
                           const ReplayOptions& options) {
  CheckpointResult result = chain_to_be(recording, device.name(), options);
  status_of_exception(result, recording.folder().string(), [&] {
    require<BadInput>(recording.chained(), "chain", recording.name(),
                      " has no chained oracle; record it again with one");
    Chain(recording, device, oracle, options, result).run();
  });
  return result;
}

}  // namespace plumb
