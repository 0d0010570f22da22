#include "harness/chain/chain_descent.h"

#include <cmath>
#include <cstring>
#include <optional>

#include "harness/judge/sums.h"
#include "harness/recording/recording_chain.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

std::vector<double> doubles(const Tensor& host) {
  const Tensor wide = converted(host, DType::f64);
  return {wide.data<double>(), wide.data<double>() + wide.numel()};
}

// E(y - o) over everything; NaN where the shapes differ.
double error_between(const Tensor& y, const Tensor& o) {
  if (!y.defined() || !o.defined() || !(y.shape() == o.shape())) return kNoFigure;
  const std::vector<double> a = doubles(y), b = doubles(o);
  const double error =
      chunked_sum(a.size(), [&](size_t i) { return (a[i] - b[i]) * (a[i] - b[i]); });
  return std::sqrt(quotient(error, chunked_sum(b.size(), [&](size_t i) { return b[i] * b[i]; })));
}

// Zero where an element is not valid: padding is anything.
Tensor only_valid(const ChainRun& run, const Checkpoint& c, const Tensor& host) {
  const OutputRef& ref = c.outputs.at("out");
  if (!ref.valid || !host.defined()) return host;
  const Tensor out = converted(host, DType::f64);
  const Layout layout = layout_of(out.shape(), ref.axes);
  std::vector<double> values = to_matrix(out, layout);
  const auto valid = to_mask(run.recording.read(ref.valid->tensor), ref.valid->axes, layout);
  const Tensor masked = host_tensor(DType::f64, {layout.rows, layout.columns});
  for (size_t i = 0; i < values.size(); ++i) masked.data<double>()[i] = valid[i] ? values[i] : 0;
  return masked;
}

// Of a part of the layer, whose whole name recordings of other models spell differently.
Tensor seen_below(const std::vector<Seen>& seen, const std::string& path, std::string_view suffix,
                  std::string_view output) {
  for (const Seen& s : seen) {
    if (s.checkpoint.starts_with(path + '.') && s.checkpoint.ends_with(suffix) &&
        s.output == output) {
      return s.value;
    }
  }
  return {};
}

// What the device had for an input; undefined: what was recorded.
Tensor own_input(const ChainRun& run, const std::vector<ChainRow>& rows, const ChainRow& row,
                 const Checkpoint& c, const std::string& name) {
  const auto& now = run.seen[static_cast<size_t>(row.step)];
  if (name == main_input(c) && row.before >= 0) {
    const auto before = static_cast<size_t>(row.before);
    return find_seen(now, place_of(*run.of_row[before]), rows[before].output);
  }
  if (name == "original") {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].block == "embedding" && rows[i].step == row.step) {
        return find_seen(now, place_of(*run.of_row[i]), "out");
      }
    }
  }
  if (row.step == 0) return {};
  const auto& earlier = run.seen[static_cast<size_t>(row.step - 1)];
  if (name == "keys_before") return seen_below(earlier, c.path, ":kv_cache", "keys_after");
  if (name == "values_before") return seen_below(earlier, c.path, ":kv_cache", "values_after");
  if (name == "conv_before") return seen_below(earlier, c.path, "conv1d", "state_after");
  if (name == "ssm_before") return seen_below(earlier, c.path, ":ssd_scan", "state_after");
  return {};
}

// A float64 chain makes its tables in float64 from the recorded frequencies; the recorded tables
// are rounded to float32.
void take_float64_tables(const ChainRun& run, const Checkpoint& c, HostOperands& operands) {
  const auto cos = c.inputs.find("cos");
  if (cos == c.inputs.end()) return;
  for (const Checkpoint& table : run.recording.checkpoints()) {
    if (table.block != "rotary_table") continue;
    const auto made = table.outputs.find("cos");
    if (made == table.outputs.end() || made->second.tensor != cos->second.tensor) continue;
    const HostOperands exact = read_operands(run.recording, table, DType::f64);
    const Execution done =
        execute(*blocks::find_block(table.block), table, exact, run.oracle, {OpSet(), 0xff});
    for (const auto& [name, value] : done.outputs) operands.inputs[name] = value;
    return;
  }
}

