// Every backward op on the oracle, in float64, against central differences of its forward op along
// random directions; and what the ops refuse.
#include <cmath>

#include "kernels/core/error.h"
#include "kernels/ops/map_call.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

using Catch::Contains;
using Tensors = std::vector<Tensor>;

Tensor float64(Device& device, const Shape& shape, const Values& values) {
  const Tensor out = device.allocate(DType::f64, shape);
  device.upload(out, values.data());
  return out;
}
Tensor float64(Device& device, const Shape& shape) {
  return float64(device, shape, Values(static_cast<size_t>(shape.numel())));
}
Values values_in(Device& device, const Tensor& t) {
  Values out(static_cast<size_t>(t.numel()));
  device.download(out.data(), t);
  return out;
}
double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// A forward op of some inputs, and its backward: gradients of the inputs from those of the output.
struct Gradient {
  std::vector<Shape> inputs;
  Shape output;
  std::function<void(Ops&, const Tensor& out, const Tensors& in)> forward;
  std::function<void(Ops&, const Tensors& gradients, const Tensors& in, const Tensor& d_out)>
      backward;

  // |difference of the loss - gradient . direction| <= 1e-6 of what their lengths allow.
  void check() const {
    const auto device = open_device("oracle", 1);
    std::vector<Values> at;
    for (size_t i = 0; i < inputs.size(); ++i) {
      at.push_back(random_values(DType::f64, inputs[i].numel(), static_cast<uint32_t>(10 + i)));
    }
    const Values cotangent = random_values(DType::f64, output.numel(), 1);
    const auto placed = [&](const std::vector<Values>& values) {
      Tensors out;
      for (size_t i = 0; i < inputs.size(); ++i) {
        out.push_back(float64(*device, inputs[i], values[i]));
      }
      return out;
    };
    const auto loss = [&](const std::vector<Values>& values) {
      const Tensor out = float64(*device, output);
      forward(device->ops(), out, placed(values));
      return dot(values_in(*device, out), cotangent);
    };
    Tensors gradients;
    for (const Shape& shape : inputs) gradients.push_back(float64(*device, shape));
    backward(device->ops(), gradients, placed(at), float64(*device, output, cotangent));
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Values gradient = values_in(*device, gradients[i]);
      REQUIRE(dot(gradient, gradient) > 0);
      for (uint32_t seed = 100; seed < 104; ++seed) {
        INFO("input " << i << ", direction " << seed);
        constexpr double kStep = 1e-5;
        const Values direction = random_values(DType::f64, inputs[i].numel(), seed);
        std::vector<Values> above = at, below = at;
        for (size_t j = 0; j < direction.size(); ++j) {
          above[i][j] += kStep * direction[j];
          below[i][j] -= kStep * direction[j];
        }
        const double found = dot(gradient, direction);
        const double difference = (loss(above) - loss(below)) / (2 * kStep);
        const double length = std::sqrt(dot(gradient, gradient) * dot(direction, direction));
        CHECK(std::fabs(found - difference) <= 1e-6 * length);
      }
    }
  }
};

Activation any_activation() {
  return GENERATE(Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::tanh);
}

TEST_CASE("gradients of elementwise ops are those of their formulas") {
  const Shape shape{3, 50};
  for (const auto& [op, of] : {std::pair{OpId::sigmoid_backward, OpId::sigmoid},
                               std::pair{OpId::softplus_backward, OpId::softplus},
                               std::pair{OpId::relu_backward, OpId::relu}}) {
    INFO(name_of(op));
    Gradient{{shape},
             shape,
             [&](Ops& ops, const Tensor& out, const Tensors& in) { ops.unary(of, out, in[0]); },
             [&](Ops& ops, const Tensors& d, const Tensors& in, const Tensor& d_out) {
               ops.binary(op, d[0], in[0], d_out);
             }}
        .check();
  }
  Gradient{{shape},
           shape,
           [](Ops& ops, const Tensor& out, const Tensors& in) { ops.softcap(out, in[0], 1.5); },
           [](Ops& ops, const Tensors& d, const Tensors& in, const Tensor& d_out) {
             ops.binary(OpId::softcap_backward, d[0], in[0], d_out, 1.5);
           }}
      .check();
}

