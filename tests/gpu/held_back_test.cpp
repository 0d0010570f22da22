// Ops that share a launch give the bits that each of them gives alone.
#include "kernels/ops/op_params.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/slots.h"
#include "tests/gpu/gpu_devices.h"

namespace plumb {
namespace {

// The ops of a program, one after the other, on tensors that it names; then all of their bytes.
// apart: each op is launched before the next is queued.
class Program {
 public:
  Program(Device& device, DType dtype, bool apart)
      : device_(device), dtype_(dtype), apart_(apart) {}

  Tensor tensor(const Shape& shape, std::optional<DType> dtype = {}) {
    const Tensor out = device_.allocate(dtype.value_or(dtype_), shape);
    const Tensor host = host_tensor(out.dtype(), shape);
    for (int64_t i = 0; i < host.numel(); ++i) {
      // Such that sums in another order have other bits.
      const double value = static_cast<double>((7 * i + 13 * ++count_) % 61 - 30) / 17;
      if (out.dtype() == DType::i64) host.data<int64_t>()[i] = 5;
      else store(host.dtype(), host.data<char>() + i * size_of(host.dtype()), value);
    }
    device_.upload(out, host.raw());
    tensors_.push_back(out);
    return out;
  }
  Ops& ops() {
    if (apart_) device_.queue();
    return device_.ops();
  }
  std::string bytes() {
    std::string all;
    for (const Tensor& t : tensors_) {
      std::string out(static_cast<size_t>(t.bytes()), '\0');
      device_.download(out.data(), t);
      all += out;
    }
    return all;
  }

