// Every compiled implementation of every op, once, on small tensors: what compute-sanitizer and
// emu-check are to look at. Their values are held to the oracle's elsewhere; here they are finite.
#include <cmath>
#include <set>

#include "harness/execution/execute.h"
#include "kernels/core/error.h"
#include "kernels/ops/map_call.h"
#include "kernels/ops/ops.h"
#include "tests/gpu/gpu_devices.h"

namespace plumb {
namespace {

// Calls with tensors in the layout that each implementation wants, all of one storage dtype.
class Calls {
 public:
  Calls(Device& device, DType storage)
      : device_(device), ops_(device.ops()), storage_(storage), vector_(16 / size_of(storage)) {}

  void all() {
    for (const int64_t columns : {4 * vector_, int64_t{3}}) {  // 16-byte accesses; single elements
      elementwise(columns);
      copies(columns);
      lookups(columns);
      rotary(columns == 3 ? 6 : 4 * vector_);
    }
    // One to four vectors or elements for each thread, and more than a block keeps.
    for (const int64_t pieces : {1, 65, 257, 500, 2049}) {
      for (const int64_t columns : {pieces * vector_, pieces}) norms(columns);
    }
    products();
    losses();
    tails();
    state_space();
    for (const int64_t width : {32, 64, 96, 128, 256}) attention(width);
  }

  // Kernels that are worth their while for many keys alone, asked for.
  void decoding() {
    ops_.force("sdpa/(sm90.decode|decode|tiles|split_keys)");
    for (const int64_t width : {128, 256}) attend(1, 130, width, false);
    ops_.force("");
  }

 private:
  // Of values between 1/8 and 1, or, of another dtype, zeros.
  Tensor input(const Shape& shape, std::optional<DType> dtype = {}) {
    const DType type = dtype.value_or(storage_);
    const Tensor host = host_tensor(type, shape), out = device_.allocate(type, shape);
    for (int64_t i = 0; i < host.numel(); ++i) {
      store(type, host.data<char>() + i * size_of(type),
            is_floating(type) ? static_cast<double>(1 + i % 8) / 8 : 0.0);
    }
    device_.upload(out, host.raw());
    return out;
  }

  // Runs an op on a new output and looks at what it wrote.
  template <class Op>
  void call(const Shape& shape, Op op, std::optional<DType> dtype = {}) {
    const Tensor out = device_.allocate(dtype.value_or(storage_), shape);
    op(out);
    device_.synchronize();
    const Tensor host = host_tensor(out.dtype(), shape);
    device_.download(host.raw(), out);
    for (int64_t i = 0; i < host.numel(); ++i) {
      const double y = load(out.dtype(), host.data<char>() + i * size_of(out.dtype()));
      if (!std::isfinite(y)) FAIL("element " << i << " is " << y);
    }
  }

  void elementwise(int64_t columns) {
    const Shape shape({3, columns});
    const Tensor x = input(shape), y = input(shape), flags = input(shape, DType::boolean);
    for (int i = 0; i < kOpCount; ++i) {
      const auto op = static_cast<OpId>(i);
      if (!has_one_formula(op) || is_fused(op)) continue;
      const auto run = [&](const Tensor& out) {
        switch (row_of(op).operands.count) {
          case 2: return ops_.unary(op, out, x, 0.5, 2);
          case 3: return ops_.binary(op, out, x, y, 0.5);
          default: return ops_.ternary(op, out, has_condition(op) ? flags : x, y, x);
        }
      };
      call(shape, run, output_dtype(op, storage_));
    }
    call(shape, [&](const Tensor& out) { ops_.scaled_add(out, x, y, 0.5); });
    for (int i = 0; i < kOpCount; ++i) {
      const auto op = static_cast<OpId>(i);
      if (!row_of(op).reduction) continue;
      const DType made = gives_ids(op) ? DType::i64 : output_dtype(op, storage_);
      call(
          {1, columns}, [&](const Tensor& out) { ops_.reduce(op, out, x, {0}); }, made);
      call(
          {3}, [&](const Tensor& out) { ops_.reduce(op, out, x, {1}); }, made);
    }
    for (const int64_t axis : {0, 1}) {
      call(shape, [&](const Tensor& out) { ops_.cumsum(out, x, axis); });
    }
    call(shape, [&](const Tensor& out) { ops_.scale(out, x, 0.5, ScaleOperation::multiply); });
    windows(columns);
    products_with_more(columns);
    quantised_products();
    call(shape, [&](const Tensor& out) { ops_.scale(out, x, 3, ScaleOperation::divide); });
    call(shape, [&](const Tensor& out) { ops_.softcap(out, x, 30); });
    for (const Activation f :
         {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::tanh}) {
      call(shape, [&](const Tensor& out) { ops_.activation(out, x, f); });
      call(shape, [&](const Tensor& out) { ops_.gated_activation(out, x, y, f); });
      call(shape, [&](const Tensor& d_x) { ops_.activation_backward(d_x, x, y, f); });
      call(shape, [&](const Tensor& d_x) {
        ops_.gated_activation_backward(d_x, device_.allocate(storage_, shape), x, y, x, f);
      });
    }
    const Shape scores({1, 2, 3, columns});
    const Tensor score = input(scores), mask = input({1, 1, 3, columns});
    call(scores, [&](const Tensor& out) { ops_.masked_add(out, score, mask); });
  }