TEST_CASE("gradients of activations, and of gates") {
  const Activation f = any_activation();
  const Shape shape{3, 50};
  Gradient{{shape},
           shape,
           [f](Ops& ops, const Tensor& out, const Tensors& in) { ops.activation(out, in[0], f); },
           [f](Ops& ops, const Tensors& d, const Tensors& in, const Tensor& d_out) {
             ops.activation_backward(d[0], in[0], d_out, f);
           }}
      .check();
  Gradient{{shape, shape},
           shape,
           [f](Ops& ops, const Tensor& out, const Tensors& in) {
             ops.gated_activation(out, in[0], in[1], f);
           },
           [f](Ops& ops, const Tensors& d, const Tensors& in, const Tensor& d_out) {
             ops.gated_activation_backward(d[0], d[1], in[0], in[1], d_out, f);
           }}
      .check();
}

TEST_CASE("gradients of softmax") {
  const Shape shape{2, 3, 17};
  Gradient{{shape},
           shape,
           [](Ops& ops, const Tensor& out, const Tensors& in) { ops.softmax(out, in[0]); },
           [](Ops& ops, const Tensors& d, const Tensors& in, const Tensor& d_out) {
             const Tensor y = ops.device().allocate(DType::f64, in[0].shape());
             ops.softmax(y, in[0]);
             ops.softmax_backward(d[0], y, d_out);
           }}
      .check();
}

TEST_CASE("gradients of norms") {
  const Shape shape{2, 3, 24};
  const RmsNormParams rms{0.125, GENERATE(0.0, 1.0),
                          GENERATE(WeightRounding::before, WeightRounding::after)};
  Gradient{
      {shape, {24}},
      shape,
      [&](Ops& ops, const Tensor& out, const Tensors& in) { ops.rms_norm(out, in[0], in[1], rms); },
      [&](Ops& ops, const Tensors& d, const Tensors& in, const Tensor& d_out) {
        ops.rms_norm_backward(d[0], d[1], in[0], in[1], d_out, rms);
      }}
      .check();
  Gradient{{shape, {24}, {24}},
           shape,
           [](Ops& ops, const Tensor& out, const Tensors& in) {
             ops.layer_norm(out, in[0], in[1], in[2], 0.125);
           },
           [](Ops& ops, const Tensors& d, const Tensors& in, const Tensor& d_out) {
             ops.layer_norm_backward(d[0], d[1], d[2], in[0], in[1], d_out, 0.125);
           }}
      .check();
  Gradient{{shape, shape, {24}},
           shape,
           [](Ops& ops, const Tensor& out, const Tensors& in) {
             ops.gated_rms_norm(out, in[0], in[1], in[2], {0.125, 8});
           },
           [](Ops& ops, const Tensors& d, const Tensors& in, const Tensor& d_out) {
             ops.gated_rms_norm_backward(d[0], d[1], d[2], in[0], in[1], in[2], d_out, {0.125, 8});
           }}
      .check();
}

TEST_CASE("gradients of an embedding's table: equal ids add up, the padding's row is 0") {
  const auto device = open_device("oracle", 1);
  const Tensor ids = device->allocate(DType::i64, {2, 3});
  const std::vector<int64_t> values = {4, 1, 4, 0, 4, 3};
  device->upload(ids, values.data());
  const auto backward = [&](const Tensor& d_weight, const Values& d_out, int64_t padding) {
    device->ops().embedding_backward(d_weight, float64(*device, {2, 3, 2}, d_out), ids, 2, padding);
    return values_in(*device, d_weight);
  };
  const Values d_out = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const Tensor d_weight = float64(*device, {6, 2}, Values(12, 5));
  CHECK(backward(d_weight, d_out, -1) == Values{14, 16, 6, 8, 0, 0, 22, 24, 30, 36, 0, 0});
  CHECK(backward(d_weight, d_out, 4) == Values{14, 16, 6, 8, 0, 0, 22, 24, 0, 0, 0, 0});
  CHECK_THROWS_WITH(backward(d_weight, d_out, 6),
                    Contains("padding is 6, expected a row of the 6"));
  const Tensor few = float64(*device, {4, 2});
  CHECK_THROWS_WITH(backward(few, d_out, -1),
                    Contains("[embedding_backward] id 4 at place 0 of ids is outside [0, 4)"));
}

