#include "harness/chain/chain_rows.h"

#include <algorithm>
#include <cmath>

#include "harness/chain/chain_compare.h"
#include "harness/recording/inside.h"
#include "harness/recording/recording_chain.h"
#include "harness/replay/external.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// The row that this checkpoint's main input comes from. Recordings store equal tensors once: what
// came out of a row goes in under the same key.
int64_t row_before(const ChainRows& chain, const Checkpoint& c) {
  const auto input = c.inputs.find(std::string(main_input(c)));
  if (input == c.inputs.end()) return -1;
  for (size_t i = chain.rows.size(); i-- > 0;) {
    const ChainRow& row = chain.rows[i];
    const OutputRef& output = chain.checkpoints[i]->outputs.at(row.output);
    if (row.step == c.step && output.tensor == input->second.tensor) return static_cast<int64_t>(i);
  }
  return -1;
}

// What blocks of the chain may introduce by contract. The most of all: what states are made by has
// no checkpoint of its own everywhere, and a chain of blocks that each introduce so many times what
// the reference does is off by at most as many times.
double most_introduced(const Recording& recording) {
  double most = 1;
  for (const Checkpoint& c : recording.checkpoints()) {
    for (const auto& [name, output] : c.outputs) {
      most = std::max(most, introduced_inside(c, output, recording.dtype()));
    }
  }
  return most;
}

ChainRows listed(const Recording& recording) {
  ChainRows out;
  const double introduces = most_introduced(recording);
  for (const Checkpoint& c : recording.checkpoints()) {
    for (const std::string_view output : chain_outputs(c)) {
      ChainRow row;
      row.checkpoint = c.id;
      row.block = c.block;
      row.output = output;
      row.step = c.step;
      row.before = row_before(out, c);
      row.amplification = c.amplification.value_or(kNoFigure);
      row.introduces = introduces;
      out.rows.push_back(std::move(row));
      out.checkpoints.push_back(&c);
    }
  }
  return out;
}

// A checkpoint that could not be judged alone ends the chain in the same way.
void require_judged(const CheckpointResult& done) {
  const std::string words = done.checkpoint + ": " + done.reason;
  switch (done.status) {
    case Status::unsupported: throw Unsupported(words);
    case Status::bad_input: throw BadInput(words);
    case Status::device_error: throw DeviceError(words);
    case Status::internal_error: throw Error(words);
    default: return;
  }
}

void note_run(CheckpointResult& result, const CheckpointResult& done) {
  for (const std::string& impl : done.impl) {
    const auto known = std::find(result.impl.begin(), result.impl.end(), impl);
    if (known == result.impl.end()) result.impl.push_back(impl);
  }
  result.fused = result.fused || done.fused;
  if (done.block == "lm_head") result.contract = done.contract;
}

// What the isolated run says of a row, as parts of what chained errors are parts of; its own floor.
Floors take_isolated(ChainRow& row, const CheckpointResult& done, double ratio) {
  row.isolated_failed = done.status == Status::fail;
  for (const OutputVerdict& output : done.outputs) {
    if (output.name != row.output) continue;
    row.isolated = ratio * output.statistics.tensor;
    row.isolated_reference = output.recorded_error;  // a part of the output itself already
    for (const Gate& gate : output.gates) {
      if (gate.name == "tensor") row.isolated_limit = ratio * gate.limit;
    }
    Floors own = output.floors;
    own.norm *= ratio;
    return own;
  }
  return {};
}

// The row as for the reference itself.
Floors take_reference(ChainRow& row, const Recording& recording, Device& oracle,
                      const Checkpoint& c) {
  CheckpointResult done = external_result(recording, c);
  const std::map<std::string, Tensor> itself = {
      {row.output, recording.read(c.outputs.at(row.output).tensor)}};
  const ExternalOptions how{recording.contracts().at(c.contract).points, false};
  status_of_exception(done, c.params.where(),
                      [&] { judge_external(recording, c, itself, how, oracle, done); });
  const double ratio = size_ratio(recording, c, row.output);
  Floors own = take_isolated(row, done, ratio);
  row.isolated =
      row.isolated_reference * introduced_inside(c, c.outputs.at(row.output), recording.dtype());
  row.isolated_failed = false;
  if (done.outputs.empty()) own.norm = ratio * kLimits.rounding * unit_roundoff(recording.dtype());
  return own;
}

