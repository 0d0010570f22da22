#include "blocks/models/decode_step.h"

#include "kernels/core/error.h"

namespace plumb::blocks {

std::string DecodeStep::why_eager() const {
  if (!asked_) return "not asked for";
  if (!model_.replayable(sequence_))
    return "launches depend on the length, by rotary frequencies or padding";
  if (!device_.ops().reads_positions()) return "ops of the device do not read positions";
  return "";
}

void DecodeStep::queue() {
  Context ctx{device_.ops()};
  model_.forward(ctx, logits_, ids_, sequence_);
  if (!log_.defined()) return;
  ctx.ops.choose_greedily(ids_, log_, logits_, {sequence_.length, sequence_.position});
}

void DecodeStep::operator()() {
  require(sequence_.length < sequence_.max_length, "decode", "the sequence has room for ",
          sequence_.max_length, " tokens and is full");
  if (graph_) {
    graph_->replay();
    sequence_.count_replayed();
    return;
  }
  if (warm_ && why_eager().empty()) graph_ = device_.capture([&] { queue(); });
  warm_ = true;
  if (graph_) graph_->replay();  // forward() has counted the token
  else queue();
}

}  // namespace plumb::blocks
