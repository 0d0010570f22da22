#include "harness/referee/oracle_runs.h"

#include <algorithm>
#include <cstring>

#include "harness/recording/sampled.h"
#include "harness/referee/rotary_table.h"
#include "harness/trace/recorded_case.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// Position of an axis, or -1.
int find(const std::vector<std::string>& axes, const std::string& name) {
  const auto at = std::find(axes.begin(), axes.end(), name);
  return at == axes.end() ? -1 : static_cast<int>(at - axes.begin());
}

constexpr uint64_t kFirstSeed = 1;  // of simulated kernels

// The oracle is trusted: what it writes is not watched.
Execution run(const blocks::BlockEntry& block, const Checkpoint& checkpoint,
              const HostOperands& operands, Device& oracle, OpSet fused) {
  Placement placed = Placement::trusted(oracle, operands);
  return execute(block, checkpoint, placed, oracle, {fused, 0xff});
}

std::vector<double> values(const Tensor& t) {
  std::vector<double> out(static_cast<size_t>(t.numel()));
  load_all(t.dtype(), t.data<char>(), t.numel(), out.data());
  return out;
}

// Tokens cut where they do not follow each other.
std::vector<std::vector<int64_t>> consecutive(const std::vector<int64_t>& tokens) {
  std::vector<std::vector<int64_t>> out;
  for (const int64_t token : tokens) {
    if (out.empty() || out.back().back() + 1 != token) out.emplace_back();
    out.back().push_back(token);
  }
  return out;
}

// Contiguous host tensors one behind the other along an axis.
Tensor joined(const std::vector<Tensor>& parts, int axis) {
  if (parts.size() == 1) return parts[0];
  Shape shape = parts[0].shape();
  int64_t extent = 0, outer = 1;
  for (const Tensor& part : parts) extent += part.dim(axis);
  for (int i = 0; i < axis; ++i) outer *= shape[i];
  shape.set(axis, extent);
  const Tensor out = host_tensor(parts[0].dtype(), shape);
  char* to = out.data<char>();
  for (int64_t i = 0; i < outer; ++i) {
    for (const Tensor& part : parts) {
      const int64_t bytes = part.bytes() / outer;
      std::memcpy(to, part.data<char>() + i * bytes, static_cast<size_t>(bytes));
      to += bytes;
    }
  }
  return out;
}

}  // namespace

// One call that computes some of the chosen rows.
struct OracleRuns::Part {
  Checkpoint checkpoint;
  HostOperands operands;
};

OracleRuns::OracleRuns(const Recording& recording, const Checkpoint& checkpoint,
                       const blocks::BlockEntry& block, const HostOperands& operands,
                       Device& oracle)
    : recording_(recording),
      checkpoint_(checkpoint),
      block_(block),
      operands_(operands),
      oracle_(oracle) {}

bool OracleRuns::possible(const std::string& output) const {
  const OutputRef& ref = checkpoint_.outputs.at(output);
  if (!ref.sampled) return true;
  if (block_.rows == blocks::RowRule::all) return false;
  const std::string& axis = ref.axes[static_cast<size_t>(token_axis(ref.axes))];
  return std::all_of(checkpoint_.inputs.begin(), checkpoint_.inputs.end(), [&](const auto& input) {
    const int at = find(input.second.axes, axis);
    if (at < 0) return true;
    const int64_t extent = recording_.tensor_info(input.second.tensor).shape[at];
    return extent == ref.sampled->of;
  });
}

std::vector<OracleRuns::Part> OracleRuns::parts(const std::string& output,
                                                const HostOperands& operands) const {
  const OutputRef& ref = checkpoint_.outputs.at(output);
  const std::string& axis = ref.axes[static_cast<size_t>(token_axis(ref.axes))];
  const std::vector<int64_t> all = chosen_tokens(recording_, checkpoint_, output);
  const bool moves = block_.rows == blocks::RowRule::queries;
  std::vector<Part> out;
  const auto runs = moves ? consecutive(all) : std::vector<std::vector<int64_t>>{all};
  for (const std::vector<int64_t>& tokens : runs) {
    Part part{checkpoint_, operands};
    for (auto& [name, input] : part.operands.inputs) {
      const int at = find(checkpoint_.inputs.at(name).axes, axis);
      if (at >= 0) input = take_rows(input, at, tokens);
    }
    for (OutputSpec& spec : part.operands.outputs) {
      const int at = find(checkpoint_.outputs.at(spec.name).axes, axis);
      if (at >= 0) spec.shape.set(at, static_cast<int64_t>(tokens.size()));
    }
    if (moves) {
      const auto offset = static_cast<double>(checkpoint_.params.integer("query_offset"));
      part.checkpoint.params.set("query_offset", offset + static_cast<double>(tokens.front()));
    }
    out.push_back(std::move(part));
  }
  return out;
}

Tensor OracleRuns::rows(const std::string& output, const HostOperands& operands, OpSet fused,
                        Arithmetic* arithmetic) {
  if (!possible(output)) {
    throw Unsupported(text("only some rows of output \"", output, "\" are recorded, and ",
                           block_.name, " needs all of them to compute one: replay it in ",
                           name_of(recording_.dtype()), ", as recorded"));
  }
  std::vector<Tensor> out;
  for (const Part& part : parts(output, operands)) {
    std::optional<ArithmeticScope> scope;
    if (arithmetic) scope.emplace(*arithmetic);
    out.push_back(run(block_, part.checkpoint, part.operands, oracle_, fused).outputs.at(output));
  }
  return joined(out, token_axis(checkpoint_.outputs.at(output).axes));
}