  void products_with_more(int64_t columns) {
    const Tensor a = input({2, 9, columns}), b = input({2, 9, 33}), c = input({2, columns, 33});
    call({2, columns, 33}, [&](const Tensor& out) {
      ops_.gemm(out, a, b, c, input({33}), {0.5, 2, true, false, Activation::silu});
    });
  }

  void quantised_products() {
    const Tensor words = input({9, 4}, DType::i32), scales = input({9, 1}, DType::f32);
    for (const int64_t rows : {1, 3}) {
      call({rows, 9}, [&](const Tensor& out) {
        ops_.quantised_linear(out, input({rows, 32}), words, scales, {}, {}, {}, {}, {},
                              {QuantLayout::int4, {}});
      });
    }
    const Tensor codes = input({9, 32}, DType::i8), x = input({3, 32}, DType::i8);
    call({3, 9}, [&](const Tensor& out) {
      ops_.quantised_linear(out, x, codes, scales, {}, {}, {}, input({3, 1}, DType::f32), {},
                            {QuantLayout::int8, {}});
    });
  }

  void windows(int64_t columns) {
    const Shape shape({2, 4, 3, columns}), wide({2, 34, 3, columns});
    const Tensor x = input(shape);
    ConvParams params;
    params.padding = {1, 1};
    const auto conv = [&](OpId op, const Shape& made, const Tensor& weight, const ConvParams& p) {
      const Tensor bias = input({made[1]});
      call(made, [&](const Tensor& out) { ops_.convolve(op, out, x, weight, bias, p); });
    };
    conv(OpId::conv2d, wide, input({34, 4, 3, 3}), params);
    conv(OpId::conv_transpose2d, wide, input({4, 34, 3, 3}), params);
    params.groups = 2;
    conv(OpId::conv2d, {2, 2, 3, columns}, input({2, 2, 3, 3}), params);
    for (const OpId op : {OpId::max_pool2d, OpId::avg_pool2d}) {
      call({2, 4, 1, columns}, [&](const Tensor& out) { ops_.pool(op, out, x, {{3, 1}}); });
    }
    call({2, 4, 5, 7}, [&](const Tensor& out) { ops_.upsample_nearest2d(out, x); });
    call(shape, [&](const Tensor& out) { ops_.group_norm(out, x, {}, {}, {2, 1e-5}); });
  }

  void copies(int64_t columns) {
    const Shape shape({3, columns});
    const Tensor x = input(shape);
    call(shape, [&](const Tensor& out) { ops_.copy(out, x); });
    for (const DType dtype : {DType::f64, DType::boolean}) {
      const Tensor given = input(shape, dtype);
      call(
          shape, [&](const Tensor& out) { ops_.copy(out, given); }, dtype);
    }
    call(Shape({2, 3, columns}), [&](const Tensor& out) {
      const auto half = [&](int64_t i) { return out.slice(0, i, i + 1).view(shape); };
      ops_.copy_pair(half(0), x, half(1), x);
    });
    call({columns, 3}, [&](const Tensor& out) { ops_.transpose(out, x); });
    const Tensor eight_rows = input({8, columns});
    call({columns, 8}, [&](const Tensor& out) { ops_.transpose(out, eight_rows); });
    const Tensor mask = input(shape, DType::boolean);
    call(shape, [&](const Tensor& out) { ops_.mask_fill(out, x, mask, 1); });
    call(
        shape, [&](const Tensor& out) { ops_.position_ids(out, mask, 0); }, DType::i64);
    moves(columns);
    const Tensor heads = input({1, 2, 3, columns});
    call({1, 4, 3, columns}, [&](const Tensor& out) { ops_.repeat_heads(out, heads); });
  }

