#include "harness/chain/chain_verdict.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "harness/chain/chain_compare.h"
#include "harness/chain/chain_replay.h"
#include "harness/judge/model_gates.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// The ids behind every token of a row whose logits are kept, as far as they are known.
TokenRows next_ids(const ChainFindings& findings, size_t index) {
  const auto step = static_cast<size_t>(findings.chain.rows[index].step);
  TokenRows next = findings.ids[step];
  for (size_t b = 0; b < next.size(); ++b) {
    const auto unseen = static_cast<int64_t>(next[b].size()) - recorded_tokens(findings, index);
    next[b].erase(next[b].begin(), next[b].begin() + unseen + 1);
    if (findings.goes_on && step + 1 < findings.ids.size()) {
      next[b].push_back(findings.ids[step + 1][b].front());
    }
  }
  return next;
}

Tensor zeros_like(const Tensor& host) {
  const Tensor out = host_tensor(host.dtype(), host.shape());
  std::memset(out.raw(), 0, static_cast<size_t>(out.bytes()));
  return out;
}

// The same state after the call before; undefined: none is known.
Tensor value_before(const ChainFindings& findings, size_t index) {
  const ChainRows& chain = findings.chain;
  for (size_t i = index; i-- > 0;) {
    if (chain.rows[i].step + 1 == chain.rows[index].step &&
        chain.rows[i].output == chain.rows[index].output &&
        place_of(*chain.checkpoints[i]) == place_of(*chain.checkpoints[index])) {
      return findings.values[i];
    }
  }
  return {};
}

std::string why_aside(const ChainRow& row, DType dtype) {
  const std::string where = row.checkpoint + (row.is_state() ? " " + row.output : "");
  return is_saturated(dtype, row.reference)
             ? text(where, " is saturated: the reference's own error is ", row.reference,
                    ", above ", kLimits.chain_saturated)
             : text(where, " is ill conditioned: the error is ", row.chained,
                    ", correct kernels may reach ", row.simulated);
}

// The first output that is set aside in every step; none: null. Where simulations call the error of
// logits ill conditioned, their distributions are judged all the same.
const ChainRow* never_judged(const std::vector<ChainRow>& rows, DType dtype) {
  std::set<std::string> judged;
  const auto place = [](const ChainRow& row) {
    return row.checkpoint.substr(0, row.checkpoint.rfind('#')) + ' ' + row.output;
  };
  for (const ChainRow& row : rows) {
    const bool told = row.block == "lm_head" && !is_saturated(dtype, row.reference);
    if (!row.saturated || told) judged.insert(place(row));
  }
  for (const ChainRow& row : rows) {
    if (!judged.contains(place(row))) return &row;
  }
  return nullptr;
}

// Which rows nothing is said of; "": none.
std::string set_aside(const std::vector<ChainRow>& rows, DType dtype) {
  const ChainRow* worst = nullptr;
  int64_t count = 0;
  for (const ChainRow& row : rows) {
    count += row.saturated;
    const auto reach = [](const ChainRow& it) { return std::fmax(it.simulated, it.reference); };
    if (row.saturated && (!worst || reach(row) > reach(*worst))) worst = &row;
  }
  if (!worst) return "";
  return text(count, " of ", rows.size(),
              " outputs are not judged; the worst: ", why_aside(*worst, dtype));
}

}  // namespace

void count_changes(const ChainFindings& findings, std::vector<ChainRow>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    ChainRow& row = rows[i];
    const Tensor& after = findings.values[i];
    if (!row.is_state() || row.block == "ssd_scan" || !after.defined()) continue;
    const bool fixed = row.block == "static_kv_cache";
    Tensor before = value_before(findings, i);
    if (row.step == 0 && fixed) before = zeros_like(after);
    if (!before.defined() || before.dtype() != after.dtype()) continue;
    const auto& tokens = findings.ids[static_cast<size_t>(row.step)].front();
    const blocks::Params& params = findings.chain.checkpoints[i]->params;
    row.changed = changed_bytes(before, after, 2, static_cast<int64_t>(tokens.size()),
                                fixed ? std::optional(params.integer("seen")) : std::nullopt);
  }
}