// The checkpoint's operands in a dtype with the device's own inputs in place of the recorded ones;
// nothing where one has another shape.
std::optional<HostOperands> own_operands(const ChainRun& run, const std::vector<ChainRow>& rows,
                                         size_t index, DType dtype) {
  const Checkpoint& c = *run.of_row[index];
  HostOperands operands = read_operands(run.recording, c, dtype);
  for (auto& [name, value] : operands.inputs) {
    const Tensor own = own_input(run, rows, rows[index], c, name);
    if (!own.defined()) continue;
    if (!(own.shape() == value.shape())) return std::nullopt;
    value = converted(own, value.dtype());
  }
  if (run.dtype == DType::f64) take_float64_tables(run, c, operands);
  return operands;
}

struct BlockRun {
  std::map<std::string, Tensor> outputs;
  std::vector<Seen> parts;
};

// The block on the oracle device, every part of it noted.
std::optional<BlockRun> run_block(const ChainRun& run, const std::vector<ChainRow>& rows,
                                  size_t index, DType dtype, OpSet fused) {
  const Checkpoint& c = *run.of_row[index];
  const blocks::BlockEntry* block = blocks::find_block(c.block);
  const auto operands = own_operands(run, rows, index, dtype);
  if (!block || !operands) return std::nullopt;
  Notes notes(run.oracle, [](const std::string&, std::string_view) { return true; });
  const Execution done = execute(*block, c, *operands, run.oracle, {fused, 0xff, &notes});
  return BlockRun{done.outputs, notes.seen()};
}

bool is_inside(const std::string& place, const std::string& path) {
  return place == path || place.starts_with(path + '.') || place.starts_with(path + ':');
}

}  // namespace

void shadow(const ChainRun& run, std::vector<ChainRow>& rows, size_t index) {
  ChainRow& row = rows[index];
  const Checkpoint& c = *run.of_row[index];
  if (c.inputs.contains("transformer")) return;  // inside a hybrid layer, which has its own row
  const auto oracle = run_block(run, rows, index, DType::f64, OpSet().set());
  if (!oracle) return;
  const Tensor y = find_seen(run.seen[static_cast<size_t>(row.step)], place_of(c), row.output);
  row.shadow =
      error_between(only_valid(run, c, y), only_valid(run, c, oracle->outputs.at(row.output)));
  // What copies alone is held to bits, and has no such limit.
  row.shadow_limit = std::isnan(row.isolated_limit) ? row.chained_limit : row.isolated_limit;
}

double eager_error(const ChainRun& run, const std::vector<ChainRow>& rows, size_t index) {
  const Checkpoint& c = *run.of_row[index];
  if (c.inputs.contains("transformer")) return kNoFigure;
  const auto oracle = run_block(run, rows, index, DType::f64, OpSet().set());
  const auto rounded = run_block(run, rows, index, run.dtype, OpSet());
  if (!oracle || !rounded) return kNoFigure;
  const std::string& output = rows[index].output;
  return error_between(only_valid(run, c, rounded->outputs.at(output)),
                       only_valid(run, c, oracle->outputs.at(output)));
}

Culprit wrong_alone(const CheckpointResult& result) {
  std::string ops;
  for (const std::string& impl : result.impl) ops += (ops.empty() ? "" : ", ") + impl;
  return {result.checkpoint,
          result.block,
          {text("kernel: ", result.checkpoint, " (", result.block,
                ") is wrong on recorded inputs: ", result.reason),
           text("ops: ", ops)}};
}

