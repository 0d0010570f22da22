#include "harness/replay/checkpoint_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "harness/io/sha256.h"
#include "harness/referee/explain.h"
#include "harness/referee/features.h"
#include "harness/referee/margins.h"
#include "harness/replay/gradient_chain.h"
#include "harness/replay/native_block.h"
#include "harness/replay/recorded.h"
#include "harness/replay/recorded_bits.h"
#include "harness/replay/recording_alone.h"
#include "harness/trace/asked_contract.h"
#include "harness/trace/recorded_bugs.h"
#include "harness/trace/stated_error.h"
#include "kernels/core/error.h"
#include "kernels/oracle/arithmetic.h"

namespace plumb::harness {
namespace {

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.raw() == b.raw() || std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0;
}

using Tensors = std::map<std::string, Tensor>;

bool same_bytes(const Tensors& a, const Tensors& b) {
  return std::all_of(a.begin(), a.end(),
                     [&](auto& it) { return same_bytes(it.second, b.at(it.first)); });
}

std::string digest(const std::map<std::string, Tensor>& outputs) {
  std::string hashes;
  for (const auto& [name, t] : outputs) hashes += name + sha256_hex(t.raw(), t.bytes());
  return sha256_hex(hashes.data(), static_cast<int64_t>(hashes.size()));
}

// What memory is filled with before anything is written to it.
constexpr uint8_t kNaNs = 0xff, kZeros = 0x00;

// Of a run that differs from one on NaN. Only a third, on NaN as the first (`repeats`: it gives the
// same bytes), tells a read of uninitialised memory from chance.
std::string cause_of_difference(uint8_t memory, const std::function<bool()>& repeats) {
  if (memory == kNaNs) return " (the same)";
  if (repeats()) return " (memory filled with zeros: an uninitialised read)";
  return " (zeros), and between runs with equal memory: not deterministic";
}

// Of the block with its fused ops as their parts.
std::string words_on_parts(Status status) {
  const bool passes = status == Status::pass || status == Status::blind;
  return text("composed (--no-fuse): ", name_of(status),
              passes ? "  -> look at a fused op, not a primitive"
                     : "  -> look at a primitive, not a fusion");
}

}  // namespace

int64_t bytes_in_flight(const Recording& recording, const Checkpoint& checkpoint, DType dtype,
                        RefereeRule referee) {
  constexpr int64_t kJudged = 96;    // bytes of one output element: doubles of y, r, o, m, ...
  constexpr int64_t kRefereed = 24;  // of one element of an operand: its double, and twice more
  int64_t operands = 0, outputs = 0;
  const auto elements = [&](const std::string& key) {
    return recording.tensor_info(key).shape.numel();
  };
  for (const auto& [name, input] : checkpoint.inputs) operands += elements(input.tensor);
  for (const auto& [name, key] : checkpoint.weights) operands += elements(key);
  for (const auto& [name, output] : checkpoint.outputs) {
    outputs += recording.output_shape(output).numel();
  }
  const bool refereed = is_refereed(recording, checkpoint, dtype, referee);
  const int64_t of_operand = 2 * size_of(dtype) + (refereed ? kRefereed : 0);
  const int64_t of_output = 2 * size_of(dtype) + kJudged;
  return operands * of_operand + outputs * of_output;
}

CheckpointRun::CheckpointRun(const Recording& recording, const Checkpoint& checkpoint,
                             const std::string& device, const ReplayOptions& options)
    : recording_(recording),
      checkpoint_(with_params(recording, checkpoint)),
      options_(options),
      dtype_(dtype_of_run(recording, device, options)),
      replayed_{result_to_be(recording, checkpoint, device, options), {}} {}

void CheckpointRun::stage(const std::function<void()>& work) {
  if (!alive_) return;
  alive_ = false;
  status_of_exception(replayed_.result, checkpoint_.params.where(), [&] {
    work();
    alive_ = true;
  });
}

void CheckpointRun::prepare() {
  stage([&] {
    block_ = native_block(checkpoint_);
    if (!block_) {
      throw Unsupported(text("no native block \"", checkpoint_.block, "\""));
    }
    if (!checkpoint_.reserved.empty()) {
      throw Unsupported(text("uses \"", checkpoint_.reserved.front(),
                             "\", which this version of the harness cannot read"));
    }
    if (is_as_recorded() && dtype_ != recording_.dtype() && dtype_ != DType::f64) {
      throw Unsupported(text(is_backward() ? "gradients are" : "a block of quantised weights is",
                             " judged by what the recorded run shows, in ",
                             name_of(recording_.dtype()), " or f64, not in ", name_of(dtype_)));
    }
    Features features = features_of(recording_, checkpoint_, dtype_);
    replayed_.result.features = std::move(features.exercised);
    replayed_.result.blind_to = std::move(features.blind);
    operands_ = read_operands(recording_, checkpoint_, dtype_);
  });
}

