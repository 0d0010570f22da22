#include "blocks/components.h"

#include "kernels/error.h"

namespace plumb {

Activation read_activation(const Params& params, std::string_view parameter) {
  const std::string& name = params.string(parameter);
  const auto function = activation_from_name(name);
  if (!function) {
    throw Unsupported(text(params.where(), ": activation \"", name,
                           "\" is not implemented; known: silu, gelu, gelu_pytorch_tanh, tanh"));
  }
  return *function;
}

void run_activation(const BlockCall& call) {
  call.ctx.ops.activation(call.output("out"), call.input("x"), read_activation(call.params));
}

void run_glu_activation(const BlockCall& call) {
  call.ctx.ops.gated_activation(call.output("out"), call.input("gate"), call.input("up"),
                                read_activation(call.params));
}

void run_add(const BlockCall& call) {
  call.ctx.ops.add(call.output("out"), call.input("a"), call.input("b"));
}

void run_scale(const BlockCall& call) {
  const std::string& operation = call.params.string("operation");
  if (operation != "multiply" && operation != "divide") {
    throw BadInput(text(call.params.where(), ": operation is \"", operation,
                        "\", expected \"multiply\" or \"divide\""));
  }
  call.ctx.ops.scale(call.output("out"), call.input("x"), call.params.number("factor"),
                     operation == "multiply" ? ScaleOperation::multiply : ScaleOperation::divide);
}

void run_softcap(const BlockCall& call) {
  call.ctx.ops.softcap(call.output("out"), call.input("x"), call.params.number("cap"));
}

void run_repeat_kv(const BlockCall& call) {
  const Tensor x = call.input("x"), out = call.output("out");
  const int64_t repeats = call.params.integer("repeats");
  if (out.rank() != 4 || x.rank() != 4 || out.dim(1) != x.dim(1) * repeats) {
    throw BadInput(text(call.params.where(), ": repeats is ", repeats, ", but out has shape ",
                        out.shape(), " and x ", x.shape()));
  }
  call.ctx.ops.repeat_heads(out, x);
}

void run_matmul(const BlockCall& call) {
  call.ctx.ops.matmul(call.output("out"), call.input("a"), call.input("b"),
                      call.params.boolean("transpose_b"));
}

void run_masked_add(const BlockCall& call) {
  call.ctx.ops.masked_add(call.output("out"), call.input("x"), call.input("mask"));
}

void run_softmax(const BlockCall& call) {
  call.ctx.ops.softmax(call.output("out"), call.input("x"));
}

}  // namespace plumb