  void moves(int64_t columns) {
    const Shape shape({3, columns}), one_more({4, columns});
    const Tensor x = input(shape), ids = input({4}, DType::i64), each = input(shape, DType::i32);
    const Tensor source = input(one_more);
    call(one_more, [&](const Tensor& out) { ops_.index_select(out, x, ids, 0); });
    call(shape, [&](const Tensor& out) { ops_.gather(out, x, each, 1); });
    call(shape, [&](const Tensor& out) { ops_.index_add(out, x, ids, source, 0); });
    call(shape, [&](const Tensor& out) { ops_.scatter_add(out, x, each, x, 1); });
    call({6, columns}, [&](const Tensor& out) { ops_.concat(out, x, x, 0); });
    call(shape, [&](const Tensor& out) { ops_.permute(out, x, {{0, 1}}); });
    call(one_more, [&](const Tensor& out) { ops_.pad(out, x, {{1}}, 2); });
    call(shape, [&](const Tensor& out) { ops_.flip(out, x, {0}); });
    call(shape, [&](const Tensor& out) { ops_.roll(out, x, {{1}}); });
    call({3, 2}, [&](const Tensor& out) { ops_.top_k(out, input({3, 2}, DType::i64), x, true); });
    call(shape, [&](const Tensor& out) { ops_.arange(out, 1, 0.5); });
    call(shape, [&](const Tensor& out) { ops_.fill(out, 0.5); });
    call(shape, [&](const Tensor& out) { ops_.uniform(out, {1, 2}); });
    call(shape, [&](const Tensor& out) { ops_.normal(out, {1, 2}); });
    call(
        shape, [&](const Tensor& out) { ops_.cast(out, x); }, DType::i8);
  }

  void lookups(int64_t columns) {
    const Tensor ids = input({1, 3}, DType::i64), table = input({5, columns});
    call({1, 3, columns}, [&](const Tensor& out) { ops_.embedding(out, ids, table); });
    AttentionMask mask;
    mask.causal = true;
    const Shape additive({1, 1, 3, columns}), allowed({1, 1, 3, columns == 3 ? columns : 16});
    call(additive, [&](const Tensor& out) { ops_.causal_mask(out, mask); });
    call(
        allowed, [&](const Tensor& out) { ops_.causal_mask(out, mask); }, DType::boolean);
  }

  void rotary(int64_t width) {
    const Tensor positions = input({1, 3}, DType::i64),
                 frequencies = input({width / 2}, DType::f32);
    const Tensor cos = device_.allocate(storage_, {1, 3, width});
    const Tensor sin = device_.allocate(storage_, {1, 3, width});
    ops_.rotary_table(cos, sin, positions, frequencies, 1);
    const Shape shape({1, 2, 3, width});
    const Tensor x = input(shape);
    for (const RotaryStyle style : {RotaryStyle::half, RotaryStyle::interleaved}) {
      call(shape, [&](const Tensor& out) { ops_.rotary(out, x, cos, sin, style); });
      call(shape, [&](const Tensor& d_x) { ops_.rotary_backward(d_x, x, cos, sin, style); });
    }
  }

  void norms(int64_t columns) {
    const Shape shape({5, columns});  // few rows have ways of their own
    const Tensor x = input(shape), y = input(shape), weight = input({columns});
    call(shape, [&](const Tensor& out) { ops_.rms_norm(out, x, weight, {1e-6}); });
    call(shape, [&](const Tensor& out) { ops_.layer_norm(out, x, weight, weight, 1e-5); });
    call(shape, [&](const Tensor& out) { ops_.softmax(out, x); });
    const Tensor sum = device_.allocate(storage_, shape);
    call(shape, [&](const Tensor& out) { ops_.add_rms_norm(sum, out, x, y, weight, {1e-6}); });
    const Tensor d_weight = device_.allocate(storage_, {columns});
    call(shape, [&](const Tensor& d_x) { ops_.softmax_backward(d_x, x, y); });
    call(shape,
         [&](const Tensor& d_x) { ops_.rms_norm_backward(d_x, d_weight, x, weight, y, {1e-6}); });
    call(shape, [&](const Tensor& d_x) {
      ops_.layer_norm_backward(d_x, d_weight, d_weight, x, weight, y, 1e-5);
    });
  }

