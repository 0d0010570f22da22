#include "blocks/glu_mlp.h"

#include "blocks/components.h"
#include "kernels/core/error.h"

namespace plumb::blocks {

GluMlp GluMlp::load(const Weights& weights, const Params& params) {
  GluMlp mlp;
  if (Linear::is_in(weights, "gate_up_proj")) {
    mlp.gate = Linear::load(weights, params, "gate_up_proj");
    if (params.boolean_or("adapter", false)) {
      const std::string call = text(params.integer("call"));
      mlp.adapter = LowRankAdapter::load(weights / "gate_up_proj_adapter_list" / call);
    }
  } else {
    mlp.gate = Linear::load(weights, params, "gate_proj");
    mlp.up = Linear::load(weights, params, "up_proj");
  }
  params.ignore("call");  // without an adapter it names nothing
  mlp.down = Linear::load(weights, params, "down_proj");
  mlp.function = read_activation(params);
  return mlp;
}

void GluMlp::operator()(Context& ctx, const Tensor& out, const Tensor& hidden) const {
  Arena::Scope scope(ctx.ops.arena());
  const auto widened = [&](int64_t width) {
    Shape shape = hidden.shape();
    shape.set(-1, width);
    return ctx.take(hidden.dtype(), shape);
  };
  const bool packed = !up.defined();
  Tensor gate_values = widened(gate.rows());
  gate(ctx, gate_values, hidden);
  ctx.probe(packed ? "gate_up_proj" : "gate_proj", "out", gate_values);
  if (adapter) {
    adapter->add_to(ctx, "gate_up_proj_adapter_list", gate_values, adapter->narrowed(ctx, hidden));
  }
  Tensor up_values;
  if (packed) {
    const int64_t half = gate.rows() / 2;
    up_values = gate_values.slice(-1, half, gate.rows());
    gate_values = gate_values.slice(-1, 0, half);
  } else {
    up_values = widened(up.rows());
    up(ctx, up_values, hidden);
    ctx.probe("up_proj", "out", up_values);
  }
  const Tensor product = widened(down.columns());
  ctx.ops.gated_activation(product, gate_values, up_values, function);
  ctx.probe(":glu_activation", "out", product);
  down(ctx, out, product);
  ctx.probe("", "out", out);
}

void run_glu_mlp(const BlockCall& call) {
  GluMlp::load(call.weights, call.params)(call.ctx, call.output("out"), call.input("hidden"));
}

}  // namespace plumb::blocks
