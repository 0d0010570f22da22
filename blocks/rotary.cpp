#include "blocks/rotary.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/device.h"
#include "kernels/core/error.h"

namespace plumb::blocks {
namespace {

// theta^(-2i/dim)
std::vector<double> base_frequencies(double theta, int64_t dim) {
  std::vector<double> out;
  for (int64_t i = 0; i < dim; i += 2) {
    out.push_back(1 / std::pow(theta, static_cast<double>(i) / static_cast<double>(dim)));
  }
  return out;
}

double number_or(const Params& params, std::string_view name, double otherwise) {
  return params.has(name) ? params.number_or_null(name).value_or(otherwise) : otherwise;
}

// NTK scaling: a larger base once the length exceeds the trained one.
std::vector<double> dynamic_frequencies(const Params& params, double theta, int64_t dim) {
  const double factor = params.number("factor");
  const double trained = params.number("max_position");
  const double length = std::max(trained, params.number("length"));
  const double d = static_cast<double>(dim);
  const double grown = theta * std::pow(factor * length / trained - (factor - 1), d / (d - 2));
  return base_frequencies(grown, dim);
}

// Long wavelengths are divided by the factor, short ones kept, those between blended.
std::vector<double> llama3_frequencies(const Params& params, double theta, int64_t dim) {
  const double factor = params.number("factor");
  const double low = params.number("low_freq_factor"), high = params.number("high_freq_factor");
  const double trained = params.number("original_max_position");
  std::vector<double> out = base_frequencies(theta, dim);
  for (double& w : out) {
    const double wavelength = 2 * M_PI / w;
    if (wavelength < trained / high) continue;
    if (wavelength > trained / low) {
      w /= factor;
    } else {
      const double blend = (trained / wavelength - low) / (high - low);
      w = (1 - blend) * w / factor + blend * w;
    }
  }
  return out;
}

double yarn_mscale(double scale, double mscale) {
  return scale <= 1 ? 1 : 0.1 * mscale * std::log(scale) + 1;
}

RotaryFrequencies yarn(const Params& params, double theta, int64_t dim) {
  const double d = static_cast<double>(dim);
  const double trained = params.number("original_max_position");
  const double factor = params.number("factor");
  const auto correction_dim = [&](double rotations) {
    return d * std::log(trained / (rotations * 2 * M_PI)) / (2 * std::log(theta));
  };
  double low = correction_dim(params.number("beta_fast"));
  double high = correction_dim(params.number("beta_slow"));
  if (params.boolean("truncate")) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, d - 1);  // HF clamps to dim - 1 although only dim / 2 entries exist
  if (low == high) high += 0.001;

  RotaryFrequencies out{base_frequencies(theta, dim), 1};
  for (size_t i = 0; i < out.inv_freq.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double w = out.inv_freq[i];
    out.inv_freq[i] = w / factor * ramp + w * (1 - ramp);
  }
  const double mscale = number_or(params, "mscale", 0);
  const double all_dims = number_or(params, "mscale_all_dim", 0);
  const double derived = mscale != 0 && all_dims != 0
                             ? yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dims)
                             : yarn_mscale(factor, 1);
  out.attention_scaling = number_or(params, "attention_factor", derived);
  return out;
}

RotaryFrequencies longrope(const Params& params, double theta, int64_t dim) {
  const double trained = params.number("original_max_position");
  const double factor = params.number("factor");
  const bool is_long = params.number("length") > trained;
  const std::vector<double>& long_factors = params.numbers("long_factor");
  const std::vector<double>& short_factors = params.numbers("short_factor");
  const std::vector<double>& factors = is_long ? long_factors : short_factors;
  RotaryFrequencies out{base_frequencies(theta, dim), 1};
  if (factors.size() != out.inv_freq.size()) {
    throw BadInput(text(params.where(), ": ", is_long ? "long" : "short", "_factor has ",
                        factors.size(), " entries, dim / 2 is ", out.inv_freq.size()));
  }
  for (size_t i = 0; i < factors.size(); ++i) {
    out.inv_freq[i] /=
        static_cast<double>(static_cast<float>(factors[i]));  // HF's float32 constants
  }
  const double derived = factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(trained));
  out.attention_scaling = number_or(params, "attention_factor", derived);
  return out;
}

}  // namespace

RotaryFrequencies RotaryFrequencies::compute(const Params& params) {
  const std::string& type = params.string("type");
  const double theta = params.number("theta");
  const int64_t dim = params.integer("dim");
  if (dim <= 0 || dim % 2 != 0 || dim > 1 << 20) {
    throw BadInput(text(params.where(), ": dim is ", dim, ", expected an even number up to 2^20"));
  }
  if (type == "default") return {base_frequencies(theta, dim), 1};
  if (type == "linear") {
    RotaryFrequencies out{base_frequencies(theta, dim), 1};
    const double factor = params.number("factor");
    for (double& w : out.inv_freq) w /= factor;
    return out;
  }
  if (type == "dynamic") return {dynamic_frequencies(params, theta, dim), 1};
  if (type == "llama3") return {llama3_frequencies(params, theta, dim), 1};
  if (type == "yarn") return yarn(params, theta, dim);
  if (type == "longrope") return longrope(params, theta, dim);
  throw Unsupported(text(params.where(), ": rotary type \"", type,
                         "\"; known: default, linear, dynamic, llama3, yarn, longrope"));
}