  void losses() {
    const Tensor logits = input({3, 70}), ids = input({3}, DType::i64);
    const Tensor d_loss = input({1}, DType::f32);
    call(
        {1}, [&](const Tensor& loss) { ops_.cross_entropy(loss, logits, ids); }, DType::f32);
    call({3, 70}, [&](const Tensor& d) { ops_.cross_entropy_backward(d, logits, ids, d_loss); });
    const Tensor x = input({3, 16}), weight = input({70, 16});
    const Tensor d_weight = device_.allocate(storage_, {70, 16});
    for (const int64_t chunk : {0, 70}) {
      call(
          {1},
          [&](const Tensor& out) {
            ops_.linear_cross_entropy(out, x, weight, ids, {.chunk = chunk});
          },
          DType::f32);
      call({3, 16}, [&](const Tensor& d) {
        ops_.linear_cross_entropy_backward(d, d_weight, x, weight, ids, d_loss, {.chunk = chunk});
      });
    }
    call({5, 70}, [&](const Tensor& d) { ops_.embedding_backward(d, logits, ids); });
  }

  void products() {
    const int64_t inner = 64, columns = 72;
    // Rows of a longer weight: no vendor's library takes it.
    const Tensor whole = input({columns, inner}), apart = input({columns, 2 * inner});
    for (const int64_t rows : {1, 4, 8, 65}) {
      const Tensor x = input({rows, inner});
      for (const Tensor& weight : {whole, apart.slice(1, 0, inner)}) {
        call({rows, columns}, [&](const Tensor& out) { ops_.linear(out, x, weight); });
      }
    }
    const Tensor a = input({1, 4, 65, inner}), b = input({1, 2, inner, columns});
    call({1, 4, 65, columns}, [&](const Tensor& out) { ops_.matmul(out, a, b, false); });
    const Tensor transposed = input({1, 2, columns, inner});
    call({1, 4, 65, columns}, [&](const Tensor& out) { ops_.matmul(out, a, transposed, true); });
    const Tensor each = input({1, 4, inner, columns});
    call({1, 4, 65, columns}, [&](const Tensor& out) { ops_.gemm(out, a, each, {}, {}, {}); });
    const Tensor odd = input({1, 4, 65, inner - 1}), other = input({1, 2, inner - 1, columns - 1});
    call({1, 4, 65, columns - 1}, [&](const Tensor& out) { ops_.matmul(out, odd, other, false); });
  }

  // What is done to a product's row by the threads that make it.
  void tails() {
    const int64_t columns = 16;
    const Tensor x = input({1, 1, 64}), w = input({columns, 64}), v = input({columns, 64});
    const Shape shape({1, 1, columns});
    const auto row = [&] { return device_.allocate(storage_, shape); };
    const Tensor a = row(), b = row(), sum = input(shape), angles = input({1, 1, 8});
    for (const Activation f :
         {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::tanh}) {
      call(shape, [&](const Tensor& out) {
        ops_.linear(a, x, w);
        ops_.linear(b, x, v);
        ops_.gated_activation(out, a, b, f);
      });
    }
    call({1, 2, 1, 8}, [&](const Tensor& out) {
      const Tensor heads = a.view({1, 1, 2, 8}).transpose(1, 2);
      ops_.linear(a, x, w);
      ops_.rotary(heads, heads, angles, angles, RotaryStyle::half);
      ops_.copy(out, heads);
    });
    call(shape, [&](const Tensor& out) {
      ops_.linear(a, x, w);
      ops_.add(sum, sum, a);
      ops_.copy(out, sum);
    });
    const Tensor taps = input({columns, 1, 4}), state = input({1, columns, 4});
    call(shape, [&](const Tensor& out) {
      ops_.linear(a, x, w);
      ops_.causal_conv1d(out, state, a, taps, {}, state, Activation::silu);
    });
  }

