#include "tests/faults/wrong_state_space.h"

#include <algorithm>
#include <cmath>

namespace plumb::harness::testing {
namespace {

double time_step(DType dtype, double raw, double bias, const SsdParams& params,
                 const ScanSpec& spec) {
  const double biased = round_to(dtype, raw + bias);
  const double soft = biased > 20 ? biased : std::log1p(std::exp(biased));
  double dt = spec.softplus ? round_to(dtype, soft) : biased;
  if (params.dt_min) dt = std::max(dt, round_to(dtype, *params.dt_min));
  if (params.dt_max) dt = std::min(dt, round_to(dtype, *params.dt_max));
  return spec.clamps_step && params.form == SsdForm::step ? std::max(dt, 0.5) : dt;
}

}  // namespace

void wrong_conv(const Tensor& out, const Tensor& state_after, const Tensor& x, const Tensor& weight,
                const Tensor& bias, const Tensor& state_before, std::optional<Activation> function,
                const ConvSpec& spec) {
  const DType dtype = x.dtype();
  const size_t batch = extent(x, 0), tokens = extent(x, 1), channels = extent(x, 2);
  const auto width = static_cast<int64_t>(extent(weight, 2));
  const Values fresh = values_of(x), w = values_of(weight);
  const Values b = bias.defined() ? values_of(bias) : Values(channels, 0.0);
  const Values before = state_before.defined()
                            ? values_of(state_before)
                            : Values(batch * channels * static_cast<size_t>(width), 0.0);
  const auto past = [&](size_t row, size_t c, int64_t t) {  // t < 0: in the state
    const auto last = static_cast<int64_t>(tokens) - 1;
    if (t >= 0) {
      return fresh[(row * tokens + static_cast<size_t>(std::min(t, last))) * channels + c];
    }
    return before[(row * channels + c) * static_cast<size_t>(width) +
                  static_cast<size_t>(width + t)];
  };
  Values y(fresh.size()), after(before.size());
  for (size_t row = 0; row < batch; ++row) {
    for (size_t c = 0; c < channels; ++c) {
      for (size_t t = 0; t < tokens; ++t) {
        double sum = b[c];
        for (int64_t k = spec.dropped; k < width; ++k) {
          const auto tap = static_cast<size_t>(spec.flipped ? width - 1 - k : k);
          const double product = w[c * static_cast<size_t>(width) + tap] *
                                 past(row, c, static_cast<int64_t>(t) - width + 1 + k + spec.late);
          sum += round_if(spec.round_products, dtype, product);
        }
        sum = round_if(spec.round_sum, dtype, sum);
        y[(row * tokens + t) * channels + c] = function ? exact_activation(*function, sum) : sum;
      }
      for (int64_t k = 0; k < width; ++k) {
        const int64_t column = spec.keeps_first
                                   ? k - width + 1
                                   : static_cast<int64_t>(tokens) - width + k - spec.missing;
        after[(row * channels + c) * static_cast<size_t>(width) + static_cast<size_t>(k)] =
            past(row, c, std::max(column, -width));
      }
    }
  }
  put(out, y);
  if (state_after.defined()) put(state_after, after);
}

void wrong_scan(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                const SsdParams& params, const ScanSpec& spec) {
  const DType dtype = in.x.dtype();
  const size_t batch = extent(in.x, 0), tokens = extent(in.x, 1), heads = extent(in.x, 2);
  const size_t head_dim = extent(in.x, 3), groups = extent(in.b, 2), columns = extent(in.b, 3);
  const Values x = values_of(in.x), dt = values_of(in.dt), b = values_of(in.b), c = values_of(in.c);
  const Values a_log = values_of(in.a_log), d = values_of(in.d), dt_bias = values_of(in.dt_bias);
  Values state =
      in.state.defined() ? values_of(in.state) : Values(batch * heads * head_dim * columns, 0.0);
  Values kept = state, out(x.size());
  const bool rounds = params.form == SsdForm::step && spec.round_step;
  const auto low = [&](double v) { return round_if(rounds, dtype, v); };
  for (size_t row = 0; row < batch * tokens; ++row) {
    const size_t token = row % tokens;
    const bool forgets =
        spec.forgets_every > 0 && token > 0 && token % static_cast<size_t>(spec.forgets_every) == 0;
    for (size_t h = 0; h < heads; ++h) {
      const size_t group = spec.tiled_groups ? h % groups : h / (heads / groups);
      const size_t vectors = (row * groups + group) * columns;
      const double delta = time_step(dtype, dt[row * heads + h], dt_bias[h], params, spec);
      const double decay = std::exp(-spec.decay * delta * std::exp(a_log[h]));
      for (size_t p = 0; p < head_dim; ++p) {
        const size_t at = (row * heads + h) * head_dim + p;
        const size_t first = ((row / tokens * heads + h) * head_dim + p) * columns;
        double sum = 0;
        for (size_t n = 0; n < columns; ++n) {
          double& s = state[first + n];
          if (forgets) s = 0;
          const double factor = spec.input_by_dt ? low(delta * b[vectors + n]) : b[vectors + n];
          kept[first + n] = s * decay;
          s = s * decay + low(factor * x[at]);
          sum += low(s) * c[vectors + n];
        }
        const double skip = spec.skip_of_input ? delta * x[at] : x[at];
        out[at] = low(sum) + low(skip * d[h]);
      }
    }
  }
  put(y, out);
  if (!state_after.defined()) return;
  Values& last = spec.keeps_decay_only ? kept : state;
  for (double& s : last) {
    if (spec.state_dtype) s = round_to(*spec.state_dtype, s);
  }
  put(state_after, last);
}

void wrong_gated_norm(const Tensor& out, const Tensor& x, const Tensor& gate, const Tensor& weight,
                      const GatedRmsNormParams& params, const GatedSpec& spec) {
  Values v = values_of(x);
  const Values g = values_of(gate), w = values_of(weight);
  const auto factor = [&](size_t i) {
    if (!spec.gated) return 1.0;
    return spec.sigmoid ? 1 / (1 + std::exp(-g[i])) : exact_activation(Activation::silu, g[i]);
  };
  if (!spec.gate_after) {
    for (size_t i = 0; i < v.size(); ++i) v[i] *= factor(i);
  }
  const size_t width = spec.one_group ? w.size() : static_cast<size_t>(params.group_size);
  const Values before = v;
  for (size_t i = 0; i < v.size(); ++i) {
    const size_t first = spec.first_group ? i - i % w.size() : i - i % width;
    double squares = 0;
    for (size_t j = first; j < first + width - static_cast<size_t>(spec.dropped); ++j) {
      squares += before[j] * before[j];
    }
    const double mean = squares / static_cast<double>(width);
    double n = before[i] / std::sqrt(mean + spec.eps.value_or(params.eps));
    if (spec.gate_after) n *= factor(i);
    n = round_if(spec.round_normalised, x.dtype(), n);
    v[i] = spec.weight ? w[i % w.size()] * n : n;
  }
  put(out, v);
}

}  // namespace plumb::harness::testing
