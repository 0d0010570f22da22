#include "harness/ops/op_suite.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <regex>

#include "harness/execution/execute.h"
#include "harness/io/escape.h"
#include "harness/io/sha256.h"
#include "harness/ops/judged_op.h"
#include "harness/ops/placed_sample.h"
#include "harness/ops/relations.h"
#include "harness/referee/cases.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

bool same_bytes(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), [](const Tensor& x, const Tensor& y) {
    return !x.defined() || std::memcmp(x.raw(), y.raw(), static_cast<size_t>(x.bytes())) == 0;
  });
}

std::string digest(const std::vector<Tensor>& outputs) {
  std::string bytes;
  for (const Tensor& t : outputs) {
    if (t.defined()) bytes.append(t.data<char>(), static_cast<size_t>(t.bytes()));
  }
  return sha256_hex(bytes.data(), static_cast<int64_t>(bytes.size()));
}

std::string id_of(OpId op, const std::string& sample) {
  return std::string(name_of(op)) + "/" + sample;
}

void run_and_judge(const OpCase& op, Device& device, Device& oracle, const OpRunOptions& options,
                   CheckpointResult& result) {
  device.ops().set_fused(options.fuse ? OpSet().set() : OpSet());
  PlacedSample placed(op.sample, device);
  std::vector<OpRecord> records, others;
  const auto start = std::chrono::steady_clock::now();
  placed.run(kNaNBytes, records);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::vector<Tensor> outputs = placed.outputs();
  std::string damage = placed.damage();
  result.runs = std::max(options.repeat, 2);
  result.determinism = Determinism::d0;
  for (int k = 1; k < result.runs; ++k) {
    placed.run(k % 2 ? kZeroBytes : kNaNBytes, others);
    if (damage.empty()) damage = placed.damage();
    if (!same_bytes(outputs, placed.outputs())) result.determinism = Determinism::d1;
  }
  result.contract = to_string(facts_of(records, op.storage).contract);
  result.looser = looser_contracts(device.ops(), records);
  result.impl = implementations_of(records);
  result.fused = std::ranges::any_of(records, [](const OpRecord& r) { return is_fused(r.op); });
  result.output_sha256 = digest(outputs);
  // Of no elements there is nothing to judge, but what is written.
  const bool empty =
      std::ranges::all_of(outputs, [](const Tensor& t) { return !t.defined() || t.numel() == 0; });
  if (!empty) {
    Verdict verdict = combine(judge_op(
        {op.op, outputs, op.sample.call.inputs(), again(op.sample.call)}, records, oracle));
    result.status = verdict.status;
    result.reason = verdict.reason;
    result.outputs = std::move(verdict.outputs);
  }
  if (result.determinism == Determinism::d1 && result.status != Status::fail) {
    result.status = Status::nondeterministic;
    result.reason = "two runs differ, on memory filled with NaN and with zeros";
  }
  if (!damage.empty()) {
    result.status = Status::fail;
    result.reason = damage;
  } else if (options.relations && !is_failure(result.status)) {
    try_relations(op, outputs, device, oracle, *options.relations, *options.tally, result);
  }
}

}  // namespace

std::vector<OpCase> cases_of(OpId op, std::optional<DType> storage,
                             const std::function<bool(const std::string&)>& wanted) {
  std::vector<OpCase> out;
  for (const DType dtype : sampled_dtypes(op)) {
    if (storage && *storage != dtype) continue;
    const auto by_name = [&](const std::string& name) { return wanted(id_of(op, name)); };
    for (OpSample& sample : samples_of(op, dtype, by_name)) {
      out.push_back({op, dtype, std::move(sample)});
    }
  }
  return out;
}

std::vector<OpCase> op_cases(const std::string& wanted, std::optional<DType> storage) {
  const auto those = [&](const std::function<bool(const std::string&)>& is_wanted) {
    std::vector<OpCase> out;
    for (int i = 0; i < kOpCount; ++i) {
      for (OpCase& op : cases_of(static_cast<OpId>(i), storage, is_wanted)) {
        out.push_back(std::move(op));
      }
    }
    return out;
  };
  std::vector<OpCase> named = those([&](const std::string& id) { return id == wanted; });
  if (!named.empty()) return named;
  try {
    const std::regex expression(wanted);
    return those([&](const std::string& id) { return std::regex_search(id, expression); });
  } catch (const std::regex_error& error) {
    throw UsageError(
        text("[--checkpoint] \"", wanted, "\" is not a regular expression: ", error.what()));
  }
}

std::string OpCase::id() const { return id_of(op, sample.name); }

CheckpointResult run_op(const OpCase& op, Device& device, Device& oracle,
                        const OpRunOptions& options) {
  CheckpointResult result;
  result.block = name_of(op.op);
  result.checkpoint = op.id();
  result.recording = result.fixture = "ops";
  result.device = device.name();
  result.dtype = name_of(op.storage);
  result.again = text("harness --suite ops --checkpoint ", shell_word(op.id()), " --device ",
                      device.name(), options.options);
  status_of_exception(result, op.id(), [&] { run_and_judge(op, device, oracle, options, result); });
  return result;
}

}  // namespace plumb::harness