namespace {

// One of two words.
bool is_second(const Params& params, std::string_view name, const char* first, const char* second) {
  const std::string& word = params.string(name);
  if (word != first && word != second) {
    throw BadInput(text(params.where(), ": ", name, " is \"", word, "\", expected \"", first,
                        "\" or \"", second, '"'));
  }
  return word == second;
}

}  // namespace

Rotation Rotation::load(const Params& params) {
  Rotation out;
  out.style = is_second(params, "style", "half", "interleaved") ? RotaryStyle::interleaved
                                                                : RotaryStyle::half;
  out.in_float32 = params.boolean_or("float32", false);
  out.table_of_pairs = params.has("table") && is_second(params, "table", "halves", "pairs");
  return out;
}

void Rotation::operator()(Context& ctx, const Tensor& out_q, const Tensor& q, const Tensor& out_k,
                          const Tensor& k, const Tensor& cos, const Tensor& sin) const {
  const bool wider = in_float32 && size_of(q.dtype()) < size_of(DType::f32);
  const auto widened = [&](const Tensor& x) {
    if (!wider) return x;
    const Tensor wide = ctx.take(DType::f32, x.shape());
    ctx.ops.cast(wide, x);
    return wide;
  };
  Arena::Scope scope(ctx.ops.arena());
  const Tensor c = widened(cos), s = widened(sin);
  const auto rotate = [&](const Tensor& out, const Tensor& x) {
    const Tensor from = widened(x), to = wider ? from : out;
    ctx.ops.rotary(to, from, c, s, style);
    if (wider) ctx.ops.cast(out, to);
  };
  rotate(out_q, q);
  rotate(out_k, k);
}

Tensor Rotation::in_halves(Context& ctx, const Tensor& table) const {
  if (!table_of_pairs) return table;
  const int64_t rows = table.dim(0), tokens = table.dim(1), pairs = table.dim(2) / 2;
  const Tensor halves = ctx.take(table.dtype(), table.shape());
  ctx.ops.transpose(halves.view({rows, tokens, 2, pairs}), table.view({rows, tokens, pairs, 2}));
  return halves;
}

void run_rotary_frequencies(const BlockCall& call) {
  // A table of a few numbers, made once per model: host arithmetic on every device.
  const RotaryFrequencies result = RotaryFrequencies::compute(call.params);
  const auto write = [&](const Tensor& out, const std::vector<double>& values) {
    if (out.numel() != static_cast<int64_t>(values.size())) {
      throw BadInput(text(call.params.where(), ": the output has ", out.numel(),
                          " elements, computed ", values.size()));
    }
    const Tensor host = host_tensor(out.dtype(), out.shape());
    for (size_t i = 0; i < values.size(); ++i) {
      store(out.dtype(), host.data<char>() + static_cast<int64_t>(i) * size_of(out.dtype()),
            values[i]);
    }
    call.ctx.ops.device().upload(out, host.raw());
  };
  write(call.output("inv_freq"), result.inv_freq);
  write(call.output("attention_scaling"), {result.attention_scaling});
}

void run_rotary_table(const BlockCall& call) {
  const Params& params = call.params;
  const Tensor cos = call.output("cos"), sin = call.output("sin");
  Tensor inv_freq = call.input("inv_freq");
  const bool pairs = params.has("table") && is_second(params, "table", "halves", "pairs");
  const double scaling = params.number("attention_scaling");
  if (!pairs)
    return call.ctx.ops.rotary_table(cos, sin, call.input("positions"), inv_freq, scaling);
  // The first half of a table of frequencies that are there twice each.
  Arena::Scope scope(call.ctx.ops.arena());
  const int64_t count = inv_freq.numel(), columns = 2 * count;
  const Tensor twice = call.ctx.take(inv_freq.dtype(), {columns});
  call.ctx.ops.repeat_heads(twice.view({1, columns, 1, 1}), inv_freq.view({1, count, 1, 1}));
  const auto take_wide = [&] {
    return call.ctx.take(cos.dtype(), {cos.dim(0), cos.dim(1), 2 * columns});
  };
  const Tensor wide_cos = take_wide(), wide_sin = take_wide();
  call.ctx.ops.rotary_table(wide_cos, wide_sin, call.input("positions"), twice, scaling);
  call.ctx.ops.copy(cos, wide_cos.slice(2, 0, columns));
  call.ctx.ops.copy(sin, wide_sin.slice(2, 0, columns));
}

void run_rotary(const BlockCall& call) {
  Arena::Scope scope(call.ctx.ops.arena());
  const Rotation rotation = Rotation::load(call.params);
  const auto table = [&](const char* name) {
    return rotation.in_halves(call.ctx, call.input(name));
  };
  rotation(call.ctx, call.output("q"), call.input("q"), call.output("k"), call.input("k"),
           table("cos"), table("sin"));
}

}  // namespace plumb::blocks