// By what tells one from another: the values, and the dtype of the run.
std::map<std::string, std::string> CheckpointRun::weight_keys() const {
  std::map<std::string, std::string> out;
  for (const auto& [name, key] : checkpoint_.weights) {
    out[name] =
        text(recording_.tensor_info(key).sha256, ' ', name_of(operands_.weights.at(name).dtype()),
             ' ', operands_.weights.at(name).shape());
  }
  return out;
}

void CheckpointRun::execute(Device& device, ResidentWeights* resident) {
  stage([&] {
    Arithmetic arithmetic;
    std::optional<ArithmeticScope> scope;
    if (is_oracle() && dtype_ == DType::f64) scope.emplace(arithmetic);
    runs_ = runs_on(device, fused(), resident);
    score_ = arithmetic.max_abs_score;
    looser_ = looser_contracts(device.ops(), runs_->first.records);
  });
}

CheckpointRun::Runs CheckpointRun::runs_on(Device& device, OpSet fused,
                                           ResidentWeights* resident) const {
  Placement placed(device, operands_, resident, weight_keys());
  Runs out;
  const auto run_on = [&](uint8_t memory, PageEnd end) {
    const Execution* before = out.first.outputs.empty() ? nullptr : &out.first;
    return harness::execute(
        *block_, checkpoint_, placed, device,
        {.fused = fused, .poison = memory, .sums = true, .before = before, .end = end});
  };
  out.first = run_on(kNaNs, PageEnd::left);
  const Execution& first = out.first;
  out.damage = first.damage;
  const int runs = std::max(options_.repeat, 2);
  for (int k = 1; k < runs; ++k) {
    const uint8_t memory = k % 2 ? kZeros : kNaNs;
    const PageEnd end = k % 2 ? PageEnd::right : PageEnd::left;
    const Execution other = run_on(memory, end);
    if (out.damage.empty()) out.damage = other.damage;
    const auto differs = std::find_if(first.outputs.begin(), first.outputs.end(), [&](auto& it) {
      return !same_bytes(it.second, other.outputs.at(it.first));
    });
    if (!out.unstable.empty() || differs == first.outputs.end()) continue;
    // A kernel may begin its sums at an aligned address: it gives the same bits at the same place.
    if (end == PageEnd::right && other.has_ends &&
        same_bytes(first.outputs, run_on(memory, PageEnd::left).outputs) &&
        same_bytes(other.outputs, run_on(memory, end).outputs)) {
      continue;
    }
    const std::string& name = differs->first;
    const Tensor& y = differs->second;
    out.unstable = text(
        "output \"", name, "\" differs between run 1 (memory filled with NaN) and run ", k + 1,
        cause_of_difference(
            memory, [&] { return same_bytes(y, run_on(kNaNs, PageEnd::left).outputs.at(name)); }));
  }
  return out;
}

bool CheckpointRun::is_refereed(bool fails) const {
  return harness::is_refereed(recording_, checkpoint_, dtype_, options_.referee, fails);
}

std::vector<OutputCase> CheckpointRun::cases(const Execution& execution, Device& oracle) const {
  std::vector<OutputCase> out =
      output_cases(recording_, checkpoint_, *block_, operands_, execution.outputs,
                   facts_of(execution.records, dtype_), oracle, refereed_);
  // The oracle's bits are m's, also where transformers' are not.
  for (OutputCase& output : out) output.rule.is_model = is_oracle();
  const bool inside = allows_inside(checkpoint_, recording_, dtype_);
  for (OutputCase& output : out) {
    if (inside) follow_recorded_bits(recording_, checkpoint_, {}, output);
    else if (is_alone()) judge_by_recording_alone(recording_, checkpoint_, output);
  }
  return out;
}

Verdict CheckpointRun::verdict_on(const Runs& runs, const std::vector<OutputCase>& cases) const {
  std::vector<OutputVerdict> outputs;
  for (const OutputCase& output : cases) {
    outputs.push_back(harness::judge(output));
    if (dtype_ == recording_.dtype())
      require_stated_error(checkpoint_, output.evidence, outputs.back());
  }
  Verdict verdict = combine(std::move(outputs));
  add_runs(runs, verdict);
  return verdict;
}

void CheckpointRun::add_runs(const Runs& runs, Verdict& verdict) {
  if (!runs.unstable.empty()) {
    verdict.status = worse(verdict.status, Status::nondeterministic);
    if (verdict.status == Status::nondeterministic) verdict.reason = runs.unstable;
  }
  if (!runs.damage.empty()) {
    verdict.status = worse(verdict.status, Status::fail);
    verdict.reason = runs.damage;
  }
}

void CheckpointRun::note_run() {
  CheckpointResult& result = replayed_.result;
  const Execution& first = runs_->first;
  result.looser = looser_;
  result.impl = implementations_of(first.records);
  result.fused = std::any_of(first.records.begin(), first.records.end(),
                             [](const OpRecord& r) { return is_fused(r.op); });
  result.determinism = runs_->unstable.empty() ? Determinism::d0 : Determinism::d1;
  result.runs = std::max(options_.repeat, 2);
  result.seconds = first.seconds;
  result.output_sha256 = digest(first.outputs);
  replayed_.outputs = first.outputs;
}

