#include "blocks/op.h"

#include <algorithm>
#include <iterator>

#include "blocks/components.h"
#include "blocks/linear.h"
#include "blocks/sdpa.h"
#include "kernels/ops/window_calls.h"

namespace plumb::blocks {
namespace {

double number_or_0(const Params& params, std::string_view name) {
  return params.has(name) ? params.number(name) : 0;
}

Axes reduced_axes(const Params& params, int rank) {
  Axes out;
  for (const double axis : params.numbers("axes")) {
    params.expect(axis >= 0 && axis < rank && axis == static_cast<int>(axis), "axis ", axis,
                  " of a tensor of rank ", rank);
    out.set |= 1u << static_cast<int>(axis);
  }
  return out;
}

PerAxis read_per_axis(const Params& params, std::string_view name, int rank) {
  PerAxis out;
  const std::vector<double> numbers = params.numbers(name);
  params.expect(std::ssize(numbers) == rank, std::ssize(numbers), " numbers in ", name,
                " for a tensor of rank ", rank);
  for (int i = 0; i < rank; ++i) out[i] = static_cast<int64_t>(numbers[static_cast<size_t>(i)]);
  return out;
}

// The tensors of a call in the order of the op's row; absent ones are undefined.
std::vector<Tensor> operands_of(const BlockCall& call, const OpRow& row) {
  std::vector<Tensor> out;
  for (int i = 0; i < row.operands.count; ++i) {
    const Operand& operand = row.operands.operands.at(static_cast<size_t>(i));
    const std::string name(operand.name);
    const bool written = i < row.operands.outputs;
    if (!written && call.weights.has(name)) {  // codes of 8 bits
      out.push_back(call.weights[name]);
    } else if (operand.optional) {
      out.push_back(written ? call.optional_output(name) : call.optional_input(name));
    } else {
      out.push_back(written ? call.output(name) : call.input(name));
    }
  }
  return out;
}

// Of H and W; of W alone where there is one.
OfAxes read_of_axes(const Params& params, std::string_view name) {
  const std::vector<double>& given = params.numbers(name);
  OfAxes out = name == "stride" || name == "dilation" ? OfAxes{1, 1} : OfAxes{};
  params.expect(given.size() == 1 || given.size() == 2, name, " has ", given.size(),
                " numbers, expected 1 or 2");
  for (size_t i = 0; i < given.size(); ++i) {
    const auto whole = static_cast<int64_t>(given[i]);
    params.expect(static_cast<double>(whole) == given[i], name, " is ", given[i]);
    out.at(2 - given.size() + i) = whole;
  }
  return out;
}

ConvParams read_convolution(const Params& params, OpId op) {
  const auto of = [&](const char* name) { return read_of_axes(params, name); };
  return {of("stride"), of("padding"), of("dilation"),
          is_transposed(op) ? of("output_padding") : OfAxes{}, params.integer("groups")};
}

PoolParams read_pool(const Params& params, OpId op) {
  const auto of = [&](const char* name) { return read_of_axes(params, name); };
  return {of("kernel"), of("stride"), of("padding"),
          op != OpId::avg_pool2d || params.boolean("counts_padding")};
}

GemmParams read_gemm(const Params& params) {
  GemmParams out{params.number("alpha"),
                 params.number("beta"),
                 params.boolean("transpose_a"),
                 params.boolean("transpose_b"),
                 {}};
  if (params.has("function")) out.function = read_activation(params);
  return out;
}

// With the parameters of block sdpa.
void run_sdpa_backward(const BlockCall& call, const std::vector<Tensor>& t) {
  Sdpa sdpa = Sdpa::load(call.params);
  sdpa.mask.key_valid = t[9];
  sdpa.mask.explicit_mask = t[10];
  call.ctx.ops.sdpa_backward(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], sdpa.mask,
                             sdpa.params);
}

LogitLossParams read_logit_loss(const Params& params) {
  return {params.integer("ignored"), params.number("scale"), params.number_or_null("softcap"), 0};
}

std::optional<Activation> read_function(const Params& params) {
  return params.has("function") ? std::optional(read_activation(params)) : std::nullopt;
}

// Gradients are outputs "d_x" and so on; what the forward's block calls by a name is called so
// here.
void run_backward(const BlockCall& call, OpId op, const std::vector<Tensor>& t) {
  const Params& params = call.params;
  Ops& ops = call.ctx.ops;
  switch (op) {
    case OpId::activation_backward:
      return ops.activation_backward(t[0], t[1], t[2], read_activation(params));
    case OpId::gated_activation_backward:
      return ops.gated_activation_backward(t[0], t[1], t[2], t[3], t[4], read_activation(params));
    case OpId::softmax_backward: return ops.softmax_backward(t[0], t[1], t[2]);
    case OpId::rms_norm_backward:
      return ops.rms_norm_backward(
          t[0], t[1], t[2], t[3], t[4],
          {params.number("eps"), number_or_0(params, "weight_offset"),
           params.boolean("rounds_before") ? WeightRounding::before : WeightRounding::after});
    case OpId::layer_norm_backward:
      return ops.layer_norm_backward(t[0], t[1], t[2], t[3], t[4], t[5], params.number("eps"));
    case OpId::gated_rms_norm_backward:
      return ops.gated_rms_norm_backward(t[0], t[1], t[2], t[3], t[4], t[5], t[6],
                                         {params.number("eps"), params.integer("group_size")});
    case OpId::embedding_backward:
      return ops.embedding_backward(t[0], t[1], t[2], params.number("scale"),
                                    params.integer("padding"));
    case OpId::rotary_backward:
      return ops.rotary_backward(
          t[0], t[1], t[2], t[3],
          params.boolean("interleaved") ? RotaryStyle::interleaved : RotaryStyle::half);
    case OpId::cross_entropy: return ops.cross_entropy(t[0], t[1], t[2], params.integer("ignored"));
    case OpId::cross_entropy_backward:
      return ops.cross_entropy_backward(t[0], t[1], t[2], t[3], params.integer("ignored"));
    case OpId::linear_cross_entropy:
      return ops.linear_cross_entropy(t[0], t[1], t[2], t[3], read_logit_loss(params));
    case OpId::linear_cross_entropy_backward:
      return ops.linear_cross_entropy_backward(t[0], t[1], t[2], t[3], t[4], t[5],
                                               read_logit_loss(params));
    case OpId::causal_conv1d_backward:
      return ops.causal_conv1d_backward(t[0], t[1], t[2], t[3], t[4], t[5], t[6],
                                        read_function(params));
    case OpId::sdpa_backward: return run_sdpa_backward(call, t);
    case OpId::ssd_scan_backward:
      return ops.ssd_scan_backward({t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]}, t[8], t[9],
                                   {t[10], t[11], t[12], t[13], t[14], t[15], t[16], t[17]},
                                   {SsdForm::chunk, params.integer("chunk_size"), {}, {}});
    case OpId::linear_backward: return ops.linear_backward(t[0], t[1], t[2], t[3], t[4], t[5]);
    case OpId::matmul_backward:
      return ops.matmul_backward(t[0], t[1], t[2], t[3], t[4], params.boolean("transpose_b"));
    default: return ops.binary(op, t[0], t[1], t[2], number_or_0(params, "number"));
  }
}

