// A causal language model: token ids to logits, call after call. Decoders of equal layers are rows
// in dialects.cpp; another architecture has its own file next to this one.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "blocks/context.h"
#include "blocks/kv_buffer.h"
#include "blocks/mamba_buffer.h"
#include "blocks/models/config.h"
#include "blocks/models/rotary_angles.h"
#include "blocks/weights.h"

namespace plumb::blocks {

// What a sequence (or a batch of them, all as long as the longest, the others padded on their left)
// leaves behind for its next tokens.
struct Sequence {
  int64_t batch = 1;
  int64_t length = 0;       // tokens so far
  int64_t max_length = 0;   // room
  Tensor token_valid = {};  // bool [batch, max_length], false for padding; undefined: there is none
  RotaryAngles angles;
  std::vector<KvBuffer> caches = {};     // per attention layer
  std::vector<MambaBuffer> states = {};  // per Mamba2 mixer
  Tensor position = {};                  // i64 [1], where a model keeps `length` in device memory
  CacheKind kind = CacheKind::dynamic;   // of the caches

  // Counts a token that replayed launches have added.
  void count_replayed() {
    ++length;
    for (KvBuffer& cache : caches) cache.count_replayed();
  }
};

class CausalLm {
 public:
  virtual ~CausalLm() = default;

  virtual int64_t vocabulary() const = 0;
  virtual DType dtype() const = 0;
  // Memory for `batch` sequences of up to `max_length` tokens on the device of the weights. The
  // first padding[row] tokens of a row are none: no other token sees them, and positions count from
  // behind them, as in transformers' generate(). One number per row, or none: no padding. With
  // caches of the fixed kind, `max_length` slots each, or a window, show and mask what HF's
  // StaticCache has; logits are the same.
  virtual Sequence begin(Device& device, int64_t batch, int64_t max_length,
                         const std::vector<int64_t>& padding = {},
                         CacheKind kind = CacheKind::dynamic) const = 0;
  // The next T tokens: ids i64 [B, T] -> logits [B, T', V] of the last T' <= T of them. UsageError
  // when they do not fit; after any error the sequence cannot continue. Between ids and logits
  // nothing moves between host and device, unless rotary frequencies depend on the length and it
  // changes them.
  virtual void forward(Context& ctx, const Tensor& logits, const Tensor& ids,
                       Sequence& sequence) const = 0;
  // Where generation that reaches so many tokens reads all of them again, without what is stored of
  // the earlier ones: prepare_inputs_for_generation() of Phi3, whose rotary frequencies change.
  virtual std::optional<int64_t> rereads_at() const { return {}; }
  // Whether forward() of one token queues the same launches whatever the length, on devices whose
  // ops read positions.
  virtual bool replayable(const Sequence&) const { return false; }
};

// Reads all of the configuration and asks for all weights; with Weights::shapes_only() the result
// says what the model needs, and cannot run. Unsupported for an unknown model_type;
// does not call weights.finish().
std::unique_ptr<CausalLm> load_model(const Weights& weights, const Config& config);

// What a model with this configuration asks for: Weights::asked() and ties(), without any memory.
Weights expected_weights(const Config& config);

}  // namespace plumb::blocks