Culprit wrong_part(const ChainRun& run, const std::vector<ChainRow>& rows, size_t index) {
  const ChainRow& row = rows[index];
  const std::string& path = run.of_row[index]->path;
  Replayer replayer(run.recording, run.device, run.oracle, run.options);
  for (const Checkpoint& c : run.recording.checkpoints()) {
    if (c.step != row.step || !is_inside(place_of(c), path)) continue;
    const CheckpointResult result = replayer.run(c);
    if (result.status == Status::fail) return wrong_alone(result);
  }
  return {row.checkpoint,
          row.block,
          {text("kernel: ", row.checkpoint, " (", row.block, ") is wrong on recorded inputs")}};
}

Culprit suspect(const std::vector<ChainRow>& rows) {
  constexpr double kMore = 2;  // times what a block introduces alone
  const ChainRow* worst = nullptr;
  double most = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const ChainRow& row = rows[i];
    size_t layer = i;
    while (layer < rows.size() && rows[layer].is_state()) ++layer;
    const bool alone_off = layer == rows.size() || !rows[layer].chained_failed();
    if (row.is_state() && row.chained_failed() && alone_off) {
      return {row.checkpoint,
              row.block,
              {text("state: ", row.output, " of ", row.checkpoint, " is off by ", row.chained,
                    ", allowed ", std::max(row.chained_limit, row.simulated))}};
    }
    const double alone = std::max({row.isolated, row.isolated_reference, 0.0});
    const double ratio = quotient(row.shadow, alone);
    if (row.is_state() || std::isnan(row.shadow) || !(ratio > most)) continue;
    most = ratio;
    worst = &row;
  }
  if (!worst) {
    return {"", "", {"no culprit: no block could be run on what the chain gave it"}};
  }
  const std::string figures =
      text(worst->checkpoint, " (", worst->block, ") introduces ", worst->shadow, " in the chain, ",
           worst->isolated, " on recorded inputs, allowed ", worst->shadow_limit);
  if (most > kMore) {
    return {worst->checkpoint, worst->block, {"suspected wiring: " + figures}};
  }
  return {
      "",
      "",
      {"no culprit: every block is right on what it was given and only their sum is not; most: " +
       figures}};
}

Culprit wrong_edge(const ChainRun& run, const std::vector<ChainRow>& rows, size_t index) {
  const ChainRow& row = rows[index];
  const Checkpoint& c = *run.of_row[index];
  if (c.inputs.contains("given")) {
    return {row.checkpoint,
            row.block,
            {text("wiring: the recorded model gave ", row.checkpoint, " (", row.block,
                  ") other ids than it was given")}};
  }
  const Culprit whole{row.checkpoint,
                      row.block,
                      {text("wiring: ", row.checkpoint, " (", row.block,
                            ") is right on recorded inputs and wrong "
                            "in the chain; its parts agree: look at its weights and residuals")}};
  const auto oracle = run_block(run, rows, index, DType::f64, OpSet().set());
  const auto rounded = run_block(run, rows, index, run.dtype, OpSet());
  if (!oracle || !rounded) return whole;
  const auto steps = run.replay.run(run.device, run.dtype, row.step,
                                    [&](int64_t step, const std::string& place, std::string_view) {
                                      return step == row.step && is_inside(place, c.path);
                                    });
  for (const Seen& part : steps.back()) {
    if (part.checkpoint == c.path) continue;
    const Tensor o = find_seen(oracle->parts, part.checkpoint, part.output);
    const double error = error_between(part.value, o);
    const double reference =
        error_between(find_seen(rounded->parts, part.checkpoint, part.output), o);
    if (std::isnan(reference)) continue;  // another shape, or a part that only one of them shows
    const double limit =
        c_of(run.dtype) * kappa(o.numel(), 1) * std::max(row.introduces * reference, row.floor);
    if (error <= limit) continue;
    return {part.checkpoint,
            row.block,
            {text("wiring: ", part.checkpoint, ", output \"", part.output, "\", in step ", row.step,
                  ": its error against the float64 block on the same inputs is ", error,
                  ", allowed ", limit, "; the parts before it agree")}};
  }
  return whole;
}

}  // namespace plumb::harness