Tensor OracleRuns::rounded(const std::string& output, OpSet fused) {
  if (checkpoint_.outputs.at(output).sampled) {
    return rows(output, operands_, fused, nullptr);
  }
  if (!rounded_ || rounded_fused_ != fused) {
    rounded_ = run(block_, checkpoint_, operands_, oracle_, fused).outputs;
    rounded_fused_ = fused;
  }
  return rounded_->at(output);
}

bool OracleRuns::has_rotary_table() { return rotary_table() != nullptr; }

// Made in float32 by the checkpoint whose outputs are this one's cos and sin.
std::shared_ptr<const RotaryTable> OracleRuns::rotary_table() {
  if (table_) return *table_;
  table_.emplace();
  if (const Checkpoint* recorded = rotary_table_of(recording_, checkpoint_)) {
    const Checkpoint maker = *recorded;  // a run marks the params that were read
    const HostOperands operands = read_operands(recording_, maker, DType::f32);
    const auto made =
        run(*blocks::find_block(maker.block), maker, operands, oracle_, OpSet().set()).outputs;
    table_ =
        std::make_shared<RotaryTable>(RotaryTable{values(made.at("cos")), values(made.at("sin"))});
  }
  return *table_;
}

Tensor OracleRuns::rounded_as(const std::string& output, const RoundingWay& way) {
  Arithmetic arithmetic{.changed = way.changed,
                        .key_tile = way.key_tile,
                        .table = way.own_table ? rotary_table() : nullptr};
  return with(output, way.fused, arithmetic);
}

Tensor OracleRuns::with(const std::string& output, OpSet fused, Arithmetic& arithmetic) {
  if (!checkpoint_.outputs.at(output).sampled) {
    const ArithmeticScope scope(arithmetic);
    return run(block_, checkpoint_, operands_, oracle_, fused).outputs.at(output);
  }
  return rows(output, operands_, fused, &arithmetic);
}

std::vector<Tensor> OracleRuns::simulated(const std::string& output, OpSet fused, int count) {
  const bool sampled = checkpoint_.outputs.at(output).sampled.has_value();
  if (simulated_fused_ != fused) simulated_.clear();
  simulated_fused_ = fused;
  std::vector<Tensor> out;
  for (int k = 0; k < count; ++k) {
    Arithmetic arithmetic{.noise = kFirstSeed + static_cast<uint64_t>(k)};
    if (static_cast<int>(simulated_.size()) == k) simulated_.emplace_back();
    Outputs& outputs = simulated_[static_cast<size_t>(k)];
    if (sampled && !outputs.contains(output)) {
      outputs[output] = rows(output, operands_, fused, &arithmetic);
    } else if (outputs.empty()) {
      const ArithmeticScope scope(arithmetic);
      outputs = run(block_, checkpoint_, operands_, oracle_, fused).outputs;
    }
    out.push_back(outputs.at(output));
  }
  return out;
}

std::vector<Tensor> OracleRuns::redrawn(const std::string& output, OpSet fused, int count) {
  std::vector<Tensor> out;
  for (int k = 0; k < count; ++k) {
    Arithmetic arithmetic{.noise = kFirstSeed + static_cast<uint64_t>(k), .random_rounding = true};
    out.push_back(with(output, fused, arithmetic));
  }
  return out;
}

std::vector<Tensor> OracleRuns::simulated_as(const std::string& output, const RoundingWay& way,
                                             int count) {
  std::vector<Tensor> out;
  for (int k = 0; k < count; ++k) {
    Arithmetic arithmetic{.changed = way.changed,
                          .key_tile = way.key_tile,
                          .noise = kFirstSeed + static_cast<uint64_t>(k),
                          .table = way.own_table ? rotary_table() : nullptr};
    out.push_back(with(output, way.fused, arithmetic));
  }
  return out;
}

Tensor OracleRuns::float64(const std::string& output, OpSet fused) {
  Tensor out;
  Arithmetic arithmetic;
  const ArithmeticScope scope(arithmetic);
  if (checkpoint_.outputs.at(output).sampled) {
    out = rows(output, widened(operands_), fused, nullptr);
  } else {
    if (!float64_ || float64_fused_ != fused) {
      float64_ = run(block_, checkpoint_, widened(operands_), oracle_, fused).outputs;
      float64_fused_ = fused;
    }
    out = float64_->at(output);
  }
  max_abs_score_ = std::max(max_abs_score_, arithmetic.max_abs_score);
  return out.dtype() == DType::f64 ? out : Tensor();
}

std::vector<OpRecord> OracleRuns::records(OpSet fused) {
  const bool by_rows = std::all_of(
      checkpoint_.outputs.begin(), checkpoint_.outputs.end(),
      [&](const auto& output) { return output.second.sampled && possible(output.first); });
  if (!by_rows) return run(block_, checkpoint_, operands_, oracle_, fused).records;
  const Part part = parts(checkpoint_.outputs.begin()->first, operands_).front();
  return run(block_, part.checkpoint, part.operands, oracle_, fused).records;
}

HostOperands OracleRuns::widened(HostOperands operands) const {
  for (auto& [name, t] : operands.inputs) {
    if (!is_floating(t.dtype())) continue;
    t = name == "mask" ? converted_mask(t, DType::f64) : converted(t, DType::f64);
  }
  // A matrix is widened where it is used: its doubles take longer to write than to multiply.
  const bool narrow = oracle_.ops().takes_narrow_weights();
  for (auto& [name, t] : operands.weights) {
    if (is_floating(t.dtype()) && (!narrow || t.rank() != 2)) t = converted(t, DType::f64);
  }
  for (OutputSpec& spec : operands.outputs) {
    if (is_floating(spec.dtype) && block_.name != "causal_mask") spec.dtype = DType::f64;
  }
  return operands;
}

}  // namespace plumb::harness
