#include "harness/chain/chain_tokens.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>

namespace plumb::harness {
namespace {

// One flag per batch entry and token, or slot. Empty: all are judged.
struct Flags {
  int64_t batch = 0, count = 0;
  std::vector<uint8_t> set;

  bool all() const { return set.empty(); }
  bool at(int64_t b, int64_t t) const { return all() || set[static_cast<size_t>(b * count + t)]; }
};

Flags ones(int64_t batch, int64_t count) {
  return {batch, count, std::vector<uint8_t>(static_cast<size_t>(batch * count), 1)};
}

Flags recorded_flags(const Recording& recording, const OutputRef& output) {
  const std::vector<std::string> expected = {"batch", "token"};
  if (!output.valid || output.valid->axes != expected) return {};
  const Tensor mask = recording.read(output.valid->tensor);
  Flags out = ones(mask.dim(0), mask.dim(1));
  for (size_t i = 0; i < out.set.size(); ++i) out.set[i] = mask.data<bool>()[i];
  return out;
}

// Both; of tokens of which one keeps only the last, those.
Flags both(const Flags& own, const Flags& before, int64_t batch, int64_t count) {
  if (own.all() && (before.all() || before.batch != batch || before.count < count)) return own;
  Flags out = ones(batch, count);
  const int64_t skipped = before.all() ? 0 : before.count - count;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t t = 0; t < count; ++t) {
      out.set[static_cast<size_t>(b * count + t)] = own.at(b, t) && before.at(b, t + skipped);
    }
  }
  return out;
}

// A layer's tokens so far, one after the other.
Flags appended(const Flags& earlier, const Flags& now, int64_t batch, int64_t past, int64_t fresh) {
  if (earlier.all() && now.all()) return {};
  Flags out = ones(batch, past + fresh);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t t = 0; t < past + fresh; ++t) {
      out.set[static_cast<size_t>(b * out.count + t)] =
          t < past ? earlier.at(b, t) : now.at(b, t - past);
    }
  }
  return out;
}

// A cache holds the last tokens of all; slots behind them are unused.
Flags in_slots(const Flags& tokens, int64_t batch, int64_t all, int64_t slots) {
  if (tokens.all()) return {};
  Flags out = ones(batch, slots);
  const int64_t dropped = std::max<int64_t>(0, all - slots);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t slot = 0; slot < std::min(slots, all - dropped); ++slot) {
      out.set[static_cast<size_t>(b * slots + slot)] = tokens.at(b, slot + dropped);
    }
  }
  return out;
}

Tensor tensor_of(const Flags& flags) {
  if (flags.all()) return {};
  const Tensor out = host_tensor(DType::boolean, {flags.batch, flags.count});
  for (size_t i = 0; i < flags.set.size(); ++i) out.data<bool>()[i] = flags.set[i] != 0;
  return out;
}

bool is_cache(const ChainRow& row) {
  return row.block == "kv_cache" || row.block == "static_kv_cache";
}

// The row of the layer that a state belongs to.
std::optional<size_t> layer_of(const ChainRows& chain, size_t state) {
  const std::string& path = chain.checkpoints[state]->path;
  for (size_t i = state + 1; i < chain.rows.size(); ++i) {
    if (chain.rows[i].step != chain.rows[state].step) break;
    if (!chain.rows[i].is_state() && path.starts_with(chain.checkpoints[i]->path)) return i;
  }
  return std::nullopt;
}

}  // namespace

std::vector<Tensor> judged_tokens(const Recording& recording, const ChainRows& chain,
                                  const std::vector<int64_t>& tokens, bool goes_on) {
  std::vector<Flags> flags(chain.rows.size());
  std::map<std::string, Flags> stored;  // by cache and output: of all tokens so far
  std::vector<Tensor> out;
  for (size_t i = 0; i < chain.rows.size(); ++i) {
    const ChainRow& row = chain.rows[i];
    const OutputRef& output = chain.checkpoints[i]->outputs.at(row.output);
    const Shape shape = recording.tensor_info(output.tensor).shape;
    const auto before_of = [&](const ChainRow& r) {
      return r.before < 0 ? Flags() : flags[static_cast<size_t>(r.before)];
    };
    if (!row.is_state()) {
      const Flags own = recorded_flags(recording, output);
      flags[i] = both(own, before_of(row), shape[0], shape[1]);
    } else if (const auto layer = layer_of(chain, i); layer && is_cache(row)) {
      int64_t past = 0;
      for (int64_t s = 0; goes_on && s < row.step; ++s) past += tokens[static_cast<size_t>(s)];
      const int64_t fresh = tokens[static_cast<size_t>(row.step)];
      Flags& all = stored[chain.checkpoints[i]->path + ' ' + row.output];
      all =
          appended(past > 0 ? all : Flags(), before_of(chain.rows[*layer]), shape[0], past, fresh);
      flags[i] = in_slots(all, shape[0], past + fresh, shape[2]);
    }
    out.push_back(tensor_of(flags[i]));
  }
  return out;
}

void leave_out_padding(std::vector<Tensor>& judged, const Recording& recording,
                       const ChainRows& chain, const std::vector<int64_t>& tokens,
                       const std::vector<int64_t>& left_pad) {
  for (size_t i = 0; i < chain.rows.size() && !left_pad.empty(); ++i) {
    const ChainRow& row = chain.rows[i];
    const OutputRef& output = chain.checkpoints[i]->outputs.at(row.output);
    const Shape shape = recording.tensor_info(output.tensor).shape;
    if (row.is_state() && !is_cache(row)) continue;
    int64_t all = 0;  // tokens of this call, or in the cache so far
    for (int64_t s = row.is_state() ? 0 : row.step; s <= row.step; ++s) {
      all += tokens[static_cast<size_t>(s)];
    }
    if (!row.is_state() && row.step > 0) continue;
    const int64_t count = shape[row.is_state() ? 2 : 1];
    const int64_t dropped = std::max<int64_t>(0, all - count);
    const Tensor& known = judged[i];
    const Tensor out = host_tensor(DType::boolean, {shape[0], count});
    for (int64_t b = 0; b < shape[0]; ++b) {
      for (int64_t t = 0; t < count; ++t) {
        const bool fits = !known.defined() || known.data<bool>()[b * count + t];
        out.data<bool>()[b * count + t] = fits && t + dropped >= left_pad[static_cast<size_t>(b)];
      }
    }
    judged[i] = out;
  }
}

}  // namespace plumb::harness