TEST_CASE("gradients of rotary: the inverse rotation, of some columns, in both styles") {
  const RotaryStyle style = GENERATE(RotaryStyle::half, RotaryStyle::interleaved);
  const Shape shape{2, 3, 5, 10};
  const Values cos = random_values(DType::f64, 5 * 8, 7), sin = random_values(DType::f64, 5 * 8, 8);
  const auto table = [](Ops& ops, const Values& v) { return float64(ops.device(), {1, 5, 8}, v); };
  Gradient{{shape},
           shape,
           [&](Ops& ops, const Tensor& out, const Tensors& in) {
             ops.rotary(out, in[0], table(ops, cos), table(ops, sin), style);
           },
           [&](Ops& ops, const Tensors& d, const Tensors&, const Tensor& d_out) {
             ops.rotary_backward(d[0], d_out, table(ops, cos), table(ops, sin), style);
           }}
      .check();
}

TEST_CASE("gradients of cross entropy: ignored labels have none and do not count") {
  const auto labels_of = [](Ops& ops, const std::vector<int64_t>& values) {
    const Tensor out = ops.device().allocate(DType::i64, {std::ssize(values)});
    ops.device().upload(out, values.data());
    return out;
  };
  const std::vector<int64_t> labels = {3, -100, 0, 6, -100};
  Gradient{{{5, 7}},
           {1},
           [&](Ops& ops, const Tensor& out, const Tensors& in) {
             ops.cross_entropy(out, in[0], labels_of(ops, labels));
           },
           [&](Ops& ops, const Tensors& d, const Tensors& in, const Tensor& d_out) {
             ops.cross_entropy_backward(d[0], in[0], labels_of(ops, labels), d_out);
             const Values all = values_in(ops.device(), d[0]);
             for (size_t i = 0; i < 7; ++i) CHECK((all[7 + i] == 0 && all[28 + i] == 0));
           }}
      .check();
  const auto device = open_device("oracle", 1);
  const Tensor loss = float64(*device, {1}), logits = float64(*device, {2, 3}, {1, 2, 3, 0, 0, 0});
  device->ops().cross_entropy(loss, logits, labels_of(device->ops(), {2, 2}));
  const double exact = (std::log(1 + std::exp(-1) + std::exp(-2)) + std::log(3)) / 2;
  CHECK(std::fabs(values_in(*device, loss)[0] - exact) < 1e-15);
  device->ops().cross_entropy(loss, logits, labels_of(device->ops(), {1, 1}), 1);
  CHECK(std::isnan(values_in(*device, loss)[0]));
  CHECK_THROWS_WITH(device->ops().cross_entropy(loss, logits, labels_of(device->ops(), {2, 3})),
                    Contains("[cross_entropy] id 3 at place 1 of ids is outside [0, 3)"));
}

TEST_CASE("gradients of a head's cross entropy") {
  const std::vector<int64_t> labels = {3, -100, 0, 6, -100};
  const LogitLossParams params{-100, GENERATE(1.0, 0.3), GENERATE(std::optional<double>(), 2.5)};
  const auto on_device = [&](Ops& ops) {
    const Tensor out = ops.device().allocate(DType::i64, {5});
    ops.device().upload(out, labels.data());
    return out;
  };
  Gradient{{{5, 4}, {7, 4}},
           {1},
           [&](Ops& ops, const Tensor& out, const Tensors& in) {
             ops.linear_cross_entropy(out, in[0], in[1], on_device(ops), params);
           },
           [&](Ops& ops, const Tensors& d, const Tensors& in, const Tensor& d_out) {
             ops.linear_cross_entropy_backward(d[0], d[1], in[0], in[1], on_device(ops), d_out,
                                               params);
           }}
      .check();
}

