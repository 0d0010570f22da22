// A model at work: token ids on the host to logits on the host.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "blocks/models/decode_step.h"
#include "harness/model/model_folder.h"

namespace plumb::harness {

// Token ids, one sequence per row.
using TokenRows = std::vector<std::vector<int64_t>>;

// "1,5,7" is a sequence; anything else names a file with one sequence per line, ids separated by
// spaces or commas. Throws UsageError or BadInput for what is neither, and for no ids at all.
TokenRows read_tokens(const std::string& ids_or_file);

// Makes all rows as long as the longest by ids 0 on their left -> how many each got, or nothing
// where all were equally long.
std::vector<int64_t> pad_left(TokenRows& rows);

// Where a model's files are: a folder, or "tiny" and "tiny:gemma2-a4": a model of the project's own
// recordings. UsageError for an unknown name.
std::filesystem::path find_model(const std::string& name);

class Inference {
 public:
  // Room for `batch` sequences of up to `max_length` tokens; `padding`, `kind`: as
  // CausalLm::begin() says; `replay`: single tokens by DecodeStep's recorded launches where that is
  // possible.
  Inference(const ModelFolder& folder, Device& device, DType dtype, int64_t batch,
            int64_t max_length, const std::vector<int64_t>& padding = {}, bool replay = true,
            blocks::CacheKind kind = blocks::CacheKind::dynamic);

  // The next tokens of every sequence, equally many -> logits [B, T', V] of the last T' = min(keep,
  // T) of them (0: all), in the model's dtype. UsageError for an id that the model does not have,
  // BadInput where a file changed while it was used.
  Tensor forward(const TokenRows& tokens, int64_t keep, blocks::Observer* observer = nullptr);
  // The greedy choices [count][B] behind `last` [B], each the next step's token without coming to
  // the host; at most kMostAtOnce. Of equal logits the smallest id; where one is NaN,
  // -1 less its place (what follows in that row says nothing).
  TokenRows decode_greedily(const std::vector<int64_t>& last, int64_t count);
  // How many of them to ask for at once: those that take 20 ms together, so that tokens still
  // appear as they come, and at most kMostAtOnce.
  static int64_t at_once(double seconds_a_step);
  static constexpr int64_t kMostAtOnce = 16;

  // Drops the sequence, as at first.
  void restart();

  blocks::RotaryAngles& angles() { return sequence_.angles; }
  int64_t vocabulary() const { return model_->vocabulary(); }
  std::optional<int64_t> rereads_at() const { return model_->rereads_at(); }
  int64_t length() const { return sequence_.length; }
  // Why single tokens are not replayed; empty: they are.
  std::string why_eager() const { return step_.why_eager(); }

 private:
  // Throws BadInput where a file changed since: results cannot be trusted.
  void finish();
  void run_prompt(const Tensor& host_ids, int64_t kept, blocks::Observer* observer);

  const ModelFolder& folder_;
  Device& device_;
  std::unique_ptr<blocks::CausalLm> model_;
  std::vector<int64_t> padding_;
  blocks::Sequence sequence_;
  Tensor ids_, logits_;            // on the device, kept while their shapes stay the same
  Tensor step_ids_, step_logits_;  // of single tokens
  Tensor chosen_;                  // i64 [kMostAtOnce, B], a ring
  blocks::DecodeStep step_, greedy_step_;
};

}  // namespace plumb::harness