QuantizeParams read_quantize(const Params& params) {
  constexpr std::string_view kRules[] = {"symmetric", "asymmetric", "shared_exponent"};
  const std::string& name = params.string("rule");
  const auto* found = std::ranges::find(kRules, name);
  params.expect(found != std::end(kRules), "rule is \"", name,
                "\", known are symmetric, asymmetric, shared_exponent");
  const auto rule = static_cast<ScaleRule>(found - std::begin(kRules));
  const bool divides = rule != ScaleRule::shared_exponent;
  return {rule, read_group(params), divides ? params.number("divisor") : 1};
}

void run_formula(const BlockCall& call, const OpRow& row, const std::vector<Tensor>& t) {
  Ops& ops = call.ctx.ops;
  const double number = number_or_0(call.params, "number");
  switch (t.size()) {
    case 2: return ops.unary(row.id, t[0], t[1], number, number_or_0(call.params, "shift"));
    case 3: return ops.binary(row.id, t[0], t[1], t[2], number);
    default: return ops.ternary(row.id, t[0], t[1], t[2], t[3]);
  }
}

}  // namespace

const OpRow& row_of_call(const Params& params) {
  const std::string& name = params.string("op");
  for (int i = 0; i < kOpCount; ++i) {
    const OpRow& row = row_of(static_cast<OpId>(i));
    if (name == row.name) return row;
  }
  throw Unsupported(text(params.where(), ": op is \"", name, "\", which no op is called"));
}