int64_t recorded_tokens(const ChainFindings& findings, size_t row) {
  const Checkpoint& c = *findings.chain.checkpoints[row];
  const OutputRef& out = c.outputs.at(findings.chain.rows[row].output);
  return findings.recording.tensor_info(out.tensor).shape[1];
}

bool any_failed(const OutputVerdict& output) {
  return std::any_of(output.gates.begin(), output.gates.end(),
                     [](const Gate& gate) { return !gate.passed; });
}

OutputVerdict chain_verdict(const std::vector<ChainRow>& rows) {
  OutputVerdict out;
  out.name = "chain";
  const auto add = [&](const Gate& gate) {
    const auto same = std::find_if(out.gates.begin(), out.gates.end(),
                                   [&](const Gate& g) { return g.name == gate.name; });
    if (same == out.gates.end()) out.gates.push_back(gate);
    else if (ratio(gate) > ratio(*same)) *same = gate;
  };
  for (const ChainRow& row : rows) {
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

OutputVerdict logits_verdict(const ChainFindings& findings) {
  OutputVerdict out;
  out.name = "logits";
  if (findings.dtype == DType::f64) return out;
  std::vector<TokenLogits> tokens;
  const ChainRows& chain = findings.chain;
  int64_t width = kAnyWidth;
  for (size_t i = 0; i < chain.rows.size(); ++i) {
    const ChainRow& row = chain.rows[i];
    // Errors of a row that simulations call ill conditioned may be a shift of all logits, which
    // changes no distribution; those of a reference that is no witness are not known.
    if (row.block != "lm_head" || is_saturated(findings.dtype, row.reference)) continue;
    if (!findings.values[i].defined()) continue;
    const size_t before = tokens.size();
    add_tokens(tokens, findings.recording, *chain.checkpoints[i], findings.values[i],
               findings.judged[i], next_ids(findings, i));
    for (size_t t = before; t < tokens.size(); ++t) {
      tokens[t].floor = chain.head_floor;
      if (!findings.spread || t - before >= findings.spread->deciding[i].size()) continue;
      tokens[t].simulated = findings.spread->deciding[i][t - before];
    }
    width = std::min(width, row.width);
  }
  const double c = c_of(findings.dtype);
  const ModelFigures figures = model_figures(std::move(tokens), findings.dtype, width);
  if (figures.tokens == 0) return out;
  out.gates = model_gates(figures, c, chain.head_floor);
  for (Gate& gate : out.gates) {
    if (!findings.spread || !gate.name.starts_with("KL")) continue;
    const ChainSpread& spread = *findings.spread;
    const double least = gate.name == "KL mean" ? spread.mean_kl : spread.max_kl;
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

void settle_chain(CheckpointResult& result, const std::vector<ChainRow>& rows, DType dtype,
                  bool failed) {
  for (OutputVerdict& output : result.outputs) {
    const auto worst = std::find_if(output.gates.begin(), output.gates.end(),
                                    [](const Gate& gate) { return !gate.passed; });
    output.status = worst == output.gates.end() ? Status::pass : Status::fail;
    failed = failed || output.status == Status::fail;
    if (output.status == Status::fail) {
      output.reason = text(worst->name, ' ', worst->statistic, ", allowed ", worst->limit,
                           worst->where.empty() ? "" : " at ", worst->where);
      if (result.reason.empty()) result.reason = output.name + ": " + output.reason;
    }
  }
  ChainReport& report = *result.chain;
  const ChainRow* unseen = never_judged(rows, dtype);
  if (failed) {
    result.status = Status::fail;
    if (!report.culprit.empty()) {
      const std::string& first = report.first_divergence;
      result.reason = text(first.empty() ? "" : "first divergence " + first + ", ", "culprit ",
                           report.culprit, report.onset.empty() ? "" : ", onset ", report.onset);
    }
  } else if (unseen) {
    result.status = Status::blind;
    result.reason = why_aside(*unseen, dtype) + "; it is judged in no other step either";
  }
  if (const std::string words = set_aside(rows, dtype); !words.empty()) {
    result.details.push_back(words);
  }
  report.rows = rows;
}

}  // namespace plumb::harness