  // T tokens of H heads, P wide, with G groups of N states.
  void state_space() {
    constexpr int64_t T = 9, H = 4, P = 8, G = 2, N = 16, K = 4, C = H * P;
    const Tensor hidden = input({1, T, C}), valid = input({1, T}, DType::boolean);
    call({1, T, C}, [&](const Tensor& out) { ops_.mask_rows(out, hidden, valid); });
    for (const int64_t width : {C, C + 1}) {  // 16-byte accesses; single elements
      const Tensor x = input({1, T, width});
      call(
          {1, T, width}, [&](const Tensor& out) { ops_.cast(out, x); },
          storage_ == DType::f32 ? DType::bf16 : DType::f32);
      const Tensor taps = input({width, 1, K}), bias = input({width}),
                   columns = input({1, width, K});
      call({1, T, width}, [&](const Tensor& out) {
        ops_.causal_conv1d(out, columns, x, taps, bias, columns, Activation::silu);
      });
      call({1, T, width}, [&](const Tensor& d_x) {
        ops_.causal_conv1d_backward(d_x, device_.allocate(storage_, {width, 1, K}), {}, x, taps,
                                    bias, x, Activation::silu);
      });
    }
    for (const int64_t width : {C, int64_t{6}}) {  // 16-byte accesses; single elements
      const Tensor x = input({1, T, width}), gate = input({1, T, width}), weight = input({width});
      call({1, T, width}, [&](const Tensor& out) {
        ops_.gated_rms_norm(out, x, gate, weight, {1e-5, width / G});
      });
      call({1, T, width}, [&](const Tensor& d_x) {
        ops_.gated_rms_norm_backward(d_x, device_.allocate(storage_, {1, T, width}), {}, x, gate,
                                     weight, x, {1e-5, width / G});
      });
    }
    const Tensor per_head = input({H}), state = input({1, H, P, N}, DType::f32);
    for (const bool chunks : {true, false}) {
      const int64_t tokens = chunks ? T : 1;
      const Tensor b = input({1, tokens, G, N}), c = input({1, tokens, G, N});
      const SsdInputs in{input({1, tokens, H, P}),
                         input({1, tokens, H}),
                         b,
                         c,
                         per_head,
                         per_head,
                         per_head,
                         state};
      SsdParams params;
      params.form = chunks ? SsdForm::chunk : SsdForm::step;
      call(
          {1, tokens, H, P}, [&](const Tensor& y) { ops_.ssd_scan(y, state, in, params); },
          chunks ? DType::f32 : storage_);
    }
  }

  void attention(int64_t width) {
    // A few query tokens, as many as a decoding kernel shares its reads among, and a prompt.
    for (const int64_t queries : {1, 2, 4, 65}) attend(queries, 130, width, false);
    // A listed mask is a case for the general kernel alone; many keys for one query are split.
    attend(17, 33, width, true);
    attend(1, 300, width, true);
  }

  void attend(int64_t queries, int64_t keys, int64_t width, bool listed) {
    const Tensor q = input({1, 2, queries, width});
    const Tensor k = input({1, 1, keys, width}), v = input({1, 1, keys, width});
    AttentionMask mask;
    mask.causal = !listed;
    mask.query_offset = keys - queries;
    if (listed) mask.explicit_mask = input({1, 1, queries, keys});
    call({1, queries, 2, width}, [&](const Tensor& out) {
      ops_.sdpa(out, q, k, v, mask, {0.125, {}});
    });
  }

  Device& device_;
  Ops& ops_;
  DType storage_;
  int64_t vector_;  // elements of 16 bytes
};

TEST_CASE("gpu: every implementation once, small") {
  for (const std::string& name : gpu_and_emulated_devices()) {
    INFO(name);
    const auto device = open_device(name);
    std::vector<OpRecord> records;
    device->ops().observe(&records);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) Calls(*device, dtype).all();
    Calls(*device, DType::bf16).decoding();
    device->ops().observe(nullptr);
    const std::vector<std::string> names = harness::implementations_of(records);
    const std::set<std::string> ran(names.begin(), names.end());
    for (const Implementation& it : device->ops().implementations()) {
      const std::string declared = to_string(it.op, it.name);
      INFO(declared);
      CHECK(ran.count(declared) == (it.absent.empty() ? 1 : 0));
    }
  }
}

}  // namespace
}  // namespace plumb