TEST_CASE("gradients of the causal convolution") {
  const auto function = GENERATE(std::optional<Activation>(), std::optional(Activation::silu));
  const int64_t width = GENERATE(1, 4), tokens = GENERATE(1, 3, 11);
  const Shape shape{2, tokens, 6};
  Gradient{{shape, {6, 1, width}, {6}},
           shape,
           [&](Ops& ops, const Tensor& out, const Tensors& in) {
             ops.causal_conv1d(out, {}, in[0], in[1], in[2], {}, function);
           },
           [&](Ops& ops, const Tensors& d, const Tensors& in, const Tensor& d_out) {
             ops.causal_conv1d_backward(d[0], d[1], d[2], in[0], in[1], in[2], d_out, function);
           }}
      .check();
}

TEST_CASE("gradients of linear, of any leading axes") {
  Gradient{
      {{2, 3, 5}, {4, 5}, {4}},
      {2, 3, 4},
      [](Ops& ops, const Tensor& out, const Tensors& in) { ops.linear(out, in[0], in[1], in[2]); },
      [](Ops& ops, const Tensors& d, const Tensors& in, const Tensor& d_out) {
        ops.linear_backward(d[0], d[1], d[2], in[0], in[1], d_out);
      }}
      .check();
}

TEST_CASE("gradients of matmul: over the heads of a group") {
  const bool transpose_b = GENERATE(false, true);
  const int64_t groups = GENERATE(1, 2, 4);
  Gradient{{{2, 4, 3, 5}, transpose_b ? Shape{2, groups, 6, 5} : Shape{2, groups, 5, 6}},
           {2, 4, 3, 6},
           [&](Ops& ops, const Tensor& out, const Tensors& in) {
             ops.matmul(out, in[0], in[1], transpose_b);
           },
           [&](Ops& ops, const Tensors& d, const Tensors& in, const Tensor& d_out) {
             ops.matmul_backward(d[0], d[1], in[0], in[1], d_out, transpose_b);
           }}
      .check();
}

// Every device against the oracle: the op suite. Here what it leaves out.
TEST_CASE("an unknown label or id is an error on every device") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  Ops& ops = device->ops();
  const auto whole = [&](const std::vector<int64_t>& values) {
    const Tensor out = device->allocate(DType::i64, {std::ssize(values)});
    device->upload(out, values.data());
    return out;
  };
  const auto logits = holding(*device, DType::f32, {2, 3}, {1, 2, 3, 0, 0, 0});
  const auto loss = holding(*device, DType::f32, {1}, {1});
  Guarded gradient(*device, DType::f32, {2, 3});
  const Tensor labels = whole({2, 3});
  const auto fails = [&](auto call, const std::string& said) {
    CHECK_THROWS_WITH((call(), device->synchronize()), Contains(said));
  };
  fails([&] { ops.cross_entropy(loss, logits, labels); }, "[cross_entropy] id 3 at place 1");
  fails([&] { ops.cross_entropy_backward(gradient, logits, labels, loss); },
        "[cross_entropy_backward] id 3 at place 1");
  // Of a head, in chunks of one row.
  const auto x = holding(*device, DType::f32, {2, 2}, {1, 2, 3, 0});
  const auto weight = holding(*device, DType::f32, {3, 2}, {1, 2, 3, 0, 0, 0});
  Guarded d_x(*device, DType::f32, {2, 2}), d_weight(*device, DType::f32, {3, 2});
  const LogitLossParams rows{.chunk = 3};
  fails([&] { ops.linear_cross_entropy(loss, x, weight, labels, rows); },
        "cross_entropy] id 3 at place 1");
  fails([&] { ops.linear_cross_entropy_backward(d_x, d_weight, x, weight, labels, loss, rows); },
        "cross_entropy_backward] id 3 at place 1");
  fails([&] { ops.linear_cross_entropy(loss, x, weight, labels, {.softcap = 0}); },
        "[linear_cross_entropy] softcap is 0, must be positive");
  fails(
      [&] {
        ops.embedding_backward(gradient, logits, whole({0, -1}));
      },
      "[embedding_backward] id -1 at place 1");
}