std::function<void(OutputCase&)> CheckpointRun::redrawn(Device& oracle) const {
  if (!is_backward()) return {};
  return redrawn_gradients(recording_, checkpoint_, *block_, operands_, oracle);
}

void CheckpointRun::judge_as_recorded(Device& oracle) {
  CheckpointResult& result = replayed_.result;
  judge_made(recording_, checkpoint_, runs_->first.outputs, options_.margins, redrawn(oracle),
             result);
  if (is_gradient_of_loss(checkpoint_)) {
    add_gradient_chain(recording_, runs_->first.gradients, result);
  }
  result.contract =
      contract_text(facts_of(runs_->first.records, dtype_).contract,
                    allows_inside(checkpoint_, recording_, dtype_) ? checkpoint_.inside
                                                                   : std::vector<std::string>());
  note_run();
  Verdict verdict;
  verdict.status = result.status;
  verdict.reason = result.reason;
  add_runs(*runs_, verdict);
  result.status = verdict.status;
  result.reason = verdict.reason;
}

void CheckpointRun::judge(Device& oracle) {
  stage([&] {
    if (is_as_recorded()) return judge_as_recorded(oracle);
    CheckpointResult& result = replayed_.result;
    const Execution& first = runs_->first;
    const RunFacts facts = facts_of(first.records, dtype_);
    std::unique_lock<std::mutex> turn;
    const auto call_referee = [&] {
      static std::mutex one_at_a_time;  // no estimate of memory has the widened weights
      turn = std::unique_lock(one_at_a_time);
      refereed_ = true;
    };
    refereed_ = is_refereed(false);
    if (!refereed_ && needs_other_bits(recording_, checkpoint_, *block_, facts)) call_referee();
    std::vector<OutputCase> all = cases(first, oracle);
    Verdict verdict = verdict_on(*runs_, all);
    if (verdict.status == Status::fail && !refereed_ && is_refereed(true)) {
      call_referee();
      all = cases(first, oracle);
      verdict = verdict_on(*runs_, all);
    }
    if (score_ > 0 && verdict.status != Status::fail) require_stated_score(checkpoint_, score_);
    for (const OutputCase& output : all) note_sample(output, result);
    const bool inside = allows_inside(checkpoint_, recording_, dtype_);
    result.contract =
        contract_text(facts.contract, inside ? checkpoint_.inside : std::vector<std::string>());
    note_run();
    if (inside) note_inside(checkpoint_, result);
    result.refereed = refereed_;
    if (!refereed_) {
      result.details.emplace_back(
          "judged by what the recording says alone; --referee native runs our float64 block, too");
    }
    if (options_.margins) {
      result.margins = margins_of(recording_, checkpoint_, *block_, operands_, facts, all, oracle);
      note_blindness(result);
    }
    result.status = worse(result.status, verdict.status);
    if (result.status == verdict.status) result.reason = verdict.reason;
    result.outputs = std::move(verdict.outputs);
  });
}

bool CheckpointRun::wants_explanation() const {
  return alive_ && replayed_.result.status == Status::fail && options_.explain;
}

// A planted bug that the error looks like is named by the judge already.
void CheckpointRun::explain_as_recorded(Device& device, Device& oracle) {
  CheckpointResult& result = replayed_.result;
  if (!result.fused || !options_.fuse) return;
  CheckpointResult apart = result_to_be(recording_, checkpoint_, device.name(), options_);
  judge_made(recording_, checkpoint_, runs_on(device, OpSet(), nullptr).first.outputs, false,
             redrawn(oracle), apart);
  result.details.push_back(words_on_parts(apart.status));
}

void CheckpointRun::explain(Device& device, Device& oracle) {
  if (!wants_explanation()) return;
  stage([&] {
    CheckpointResult& result = replayed_.result;
    if (is_as_recorded()) return explain_as_recorded(device, oracle);
    const std::string why_not = why_unexplained(recording_, checkpoint_, device.name());
    if (!why_not.empty()) {
      result.details.push_back(why_not);
      return;
    }
    if (result.fused && options_.fuse) {
      const Runs apart = runs_on(device, OpSet(), nullptr);
      const Status status = verdict_on(apart, cases(apart.first, oracle)).status;
      result.details.push_back(words_on_parts(status));
    }
    const Execution& first = runs_->first;
    if (is_alone()) {
      const std::vector<OutputCase> all = cases(first, oracle);
      result.known_bug = recorded_bug(recording_, checkpoint_, all, result.outputs);
      if (result.known_bug) result.reason += "; " + words_of(*result.known_bug);
      return;
    }
    try {
      explain_failure(recording_, checkpoint_, *block_, operands_, facts_of(first.records, dtype_),
                      cases(first, oracle), oracle, result);
    } catch (const DeviceError& error) {  // what has failed has failed
      result.details.push_back(text("not explained: ", error.what()));
    }
  });
}

}  // namespace plumb::harness
