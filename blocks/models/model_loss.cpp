#include "blocks/models/model_loss.h"

#include "blocks/models/decoder.h"
#include "kernels/core/error.h"

namespace plumb::blocks {
namespace {

constexpr int64_t kIgnored = -100;

// What a Config has read, of a copy, or it has thrown.
void take_all(const Params& params) {
  for (const auto& [name, value] : params.values()) {
    params.ignore(name);
    if (const auto* nested = std::get_if<Params>(&value)) take_all(*nested);
  }
}

// Of a buffer that is one of the call's operands; nothing where it is none.
std::vector<double> buffer_values(const BlockCall& call, const std::string& name) {
  const Tensor buffer = call.optional_input("buffers.model." + name);
  if (!buffer.defined()) return {};
  const Tensor host = host_tensor(buffer.dtype(), buffer.shape());
  call.ctx.ops.device().download(host.raw(), buffer);
  std::vector<double> values;
  for (int64_t i = 0; i < host.numel(); ++i)
    values.push_back(load(host.dtype(), host.data<char>() + i * size_of(host.dtype())));
  return values;
}

// What another program rounded to its own dtype: Gemma's scale of embeddings, in the model's, and
// the rotary frequencies, in float32.
void set_roundings(CausalLm& model, Sequence& sequence, const BlockCall& call) {
  const std::vector<double> scale = buffer_values(call, "embed_tokens.embed_scale");
  auto* decoder = dynamic_cast<Decoder*>(&model);
  if (decoder && scale.size() == 1) decoder->embedding.scale = scale[0];
  sequence.angles.set_frequencies(buffer_values(call, "rotary_emb.inv_freq"));
}

void run_model_loss(const BlockCall& call) {
  for (const auto& [name, t] : call.inputs) {
    // The configuration says what is in buffers: frequencies, and the scale of embeddings.
    const bool known = name == "input_ids" || name == "labels" || name.starts_with("buffers.");
    require<Unsupported>(known, "loss", "of a model that is given ", name,
                         ", and not ids and labels alone");
  }
  Context& ctx = call.ctx;
  Arena::Scope scope(ctx.ops.arena());
  const auto model = load_model(call.weights, Config(call.params));
  take_all(call.params);
  for (const auto& [alias, name] : call.weights.ties())
    call.weights.find(alias);  // the same weight
  const Tensor ids = call.input("input_ids"), labels = call.input("labels");
  require<BadInput>(ids.rank() == 2 && labels.shape() == ids.shape(), "loss",
                    "input_ids have shape ", ids.shape(), ", labels ", labels.shape());
  const auto* decoder = dynamic_cast<const Decoder*>(model.get());
  require<Unsupported>(decoder != nullptr, "loss", "of a model that is no decoder");
  const int64_t batch = ids.dim(0), tokens = ids.dim(1), rows = batch * tokens;
  Sequence sequence = model->begin(ctx.ops.device(), batch, tokens);
  set_roundings(*model, sequence, call);
  const Tensor hidden = ctx.take(model->dtype(), {batch, tokens, decoder->sizes.hidden});
  decoder->run_to_head(ctx, hidden, ids, sequence);
  const Tensor next = ctx.take(DType::i64, labels.shape());  // of each token the label behind it
  PerAxis left;
  left[1] = -1;
  ctx.ops.pad(next, labels, left, kIgnored);
  const LmHead& head = decoder->head;
  require<Unsupported>(head.projection.weight.defined(), "loss", "of a quantised head");
  ctx.ops.linear_cross_entropy(call.output("out").view({1}), hidden.view({rows, hidden.dim(2)}),
                               head.projection.weight, next.view({rows}),
                               {kIgnored, head.scale.value_or(1), head.softcap});
}

}  // namespace

const BlockEntry& model_loss_block() {
  static const BlockEntry entry{"loss", run_model_loss, BitRule::none, RowRule::all,
                                "a whole model's cross entropy"};
  return entry;
}

}  // namespace plumb::blocks