void run_op(const BlockCall& call) {
  const Params& params = call.params;
  const OpRow& row = row_of_call(params);
  const OpId op = row.id;
  const std::vector<Tensor> t = operands_of(call, row);
  Ops& ops = call.ctx.ops;
  switch (op) {
    case OpId::activation: return ops.activation(t[0], t[1], read_activation(params));
    case OpId::gated_activation:
      return ops.gated_activation(t[0], t[1], t[2], read_activation(params));
    case OpId::softcap: return ops.softcap(t[0], t[1], params.number("number"));
    case OpId::scaled_add: return ops.scaled_add(t[0], t[1], t[2], params.number("number"));
    case OpId::cumsum: return ops.cumsum(t[0], t[1], params.integer("axis"));
    case OpId::embedding: return ops.embedding(t[0], t[1], t[2], params.number("scale"));
    case OpId::linear: return ops.linear(t[0], t[1], t[2], t[3]);
    case OpId::layer_norm: return ops.layer_norm(t[0], t[1], t[2], t[3], params.number("eps"));
    case OpId::softmax: return ops.softmax(t[0], t[1]);
    case OpId::matmul: return ops.matmul(t[0], t[1], t[2], params.boolean("transpose_b"));
    case OpId::repeat_heads: return ops.repeat_heads(t[0], t[1]);
    case OpId::copy: return ops.copy(t[0], t[1]);
    case OpId::cast: params.ignore("to"); return ops.cast(t[0], t[1]);  // out's dtype
    case OpId::transpose: return ops.transpose(t[0], t[1]);
    case OpId::mask_fill: return ops.mask_fill(t[0], t[1], t[2], params.number("value"));
    case OpId::mask_rows: return ops.mask_rows(t[0], t[1], t[2]);
    case OpId::masked_add: return ops.masked_add(t[0], t[1], t[2]);
    case OpId::gemm: return ops.gemm(t[0], t[1], t[2], t[3], t[4], read_gemm(params));
    case OpId::dequantize:
      return ops.dequantize(t[0], t[1], t[2], t[3], t[4], t[5], read_quantised(params));
    case OpId::quantize: return ops.quantize(t[0], t[1], t[2], t[3], read_quantize(params));
    case OpId::quantised_linear:
      return ops.quantised_linear(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8],
                                  read_quantised(params));
    case OpId::group_norm:
      return ops.group_norm(t[0], t[1], t[2], t[3],
                            {params.integer("groups"), params.number("eps")});
    case OpId::upsample_nearest2d: return ops.upsample_nearest2d(t[0], t[1]);
    case OpId::index_select: return ops.index_select(t[0], t[1], t[2], params.integer("axis"));
    case OpId::gather: return ops.gather(t[0], t[1], t[2], params.integer("axis"));
    case OpId::index_add: return ops.index_add(t[0], t[1], t[2], t[3], params.integer("axis"));
    case OpId::scatter_add: return ops.scatter_add(t[0], t[1], t[2], t[3], params.integer("axis"));
    case OpId::concat: return ops.concat(t[0], t[1], t[2], params.integer("axis"));
    case OpId::permute: return ops.permute(t[0], t[1], read_per_axis(params, "axes", t[1].rank()));
    case OpId::pad:
      return ops.pad(t[0], t[1], read_per_axis(params, "left", t[1].rank()),
                     params.number("value"));
    case OpId::flip: return ops.flip(t[0], t[1], reduced_axes(params, t[1].rank()));
    case OpId::roll: return ops.roll(t[0], t[1], read_per_axis(params, "shifts", t[1].rank()));
    case OpId::top_k: return ops.top_k(t[0], t[1], t[2], params.boolean("largest"));
    default: break;
  }
  if (row.is_backward() || op == OpId::cross_entropy || op == OpId::linear_cross_entropy) {
    return run_backward(call, op, t);
  }
  if (is_convolution(op)) {
    return ops.convolve(op, t[0], t[1], t[2], t[3], read_convolution(params, op));
  }
  if (is_pool(op)) return ops.pool(op, t[0], t[1], read_pool(params, op));
  if (row.reduction) return ops.reduce(op, t[0], t[1], reduced_axes(params, t[1].rank()));
  if (row.formula) return run_formula(call, row, t);
  throw Unsupported(
      text(params.where(), ": op \"", row.name, "\" has a block of its own, or reads no tensor"));
}

}  // namespace plumb::blocks