// More ids than one block sorts, of which many are equal: each sum has its terms in their order.
TEST_CASE("sums by ids add from the first place on, of many ids") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  const int64_t tokens = GENERATE(1, 256, 257, 1500), rows = 7, columns = 3;
  const Values d = random_values(DType::f32, tokens * columns, 5);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back(i * i % 11 % rows);
  const Tensor on_device = device->allocate(DType::i64, {tokens});
  device->upload(on_device, ids.data());
  Values sums(static_cast<size_t>(rows * columns), 0);
  std::vector<float> in_order(sums.size(), 0.0f);
  for (size_t i = 0; i < d.size(); ++i) {
    const size_t to = static_cast<size_t>(ids[i / 3]) * 3 + i % 3;
    sums[to] += d[i];
    in_order[to] += static_cast<float>(d[i]);
  }
  const auto d_out = holding(*device, DType::f32, {tokens, columns}, d);
  const auto zeros = holding(*device, DType::f32, {rows, columns}, Values(sums.size(), 0));
  Guarded d_weight(*device, DType::f32, {rows, columns}),
      added(*device, DType::f32, {rows, columns});
  device->ops().embedding_backward(d_weight, d_out, on_device);
  device->ops().index_add(added, zeros, on_device, d_out, 0);
  device->synchronize();
  const bool wide = device->name() == "oracle";
  for (const Guarded* made : {&d_weight, &added}) {
    const Values got = made->get();
    for (size_t i = 0; i < got.size(); ++i) {
      INFO("row " << i / 3 << " of " << tokens << " ids");
      CHECK(got[i] == (wide ? round_to(DType::f32, sums[i]) : static_cast<double>(in_order[i])));
    }
  }
}

// A sum over 4096 tokens that was rounded to storage on the way would be off by many units.
TEST_CASE("gradients of weights are summed in float32") {
  const auto device = open_test_device(GENERATE(from_range(test_devices())));
  constexpr int64_t kTokens = 4096, kColumns = 3;
  Ops& ops = device->ops();
  const Values x = random_values(DType::bf16, kTokens * kColumns, 1),
               d = random_values(DType::bf16, kTokens * kColumns, 2);
  Values bias(kColumns, 0), wide(kColumns, 0);
  for (size_t i = 0; i < d.size(); ++i) {
    bias[i % kColumns] += d[i];
    wide[i % kColumns] += std::fabs(d[i]);
  }
  const auto in = holding(*device, DType::bf16, {kTokens, kColumns}, x),
             d_out = holding(*device, DType::bf16, {kTokens, kColumns}, d),
             w = holding(*device, DType::bf16, {kColumns}, {1, 1, 1});
  Guarded d_x(*device, DType::bf16, {kTokens, kColumns}), d_w(*device, DType::bf16, {kColumns}),
      d_b(*device, DType::bf16, {kColumns});
  ops.layer_norm_backward(d_x, d_w, d_b, in, w, d_out, 1e-5);
  device->synchronize();
  Values bound;
  for (size_t c = 0; c < bias.size(); ++c) {
    bound.push_back(rounding_unit(DType::bf16) * std::fabs(bias[c]) + 8 * kU32 * wide[c]);
  }
  require_close(d_b.get(), bias, bound);
}

}  // namespace
}  // namespace plumb
