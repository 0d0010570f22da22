// Gradients of the Mamba2 scan, one token after the other. Formulas: ops.h.
//
// With G_t the gradient of the state S_t, G_t = d_y_t (outer) c_t + exp(dt_{t+1} A) G_{t+1}, from
// behind: d_c_t = d_y_t S_t, d_b_t = dt_t x_t G_t, d_x_t = dt_t G_t b_t + d d_y_t, and
// d_dt_t = x_t G_t b_t + A q_t, d_A = sum over t of dt_t q_t, q_t = exp(dt_t A) <G_t, S_{t-1}>.
#include "kernels/oracle/ssd_scan.h"

namespace plumb {
namespace {

// Sums whose terms come one by one, and their magnitudes for simulated errors.
struct GradientSums {
  std::vector<double> values, magnitudes;
  explicit GradientSums(size_t count) : values(count), magnitudes(count) {}

  void add(size_t at, double term) {
    values[at] += term;
    magnitudes[at] += std::fabs(term);
  }
  const std::vector<double>& of(const Noise& noise, size_t terms) {
    for (size_t i = 0; noise.on() && i < values.size(); ++i) {
      values[i] = noise.sum(values[i], magnitudes[i], terms);
    }
    return values;
  }
};

}  // namespace

void OracleOps::do_ssd_scan_backward(const SsdInputs& gradients, const Tensor& d_y,
                                     const Tensor& d_state_after, const SsdInputs& in,
                                     const SsdParams& params) {
  const size_t batch = extent(in.x, 0), tokens = extent(in.x, 1), heads = extent(in.x, 2);
  const size_t head_dim = extent(in.x, 3), groups = extent(in.b, 2), columns = extent(in.b, 3);
  const std::vector<double> x = values_of(in.x), raw_dt = values_of(in.dt), b = values_of(in.b);
  const std::vector<double> c = values_of(in.c), a_log = values_of(in.a_log), d = values_of(in.d);
  const std::vector<double> dt_bias = values_of(in.dt_bias), dy = values_of(d_y);
  const size_t states = batch * heads * head_dim * columns;
  const auto given = [&](const Tensor& t) {
    return t.defined() ? values_of(t) : std::vector<double>(states, 0.0);
  };
  const std::vector<double> first = given(in.state), after = given(d_state_after);
  const TimeStep time_step{in.x.dtype()};
  const Noise noise(in.x.dtype());
  std::vector<double> d_x(x.size()), d_state(states), state((tokens + 1) * columns), g(columns);
  std::vector<double> decays(tokens);
  std::vector<TimeStep::Value> steps(tokens);
  GradientSums d_b(b.size()), d_c(c.size()), d_dt(raw_dt.size());
  GradientSums d_a_log(heads), d_d(heads), d_bias(heads);
  for (size_t n = 0; n < batch; ++n) {
    for (size_t h = 0; h < heads; ++h) {
      const double rate = noise.function(-std::exp(a_log[h]));
      for (size_t t = 0; t < tokens; ++t) {
        steps[t] = time_step(raw_dt[(n * tokens + t) * heads + h], dt_bias[h], params);
        decays[t] = noise.function(std::exp(steps[t].dt * rate));
      }
      const auto vector_at = [&](size_t t) {
        return ((n * tokens + t) * groups + h / (heads / groups)) * columns;
      };
      for (size_t p = 0; p < head_dim; ++p) {
        const size_t row = ((n * heads + h) * head_dim + p) * columns;
        const auto x_at = [&](size_t t) { return ((n * tokens + t) * heads + h) * head_dim + p; };
        for (size_t k = 0; k < columns; ++k) state[k] = first[row + k], g[k] = after[row + k];
        for (size_t t = 0; t < tokens; ++t) {
          for (size_t k = 0; k < columns; ++k) {
            const double next =
                state[t * columns + k] * decays[t] + steps[t].dt * b[vector_at(t) + k] * x[x_at(t)];
            state[(t + 1) * columns + k] = noise.sum(next, std::fabs(next), 2);
          }
        }
        for (size_t t = tokens; t-- > 0;) {
          const size_t vectors = vector_at(t), at = x_at(t), step = (n * tokens + t) * heads + h;
          double of_input = 0, of_decay = 0, inputs = 0, decayed = 0;
          for (size_t k = 0; k < columns; ++k) {
            g[k] += dy[at] * c[vectors + k];
            g[k] = noise.sum(g[k], std::fabs(g[k]), 2);
            d_c.add(vectors + k, dy[at] * state[(t + 1) * columns + k]);
            d_b.add(vectors + k, steps[t].dt * x[at] * g[k]);
            of_input += g[k] * b[vectors + k];
            inputs += std::fabs(g[k] * b[vectors + k]);
            g[k] *= decays[t];
            of_decay += g[k] * state[t * columns + k];
            decayed += std::fabs(g[k] * state[t * columns + k]);
          }
          of_input = noise.sum(of_input, inputs, columns);
          of_decay = noise.sum(of_decay, decayed, columns);
          d_x[at] = steps[t].dt * of_input + d[h] * dy[at];
          d_dt.add(step, x[at] * of_input * steps[t].slope);
          d_dt.add(step, rate * of_decay * steps[t].slope);
          d_a_log.add(h, steps[t].dt * rate * of_decay);
          d_d.add(h, dy[at] * x[at]);
        }
        for (size_t k = 0; k < columns; ++k) d_state[row + k] = g[k];
      }
    }
  }
  const size_t of_group = heads / std::max<size_t>(groups, 1) * head_dim;
  d_dt.of(noise, head_dim * 2);
  for (size_t i = 0; i < raw_dt.size(); ++i) d_bias.add(i % heads, d_dt.values[i]);
  const size_t all_tokens = batch * tokens;
  put(gradients.x, d_x, "ssd_scan_backward.d_x");
  put(gradients.dt, d_dt.values, "ssd_scan_backward.d_dt");
  put(gradients.b, d_b.of(noise, of_group), "ssd_scan_backward.d_b");
  put(gradients.c, d_c.of(noise, of_group), "ssd_scan_backward.d_c");
  put(gradients.a_log, d_a_log.of(noise, all_tokens * head_dim), "ssd_scan_backward.d_a_log");
  put(gradients.d, d_d.of(noise, all_tokens * head_dim), "ssd_scan_backward.d_d");
  put(gradients.dt_bias, d_bias.of(noise, all_tokens), "ssd_scan_backward.d_dt_bias");
  if (gradients.state.defined()) move(gradients.state, d_state);
}

}  // namespace plumb
