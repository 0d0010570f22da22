// What a plugin of version 2 is passed with its tensors; what one of version 1 may not have.
#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/plugin/plugin_device.h"
#include "tests/catch.h"

namespace plumb {
namespace {

// Of the last call, whose own tensors are gone when it has returned.
plumb_call seen;
std::vector<plumb_tensor> tensors;
int note(const plumb_call* call) {
  seen = *call;
  tensors.assign(call->tensors, call->tensors + call->count);
  return PLUMB_OK;
}

// The CPU with one op that only notes its call.
std::unique_ptr<Device> noting(const char* name, int32_t version = PLUMB_PLUGIN_VERSION) {
  static plumb_op op;
  static plumb_plugin plugin;
  op = {name, note, {24, 0, 0}};
  plugin = {version, "mine", "cpu", nullptr, 1, &op};
  return replace_ops(open_cpu_device(1),
                     {std::make_shared<const PluginLibrary>(plugin, "mine.so")});
}

TEST_CASE("a plugin is passed the axis, the offset, the groups and the bounds of a scan") {
  const auto sums = noting("cumsum");
  const auto of = [&](Device& device, const Shape& shape, DType dtype = DType::f32) {
    return device.allocate(dtype, shape);
  };
  sums->ops().cumsum(of(*sums, {2, 3}), of(*sums, {2, 3}), 1);
  CHECK(seen.more.axis == 1);
  CHECK(seen.count == 2);

  const auto ids = noting("position_ids");
  ids->ops().position_ids(of(*ids, {2, 3}, DType::i64), {}, 7);
  CHECK(seen.more.offset == 7);
  CHECK(tensors[1].data == nullptr);

  const auto norm = noting("gated_rms_norm");
  const Tensor x = of(*norm, {2, 8});
  norm->ops().gated_rms_norm(x, x, x, of(*norm, {8}), {1e-5, 4});
  CHECK(seen.params.eps == 1e-5);
  CHECK(seen.more.group_size == 4);

  const auto add = noting("add_scalar");
  add->ops().add_scalar(of(*add, {2}), of(*add, {2}), -2.5);
  CHECK(seen.params.scale == -2.5);

  const auto scan = noting("ssd_scan");
  const Tensor y = of(*scan, {1, 2, 4, 3}), dt = of(*scan, {1, 2, 4}), b = of(*scan, {1, 2, 2, 5});
  const Tensor head = of(*scan, {4}), state = of(*scan, {1, 4, 3, 5});
  scan->ops().ssd_scan(y, state, {y, dt, b, b, head, head, head, state},
                       {SsdForm::chunk, 64, 0.001, std::nullopt});
  CHECK(seen.count == 10);
  CHECK(tensors[9].data == state.raw());
  CHECK(seen.more.chunk_size == 64);
  CHECK(seen.more.dt_min == 0.001);
  CHECK(std::isinf(seen.more.dt_max));
  CHECK(seen.more.step == 0);

  const auto total = noting("sum");
  total->ops().reduce(OpId::sum, of(*total, {3}), of(*total, {2, 3, 4}), {0, 2});
  CHECK(seen.more.axes == 5);
  const auto line = noting("affine");
  line->ops().affine(of(*line, {3}), of(*line, {3}), 2, 0.5);
  CHECK(seen.params.scale == 2);
  CHECK(seen.more.shift == 0.5);

  const auto table = noting("embedding_backward");
  const Tensor rows = of(*table, {3, 4});
  table->ops().embedding_backward(rows, rows, of(*table, {3}, DType::i64), 2, 1);
  CHECK(seen.params.scale == 2);
  CHECK(seen.more.index == 1);

  const auto product = noting("gemm");
  const Tensor square = of(*product, {4, 4});
  product->ops().gemm(square, square, square, square, {}, {2, 0.5, true, false, Activation::tanh});
  CHECK(seen.count == 5);
  CHECK(seen.params.scale == 2);
  CHECK(seen.more.beta == 0.5);
  CHECK(seen.more.transpose_a == 1);
  CHECK(seen.params.transpose_b == 0);
  CHECK(seen.params.activation == PLUMB_TANH);

  const auto window = noting("conv2d");
  const Tensor plane = of(*window, {1, 2, 9, 9});
  window->ops().convolve(OpId::conv2d, of(*window, {1, 4, 3, 5}), plane, of(*window, {4, 1, 3, 3}),
                         {}, {{3, 2}, {2, 1}, {2, 1}, {}, 2});
  CHECK(seen.count == 4);
  CHECK(seen.more.groups == 2);
  CHECK(seen.more.stride[0] == 3);
  CHECK(seen.more.padding[1] == 1);
  CHECK(seen.more.dilation[0] == 2);
  const auto one_axis = noting("conv_transpose1d");
  one_axis->ops().convolve(OpId::conv_transpose1d, of(*one_axis, {1, 3, 8}),
                           of(*one_axis, {1, 2, 3}), of(*one_axis, {2, 3, 3}), {},
                           {{7, 2}, {}, {1, 1}, {0, 1}, 1});
  CHECK(tensors[0].rank == 3);
  CHECK(seen.more.stride[1] == 2);
  CHECK(seen.more.output_padding[1] == 1);
  const auto pool = noting("avg_pool2d");
  pool->ops().pool(OpId::avg_pool2d, of(*pool, {1, 2, 4, 9}), of(*pool, {1, 2, 9, 9}),
                   {{2, 1}, {2, 1}, {0, 0}, true});
  CHECK(seen.more.kernel[0] == 2);
  CHECK(seen.more.counts_padding == 1);
  const auto grouped = noting("group_norm");
  grouped->ops().group_norm(of(*grouped, {1, 6, 2}), of(*grouped, {1, 6, 2}), {}, {}, {3, 1e-6});
  CHECK(seen.params.eps == 1e-6);
  CHECK(seen.more.groups == 3);
  const auto moved = noting("roll");
  moved->ops().roll(of(*moved, {2, 3}), of(*moved, {2, 3}), {{5, -1}});
  CHECK(seen.more.per_axis[0] == 5);
  CHECK(seen.more.per_axis[1] == -1);
  const auto padded = noting("pad");
  padded->ops().pad(of(*padded, {2, 3}, DType::i8), of(*padded, {2, 3}, DType::i8), {{0, 1}}, 2.5);
  CHECK(seen.more.per_axis[1] == 1);
  CHECK(seen.params.scale == 2.5);
  CHECK(tensors[0].dtype == PLUMB_I8);
  const auto chosen = noting("top_k");
  chosen->ops().top_k(of(*chosen, {2, 1}), of(*chosen, {2, 1}, DType::i64), of(*chosen, {2, 3}),
                      true);
  CHECK(seen.more.largest == 1);
  CHECK(seen.params.transpose_b == 0);
  const auto selected = noting("index_select");
  selected->ops().index_select(of(*selected, {2, 1}), of(*selected, {2, 3}),
                               of(*selected, {1}, DType::u8), 1);
  CHECK(seen.more.axis == 1);
  CHECK(tensors[2].dtype == PLUMB_U8);
  const auto drawn = noting("normal");
  drawn->ops().normal(of(*drawn, {3}), {7, 9});
  CHECK(seen.more.seed == 7);
  CHECK(seen.more.offset == 9);

  const auto conv = noting("causal_conv1d");
  const Tensor tokens = of(*conv, {1, 2, 3});
  conv->ops().causal_conv1d(tokens, {}, tokens, of(*conv, {3, 1, 4}), {}, {}, Activation::gelu);
  CHECK(seen.more.has_activation == 1);
  CHECK(seen.params.activation == PLUMB_GELU);
  conv->ops().causal_conv1d(tokens, {}, tokens, of(*conv, {3, 1, 4}), {}, {}, std::nullopt);
  CHECK(seen.more.has_activation == 0);
}

TEST_CASE("a plugin is passed layouts, groups, rules and divisors") {
  const auto of = [&](Device& device, const Shape& shape, DType dtype = DType::f32) {
    return device.allocate(dtype, shape);
  };
  const auto linear = noting("quantised_linear");
  linear->ops().quantised_linear(of(*linear, {2, 3}), of(*linear, {2, 16}),
                                 of(*linear, {3, 2}, DType::i32), of(*linear, {3, 2}), {}, {}, {},
                                 {}, {}, {QuantLayout::int4, {1, 8}});
  CHECK(seen.more.layout == PLUMB_INT4);
  CHECK(seen.more.group[0] == 1);
  CHECK(seen.more.group[1] == 8);
  CHECK(seen.count == 9);
  CHECK(tensors[4].data == nullptr);

  const auto quantize = noting("quantize");
  quantize->ops().quantize(of(*quantize, {2, 8}, DType::u8), of(*quantize, {2, 2}),
                           of(*quantize, {2, 2}, DType::u8), of(*quantize, {2, 8}),
                           {ScaleRule::asymmetric, {1, 4}, 255});
  CHECK(seen.more.scale_rule == PLUMB_ASYMMETRIC);
  CHECK(seen.more.divisor == 255);
  CHECK(seen.more.group[1] == 4);

  const auto attention = noting("quantised_sdpa");
  const Tensor q = of(*attention, {1, 2, 3, 8}), k = of(*attention, {1, 1, 5, 8}, DType::i8);
  const Tensor scales = of(*attention, {1, 1, 5, 1});
  attention->ops().quantised_sdpa(of(*attention, {1, 3, 2, 8}), q, k, k, scales, scales, {},
                                  {0.25, {}});
  CHECK(seen.params.scale == 0.25);
  CHECK(seen.count == 8);
}

TEST_CASE("a plugin of version 1 has the ops whose parameters it is passed") {
  CHECK_NOTHROW(noting("rms_norm", 1));
  CHECK_THROWS_WITH(noting("cumsum", 1),
                    "[plugin] mine.so: ops[0]: cumsum has parameters that version 1 does not pass: "
                    "build it against this version's kernels/plugin.h");
  CHECK_THROWS_WITH(noting("rms_norm", 3),
                    "[plugin] mine.so: version is 3, this harness takes 1 to 2: build it against "
                    "this version's kernels/plugin.h");
}

}  // namespace
}  // namespace plumb
