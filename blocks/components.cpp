#include "blocks/components.h"

#include <algorithm>
#include <vector>

#include "kernels/core/error.h"

namespace plumb::blocks {

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

namespace {

// Outer axes of extent 1 repeated, without copying, as often as `like` has them.
Tensor broadcast(Tensor t, const Tensor& like) {
  for (int axis = 0; axis + 1 < t.rank() && axis < like.rank(); ++axis) {
    if (t.dim(axis) == 1) t = t.expand(axis, like.dim(axis));
  }
  return t;
}

}  // namespace

void run_add(const BlockCall& call) {
  const Tensor a = call.input("a");
  call.ctx.ops.add(call.output("out"), a, broadcast(call.input("b"), a));
}

void run_mul(const BlockCall& call) {
  const Tensor a = call.input("a");
  call.ctx.ops.mul(call.output("out"), a, broadcast(call.input("b"), a));
}

void run_div(const BlockCall& call) {
  const Tensor a = call.input("a");
  call.ctx.ops.div(call.output("out"), a, broadcast(call.input("b"), a));
}

void run_add_scalar(const BlockCall& call) {
  call.ctx.ops.add_scalar(call.output("out"), call.input("x"), call.params.number("value"));
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

void run_cast(const BlockCall& call) { call.ctx.ops.cast(call.output("out"), call.input("x")); }

void run_mask_fill(const BlockCall& call) {
  const Tensor x = call.input("x");
  call.ctx.ops.mask_fill(call.output("out"), x, broadcast(call.input("mask"), x),
                         call.params.number("value"));
}

void run_position_ids(const BlockCall& call) {
  call.ctx.ops.position_ids(call.output("out"), call.optional_input("token_valid"),
                            call.params.integer("offset"));
}

// A causal convolution over tokens on rows of channels: x, followed by `padding` zeros, gives the
// outputs from the first that sees `padding` zeros in front.
void run_conv1d(const BlockCall& call) {
  const Tensor x = call.input("x"), weight = call.input("weight"), out = call.output("out");
  const int64_t padding = call.params.integer("padding");
  call.params.expect(x.rank() == 3 && weight.rank() == 3, "x is ", x.shape(), ", weight ",
                     weight.shape(), "; both have three axes");
  const int64_t tokens = x.dim(2), kernel = weight.dim(2), skipped = kernel - 1 - padding;
  const Shape expected{x.dim(0), x.dim(1), tokens - skipped + padding};
  call.params.expect(padding >= 0 && skipped >= 0 && out.shape() == expected, "padding is ",
                     padding, " for a kernel of ", kernel, ", x ", x.shape(), " and out ",
                     out.shape());
  Context& ctx = call.ctx;
  const auto rows = [&](int64_t n) { return ctx.take(x.dtype(), {x.dim(0), n, x.dim(1)}); };
  const Tensor padded = rows(tokens + padding), convolved = rows(tokens + padding);
  ctx.ops.fill(padded, 0);
  ctx.ops.transpose(padded.slice(1, 0, tokens), x);
  ctx.ops.causal_conv1d(convolved, {}, padded, weight, call.optional_input("bias"), {}, {});
  ctx.ops.transpose(out, convolved.slice(1, skipped, tokens + padding));
}

namespace {

// The parameter as an axis of a tensor of this rank.
int read_axis(double axis, int rank, const Params& params) {
  params.expect(axis >= 0 && axis < rank && axis == static_cast<int>(axis), "axis ", axis,
                " of a tensor of rank ", rank);
  return static_cast<int>(axis);
}

// Axis i is axis order[i] of t; the last axis stays.
Tensor reordered(Tensor t, const std::vector<int>& order) {
  std::vector<int> now;
  for (int i = 0; i < t.rank(); ++i) now.push_back(i);
  for (int i = 0; i < t.rank(); ++i) {
    const auto from = std::find(now.begin() + i, now.end(), order[static_cast<size_t>(i)]);
    if (from == now.begin() + i) continue;
    t = t.transpose(i, static_cast<int>(from - now.begin()));
    std::iter_swap(now.begin() + i, from);
  }
  return t;
}

std::vector<int> read_axes(const Params& params, int rank) {
  std::vector<int> axes, sorted;
  for (const double axis : params.numbers("axes")) axes.push_back(read_axis(axis, rank, params));
  sorted = axes;
  std::sort(sorted.begin(), sorted.end());
  for (int i = 0; i < rank; ++i) {
    params.expect(static_cast<int>(sorted.size()) == rank && sorted[static_cast<size_t>(i)] == i,
                  "axes has ", axes.size(), " numbers, expected each axis of a tensor of rank ",
                  rank, " once");
  }
  return axes;
}

}  // namespace

void run_concat(const BlockCall& call) {
  const Tensor a = call.input("a"), b = call.input("b"), out = call.output("out");
  const int axis = read_axis(call.params.number("axis"), out.rank(), call.params);
  const int64_t first = a.dim(axis), both = first + b.dim(axis);
  call.params.expect(out.dim(axis) == both, "out has ", out.dim(axis), " along axis ", axis,
                     ", a and b have ", first, " and ", b.dim(axis));
  call.ctx.ops.copy(out.slice(axis, 0, first), a);
  call.ctx.ops.copy(out.slice(axis, first, both), b);
}

void run_slice(const BlockCall& call) {
  const Tensor x = call.input("x");
  const int axis = read_axis(call.params.number("axis"), x.rank(), call.params);
  const int64_t begin = call.params.integer("begin"), end = call.params.integer("end");
  call.params.expect(0 <= begin && begin <= end && end <= x.dim(axis), "elements ", begin, " to ",
                     end, " of ", x.dim(axis), " along axis ", axis);
  call.ctx.ops.copy(call.output("out"), x.slice(axis, begin, end));
}

// Views do all of it but for a last axis that moves: then the last two axes of both are made the
// ones that change places.
void run_permute(const BlockCall& call) {
  const Tensor x = call.input("x"), out = call.output("out");
  const std::vector<int> axes = read_axes(call.params, x.rank());
  const int last = x.rank() - 1;
  if (axes.back() == last) return call.ctx.ops.copy(out, reordered(x, axes));
  std::vector<int> from, to;
  int moved = 0;
  for (int i = 0; i < last; ++i) {
    const int source = axes[static_cast<size_t>(i)];
    if (source == last) moved = i;
    else from.push_back(source), to.push_back(i);
  }
  from.insert(from.end(), {axes.back(), last});
  to.insert(to.end(), {moved, last});
  call.ctx.ops.transpose(reordered(out, to), reordered(x, from));
}

}  // namespace plumb::blocks