// Floors of the blocks so far, in quadrature; a state's are those of the layer that it is of.
void add_floors(ChainRows& chain, const std::vector<Floors>& own) {
  for (size_t i = 0; i < chain.rows.size(); ++i) {
    ChainRow& row = chain.rows[i];
    const double before = row.before < 0 ? 0 : chain.rows[static_cast<size_t>(row.before)].floor;
    row.floor = std::hypot(before, own[i].norm);
    if (row.block == "rms_norm" || row.block == "lm_head") {
      const bool head = row.block == "lm_head";
      chain.head_floor = head ? std::hypot(chain.head_floor, own[i].norm) : own[i].norm;
    }
  }
  for (size_t i = chain.rows.size(); i-- > 0;) {
    ChainRow& row = chain.rows[i];
    if (!row.is_state()) continue;
    for (size_t k = i + 1; k < chain.rows.size() && chain.rows[k].step == row.step; ++k) {
      const std::string& layer = chain.checkpoints[k]->path;
      if (chain.rows[k].is_state() || !chain.checkpoints[i]->path.starts_with(layer)) continue;
      row.floor = chain.rows[k].floor;
      break;
    }
  }
}

}  // namespace

double introduced_inside(const Checkpoint& checkpoint, const OutputRef& output, DType storage) {
  const SpreadOf* shown =
      checkpoint.inside.empty() || !output.spread ? nullptr : output.spread->find("tensor");
  if (!shown) return 1;
  const double once = kLimits.rounding * unit_roundoff(storage);
  return std::max(1.0, shown->mean / std::max(output.error, once));
}

void note_inside(const Recording& recording, CheckpointResult& result) {
  for (const std::string& word : recording.inside()) {
    result.looser.push_back(word);
    result.details.push_back(inside_text(word));
  }
}

RunAlone run_in_turn(const Recording& recording, Device& device, Device& oracle,
                     const ReplayOptions& options) {
  return [&](const std::vector<const Checkpoint*>& checkpoints) {
    Replayer replayer(recording, device, oracle, options);
    std::vector<CheckpointResult> out;
    for (const Checkpoint* checkpoint : checkpoints) out.push_back(replayer.run(*checkpoint));
    return out;
  };
}

ChainRows chain_rows(const Recording& recording, const RunAlone& run_alone,
                     CheckpointResult& result) {
  ChainRows out = listed(recording);
  std::vector<const Checkpoint*> checkpoints = out.checkpoints;  // one may have several rows
  checkpoints.erase(std::unique(checkpoints.begin(), checkpoints.end()), checkpoints.end());
  const size_t of_rows = checkpoints.size();
  for (const Checkpoint& c : recording.checkpoints()) {
    if (c.block == "rotary_table") checkpoints.push_back(&c);
  }
  const std::vector<CheckpointResult> alone = run_alone(checkpoints);
  std::vector<Floors> floors;
  size_t at = 0;
  for (size_t i = 0; i < out.rows.size(); ++i) {
    if (checkpoints[at] != out.checkpoints[i]) ++at;
    const CheckpointResult& done = alone.at(at);
    if (floors.empty() || out.checkpoints[i] != out.checkpoints[i - 1]) {
      require_judged(done);
      note_run(result, done);
    }
    const double ratio = size_ratio(recording, *out.checkpoints[i], out.rows[i].output);
    floors.push_back(take_isolated(out.rows[i], done, ratio));
  }
  for (size_t i = of_rows; i < alone.size(); ++i) {
    note_run(result, alone[i]);
    if (alone[i].status == Status::fail && !out.wrong_table) out.wrong_table = alone[i];
  }
  add_floors(out, floors);
  return out;
}

ChainRows reference_rows(const Recording& recording, Device& oracle) {
  ChainRows out = listed(recording);
  std::vector<Floors> floors;
  for (size_t i = 0; i < out.rows.size(); ++i) {
    const bool state = out.rows[i].is_state();
    floors.push_back(state ? Floors()
                           : take_reference(out.rows[i], recording, oracle, *out.checkpoints[i]));
  }
  add_floors(out, floors);
  return out;
}

}  // namespace plumb::harness
