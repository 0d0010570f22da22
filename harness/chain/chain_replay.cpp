#include "harness/chain/chain_replay.h"

#include <algorithm>
#include <optional>

#include "harness/io/printable.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

TokenRows rows_of(const Tensor& ids) {
  TokenRows out;
  const int64_t tokens = ids.dim(1), *next = ids.data<int64_t>();
  for (int64_t b = 0; b < ids.dim(0); ++b, next += tokens) out.emplace_back(next, next + tokens);
  return out;
}

// Inverse frequencies of every step that has a table of cos and sin.
std::vector<std::vector<double>> recorded_frequencies(const Recording& recording, size_t steps) {
  std::vector<std::vector<double>> out(steps);
  for (const Checkpoint& c : recording.checkpoints()) {
    const auto inv_freq = c.inputs.find("inv_freq");
    if (c.block != "rotary_table" || inv_freq == c.inputs.end()) continue;
    const Tensor values = recording.read(inv_freq->second.tensor);
    if (values.dtype() != DType::f32 || c.step < 0 || static_cast<size_t>(c.step) >= steps) {
      throw BadInput(text(c.params.where(), ": inv_freq is ", name_of(values.dtype()), " in step ",
                          c.step, ", expected f32 in one of ", steps, " steps"));
    }
    const float* data = values.data<float>();
    out[static_cast<size_t>(c.step)].assign(data, data + values.numel());
  }
  return out;
}

blocks::CacheKind recorded_kind(const Recording& recording) {
  const JsonValue cache = recording.provenance().at("run").at("cache");
  if (cache.is_null() || cache.string() == "dynamic") return blocks::CacheKind::dynamic;
  if (cache.string() == "static") return blocks::CacheKind::fixed;
  throw Unsupported(text("a chain on a ", printable(cache.string()), " cache"));
}

// Slots of the longest static cache; none: 0.
int64_t recorded_slots(const Recording& recording) {
  int64_t out = 0;
  for (const Checkpoint& c : recording.checkpoints()) {
    if (c.block == "static_kv_cache") out = std::max(out, c.params.integer("max_length"));
  }
  return out;
}

int64_t tokens_of(const TokenRows& rows) { return static_cast<int64_t>(rows.at(0).size()); }

}  // namespace

std::vector<TokenRows> recorded_ids(const Recording& recording) {
  std::vector<TokenRows> out;
  for (const Checkpoint& c : recording.checkpoints()) {
    // The model's, which its code may have changed before the embedding got them.
    auto ids = c.inputs.find("given");
    if (ids == c.inputs.end()) ids = c.inputs.find("ids");
    if (c.block != "embedding" || ids == c.inputs.end()) continue;
    const TensorInfo& info = recording.tensor_info(ids->second.tensor);
    const bool fits = info.dtype == DType::i64 && info.shape.rank() == 2 &&
                      info.shape.numel() > 0 && c.step == static_cast<int64_t>(out.size());
    if (!fits) {
      throw BadInput(text(c.params.where(), ": ids are ", name_of(info.dtype), ' ', info.shape,
                          " in step ", c.step, ", expected i64 [batch, token] in step ", out.size(),
                          "; record the whole model from its first call"));
    }
    out.push_back(rows_of(recording.read(ids->second.tensor)));
  }
  if (out.empty()) {
    throw BadInput(text(recording.folder().string(),
                        ": has no checkpoint of the embedding, whose ids start a chain"));
  }
  return out;
}

std::vector<int64_t> recorded_padding(const Recording& recording) {
  std::vector<int64_t> out;
  const JsonValue padding = recording.provenance().at("run").at("left_pad");
  if (padding.is_null()) return out;
  for (const JsonValue tokens : padding.items()) out.push_back(tokens.integer(0));
  return out;
}

bool continues(const Recording& recording) {
  return recording.mode() != "whole" && recording.mode() != "padded";
}

Tensor find_seen(const std::vector<Seen>& seen, const std::string& checkpoint,
                 std::string_view output) {
  for (auto it = seen.rbegin(); it != seen.rend(); ++it) {
    if (it->checkpoint == checkpoint && it->output == output) return it->value;
  }
  return {};
}

std::string place_of(const Checkpoint& c) {
  return c.function.empty() ? c.path : c.path + ':' + c.function;
}

void Notes::probe(const std::string& checkpoint, std::string_view output, const Tensor& value) {
  if (disturb_) {
    device_.synchronize();
    disturb_(checkpoint, output, value);
  }
  if (!wanted_(checkpoint, output)) return;
  Ops& ops = device_.ops();
  Arena::Scope scope(ops.arena());
  Tensor dense = value;
  if (!value.contiguous()) {
    dense = ops.arena().take(value.dtype(), value.shape());
    ops.copy(dense, value);
  }
  const Tensor host = host_tensor(value.dtype(), value.shape());
  device_.download(host.raw(), dense);
  seen_.push_back({checkpoint, std::string(output), host});
}

ChainReplay::ChainReplay(const Recording& recording)
    : folder_(recording.folder()),
      ids_(recorded_ids(recording)),
      inv_freq_(recorded_frequencies(recording, ids_.size())),
      padding_(recorded_padding(recording)),
      kind_(recorded_kind(recording)),
      room_(recorded_slots(recording)),
      goes_on_(continues(recording)) {
  int64_t tokens = 0;
  for (const TokenRows& rows : ids_) tokens += tokens_of(rows);
  room_ = std::max(room_, tokens);
}

std::vector<std::vector<Seen>> ChainReplay::run(Device& device, DType dtype, int64_t last,
                                                const Wanted& wanted, const Disturb& disturb,
                                                const Frequencies& frequencies) const {
  std::vector<std::vector<Seen>> out;
  std::optional<Inference> inference;
  for (int64_t step = 0; step <= last; ++step) {
    const TokenRows& rows = ids_[static_cast<size_t>(step)];
    if (!inference || !goes_on_) {
      inference.emplace(folder_, device, dtype, static_cast<int64_t>(rows.size()), room_, padding_,
                        true, kind_);
    }
    std::vector<double> inv_freq = inv_freq_[static_cast<size_t>(step)];
    if (dtype == DType::f64 && !inv_freq.empty()) {
      if (frequencies) frequencies(inv_freq);
      inference->angles().set_frequencies(std::move(inv_freq));
    }
    Notes::Disturb change;
    if (disturb) {
      change = [&](const std::string& checkpoint, std::string_view output, const Tensor& value) {
        disturb(step, checkpoint, output, value);
      };
    }
    const auto is_wanted = [&](const std::string& checkpoint, std::string_view output) {
      return wanted(step, checkpoint, output);
    };
    Notes notes(device, is_wanted, change);
    inference->forward(rows, 0, &notes);
    device.synchronize();
    out.push_back(notes.seen());
  }
  return out;
}

}  // namespace plumb::harness