 private:
  Device& device_;
  DType dtype_;
  bool apart_;
  int64_t count_ = 0;
  std::vector<Tensor> tensors_;
};

void require_same_bits(const std::function<void(Program&)>& body) {
  std::vector<std::string> names = gpu_devices();
  if (!names.empty() && is_emulated(names.back())) names.emplace_back("emu:64");
  for (const std::string& name : names) {
    const auto device = open_device(name);
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      INFO(name << ' ' << name_of(dtype));
      Program together(*device, dtype, false), apart(*device, dtype, true);
      body(together);
      body(apart);
      REQUIRE(together.bytes() == apart.bytes());
    }
  }
}

constexpr int64_t kLong = 264;  // elements: no short row in any dtype (RowProduct::is_short)
constexpr RmsNormParams kLlama{1e-5, 0, WeightRounding::before};
constexpr RmsNormParams kGemma{1e-6, 1, WeightRounding::after};

TEST_CASE("held back: norms around a residual sum") {
  for (const int64_t columns : {8, 40, 1000}) {
    for (const int64_t rows : {1, 3}) {
      INFO(rows << " rows of " << columns);
      require_same_bits([=](Program& p) {
        const Shape shape{1, rows, columns};
        const Tensor hidden = p.tensor(shape), branch = p.tensor(shape), middle = p.tensor(shape);
        const Tensor normed = p.tensor(shape), w = p.tensor({columns}), v = p.tensor({columns});
        // Gemma: R(norm) + residual, and its norm
        p.ops().rms_norm(branch, branch, w, kGemma);
        p.ops().add_rms_norm(middle, normed, branch, hidden, v, kGemma);
        p.ops().rms_norm(branch, normed, w, kGemma);
        p.ops().add(hidden, middle, branch);
        p.ops().rms_norm(normed, hidden, v, kGemma);
        // LLaMA: the sum of one layer, the norm of the next
        p.ops().add(hidden, middle, branch);
        p.ops().rms_norm(normed, hidden, w, kLlama);
        // the same with the sum in place, another norm behind it, and two sums
        p.ops().add(middle, middle, normed);
        p.ops().rms_norm(branch, middle, v, kLlama);
        p.ops().rms_norm(normed, middle, w, kLlama);
        p.ops().add(middle, normed, hidden);
        p.ops().add(hidden, middle, normed);
      });
    }
  }
}

TEST_CASE("held back: what reads what another thread writes waits") {
  require_same_bits([](Program& p) {
    const int64_t columns = 64;
    const Tensor row = p.tensor({2, columns}), w = p.tensor({columns});
    const Tensor first = row.slice(0, 0, 1), second = row.slice(0, 1, 2),
                 out = p.tensor({1, columns});
    const Tensor halves = p.tensor({1, 2 * columns});
    const Tensor left = halves.slice(1, 0, columns),
                 over = halves.slice(1, columns / 2, columns / 2 + columns);
    p.ops().rms_norm(first, second, w, kLlama);
    p.ops().add(out, first, first);  // the norm is both terms
    p.ops().rms_norm(second, out, w, kLlama);
    p.ops().rms_norm(left, out, w, kLlama);
    p.ops().add(out, over, left);  // and here half of the other one
    p.ops().rms_norm(left, out, w, kLlama);
    p.ops().add(over, left, out);  // written next to where it is read
    p.ops().rms_norm(out, over, w, kGemma);
    p.ops().add(w.view({1, columns}), out, first);  // a weight
    p.ops().rms_norm(out, w.view({1, columns}), w, kLlama);
  });
}

TEST_CASE("held back: gate and up projections with their activation") {
  for (const Activation function :
       {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::tanh}) {
    for (const auto& [columns, inner] :
         {std::pair<int64_t, int64_t>{2, 64}, {7, kLong}, {40, 64}, {40, kLong}}) {
      INFO(name_of(function) << ' ' << columns << " columns, " << inner << " inner");
      require_same_bits([=](Program& p) {
        const Tensor x = p.tensor({1, 1, inner}), w = p.tensor({columns, inner});
        const Tensor v = p.tensor({columns, inner}), bias = p.tensor({columns});
        const Tensor both = p.tensor({2 * columns, inner}), both_bias = p.tensor({2 * columns});
        const auto row = [&](int64_t n) { return p.tensor({1, 1, n}); };
        const Tensor gate = row(columns), up = row(columns), out = row(columns);
        p.ops().linear(gate, x, w);
        p.ops().linear(up, x, v, bias);
        p.ops().gated_activation(out, gate, up, function);
        const Tensor swapped = row(columns), a = row(columns), b = row(columns);
        p.ops().linear(a, x, w, bias);
        p.ops().linear(b, x, v);
        p.ops().gated_activation(swapped, b, a, function);
        const Tensor packed = row(2 * columns), of_packed = row(columns);
        p.ops().linear(packed, x, both, both_bias);
        p.ops().gated_activation(of_packed, packed.slice(2, 0, columns),
                                 packed.slice(2, columns, 2 * columns), function);
        // In place of what it is made of, and of one row with itself: not in the product.
        p.ops().linear(a, x, w);
        p.ops().linear(b, x, v);
        p.ops().gated_activation(a, a, b, function);
        p.ops().linear(b, x, v);
        p.ops().gated_activation(out, b, b, function);
      });
    }
  }
}

// Whole numbers, whose sums are exact.
TEST_CASE("one row: any number of vectors, blocks for one wave and for several") {
  for (const std::string& name : gpu_devices()) {
    const auto device = open_device(name);
    for (const DType dtype : {DType::bf16, DType::f32}) {
      for (const int64_t inner : {8, 120, 128, 136, 256, 264, 1024, 1032, 2048, 2056, 3072, 3080,
                                  4096, 5128, 8192, 9216}) {
        for (const int64_t columns : {3, 66, 80, 81}) {
          const Tensor x = device->allocate(dtype, {1, inner});
          const Tensor w = device->allocate(dtype, {columns, inner});
          const Tensor out = device->allocate(dtype, {1, columns});
          const auto x_at = [](int64_t i) { return static_cast<double>(i % 3 - 1); };
          const auto w_at = [](int64_t i) { return static_cast<double>(i * 7 % 11 % 5 - 2); };
          const auto put = [&](const Tensor& t, const auto& at) {
            const Tensor host = host_tensor(dtype, t.shape());
            for (int64_t i = 0; i < t.numel(); ++i) {
              store(dtype, host.data<char>() + i * size_of(dtype), at(i));
            }
            device->upload(t, host.raw());
          };
          put(x, x_at);
          put(w, w_at);
          device->ops().linear(out, x, w);
          const Tensor host = host_tensor(dtype, out.shape());
          device->download(host.raw(), out);
          for (int64_t c = 0; c < columns; ++c) {
            double sum = 0;
            for (int64_t i = 0; i < inner; ++i) sum += x_at(i) * w_at(c * inner + i);
            INFO(name << ' ' << name_of(dtype) << ' ' << inner << " inner, column " << c);
            REQUIRE(load(dtype, host.data<char>() + c * size_of(dtype)) == round_to(dtype, sum));
          }
        }
      }
    }
  }
}

// q, k and v of one token, rotated and stored.
void project(Program& p, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t rotated,
             std::optional<int64_t> window, bool bias, int64_t inner = kLong) {
  const int64_t slots = window ? 2 * *window : 8;
  const Tensor x = p.tensor({1, 1, inner}), past = p.tensor({1}, DType::i64);
  const Tensor cos = p.tensor({1, 1, rotated}), sin = p.tensor({1, 1, rotated});
  // All of them first: what is made between two ops would launch what is held.
  struct Projection {
    Tensor out, weight, bias;
  };
  const auto projection = [&](int64_t count) {
    const int64_t columns = count * head_dim;
    return Projection{p.tensor({1, 1, columns}), p.tensor({columns, inner}),
                      bias ? p.tensor({columns}) : Tensor()};
  };
  const std::vector<Projection> all{projection(heads), projection(kv_heads), projection(kv_heads)};
  const Tensor keys = p.tensor({1, kv_heads, slots, head_dim});
  const Tensor values = p.tensor({1, kv_heads, slots, head_dim});
  for (const Projection& one : all) p.ops().linear(one.out, x, one.weight, one.bias);
  const auto heads_of = [&](const Projection& one) {
    return one.out.view({1, 1, one.out.dim(2) / head_dim, head_dim}).transpose(1, 2);
  };
  const Tensor q = heads_of(all[0]), k = heads_of(all[1]), v = heads_of(all[2]);
  p.ops().rotary(q, q, cos, sin, RotaryStyle::half);
  p.ops().rotary(k, k, cos, sin, RotaryStyle::half);
  p.ops().store_tokens(keys, values, k, v, {5, past}, window);
}

TEST_CASE("held back: rotated and stored rows of one token") {
  for (const std::optional<int64_t> window :
       {std::optional<int64_t>(), std::optional<int64_t>(3)}) {
    for (const bool bias : {false, true}) {
      require_same_bits([=](Program& p) { project(p, 4, 2, 16, 16, window, bias); });
      require_same_bits([=](Program& p) { project(p, 4, 2, 16, 16, window, bias, 48); });
      require_same_bits([=](Program& p) { project(p, 3, 3, 10, 10, window, bias); });
      require_same_bits([=](Program& p) { project(p, 1, 1, 8, 8, window, bias); });
      require_same_bits([=](Program& p) { project(p, 2, 1, 16, 8, window, bias); });  // a part
    }
  }
}

TEST_CASE("held back: one column of a convolution") {
  for (const auto function : {std::optional<Activation>(), std::optional(Activation::silu)}) {
    for (const auto& [biased, inner] :
         {std::pair<bool, int64_t>{false, 64}, {true, 64}, {true, kLong}}) {
      require_same_bits([=](Program& p) {
        const int64_t before = 4, channels = 12, behind = 3, columns = before + channels + behind;
        const Tensor x = p.tensor({1, 1, inner}), w = p.tensor({columns, inner});
        const Tensor row = p.tensor({1, 1, columns}), out = p.tensor({1, 1, channels});
        const Tensor taps = p.tensor({channels, 1, 4}), state = p.tensor({1, channels, 4});
        const Tensor bias = biased ? p.tensor({channels}) : Tensor();
        const Tensor other = p.tensor({1, channels, 4});
        const Tensor part = row.slice(2, before, before + channels);
        for (int step = 0; step < 3; ++step) {
          p.ops().linear(row, x, w);
          p.ops().causal_conv1d(out, state, part, taps, bias, state, function);
        }
        // Another state behind it, the row's own place, and a second one of the same row.
        p.ops().linear(row, x, w);
        p.ops().causal_conv1d(out, other, part, taps, bias, state, function);
        p.ops().linear(row, x, w);
        p.ops().causal_conv1d(part, state, part, taps, bias, state, function);
        p.ops().linear(row, x, w);
        p.ops().causal_conv1d(out, state, part, taps, bias, state, function);
        p.ops().causal_conv1d(out, state, part, taps, bias, state, function);
      });
    }
  }
}

TEST_CASE("held back: adapters of projections that share their input") {
  for (const bool gated : {false, true}) {
    require_same_bits([=](Program& p) {
      const int64_t inner = kLong, rank = 16, head_dim = 8, columns = 2 * head_dim;
      const Tensor x = p.tensor({1, 1, inner}), past = p.tensor({1}, DType::i64);
      const Tensor cos = p.tensor({1, 1, head_dim}), sin = p.tensor({1, 1, head_dim});
      const Tensor keys = p.tensor({1, 2, 8, head_dim}), values = p.tensor({1, 2, 8, head_dim});
      struct Adapted {
        Tensor row, weight, narrow, down, update, up;
      };
      std::vector<Adapted> all;
      for (int i = 0; i < 3; ++i) {
        all.push_back({p.tensor({1, 1, columns}), p.tensor({columns, inner}),
                       p.tensor({1, 1, rank}), p.tensor({rank, inner}), p.tensor({1, 1, columns}),
                       p.tensor({columns, rank})});
      }
      const Tensor product = p.tensor({1, 1, columns / 2});
      for (const Adapted& a : all) p.ops().linear(a.row, x, a.weight);
      for (const Adapted& a : all) p.ops().linear(a.narrow, x, a.down);
      for (const Adapted& a : all) {
        p.ops().linear(a.update, a.narrow, a.up);
        p.ops().add(a.row, a.row, a.update);
      }
      if (gated) {
        const Tensor& both = all[2].row;
        p.ops().gated_activation(product, both.slice(2, 0, columns / 2),
                                 both.slice(2, columns / 2, columns), Activation::gelu);
        // Two sums are no pair of columns.
        p.ops().linear(all[0].update, all[0].narrow, all[0].up);
        p.ops().add(all[0].row, all[0].row, all[0].update);
        p.ops().linear(all[1].update, all[1].narrow, all[1].up);
        p.ops().add(all[1].row, all[1].row, all[1].update);
        p.ops().gated_activation(all[2].row, all[0].row, all[1].row, Activation::silu);
        return;
      }
      const auto heads = [=](const Tensor& t) {
        return t.view({1, 1, 2, head_dim}).transpose(1, 2);
      };
      p.ops().rotary(heads(all[0].row), heads(all[0].row), cos, sin, RotaryStyle::half);
      p.ops().rotary(heads(all[1].row), heads(all[1].row), cos, sin, RotaryStyle::half);
      p.ops().store_tokens(keys, values, heads(all[1].row), heads(all[2].row), {5, past}, {});
    });
  }
}

TEST_CASE("held back: products of short rows and of long ones") {
  require_same_bits([](Program& p) {
    const int64_t columns = 9, inner = 104;
    const Tensor x = p.tensor({1, kLong}), w = p.tensor({columns, kLong});
    const Tensor y = p.tensor({1, inner}), v = p.tensor({columns, inner});
    std::vector<Tensor> out;
    for (int i = 0; i < 4; ++i) out.push_back(p.tensor({1, columns}));
    p.ops().linear(out[0], x, w);
    p.ops().linear(out[1], y, v);
    p.ops().linear(out[2], y, v);
    p.ops().linear(out[3], x, w);
  });
}

TEST_CASE("held back: a product's row that others use meanwhile") {
  require_same_bits([](Program& p) {
    const int64_t n = 16;
    const Tensor x = p.tensor({1, 1, n}), w = p.tensor({n, n}), v = p.tensor({n, n});
    const Tensor a = p.tensor({1, 1, n}), b = p.tensor({1, 1, n}), past = p.tensor({1}, DType::i64);
    const auto heads = [](const Tensor& t) { return t.view({1, 1, 2, 8}).transpose(1, 2); };
    const Tensor cos = p.tensor({1, 1, 8}), sin = p.tensor({1, 1, 8});
    const Tensor slots = p.tensor({1, 2, 16, 8}), more = p.tensor({1, 2, 16, 8});
    // The angles are a product's row, too.
    p.ops().linear(a, x, w);
    p.ops().linear(b, x, v);
    p.ops().rotary(heads(a), heads(a), b.slice(2, 0, 8), b.slice(2, 8, 16), RotaryStyle::half);
    // The activation overwrites the row's own input, or a weight.
    p.ops().linear(a, x, w);
    p.ops().linear(b, x, v);
    p.ops().gated_activation(x, a, b, Activation::silu);
    p.ops().linear(a, x, w);
    p.ops().linear(b, x, v);
    p.ops().gated_activation(w.slice(0, 3, 4).view({1, 1, n}), a, b, Activation::silu);
    // Slots that are another product's weight.
    p.ops().linear(a, x, w);
    p.ops().linear(b, x, v);
    p.ops().rotary(heads(a), heads(a), cos, sin, RotaryStyle::half);
    p.ops().store_tokens(v.view({1, 2, 16, 8}), more, heads(a), heads(b), {5, past}, {});
    // Rotated twice, and stored twice.
    p.ops().linear(a, x, w);
    p.ops().linear(b, x, v);
    p.ops().rotary(heads(a), heads(a), cos, sin, RotaryStyle::half);
    p.ops().rotary(heads(a), heads(a), cos, sin, RotaryStyle::half);
    p.ops().linear(a, x, w);
    p.ops().linear(b, x, v);
    p.ops().store_tokens(slots, more, heads(a), heads(b), {5, past}, {});
    p.ops().store_tokens(slots, more, heads(b), heads(a), {5, past}, {});
  });
}

}  // namespace
}  // namespace plumb
