// The state space scan of Mamba2. Formulas and roundings: ops.h.
#include "kernels/oracle/ssd_scan.h"

namespace plumb {

void OracleOps::do_ssd_scan(const Tensor& y, const Tensor& state_after, const SsdInputs& in,
                            const SsdParams& params) {
  const DType storage = in.x.dtype();
  const size_t batch = extent(in.x, 0), tokens = extent(in.x, 1), heads = extent(in.x, 2);
  const size_t head_dim = extent(in.x, 3), groups = extent(in.b, 2), columns = extent(in.b, 3);
  const std::vector<double> x = values_of(in.x), dt = values_of(in.dt), b = values_of(in.b);
  const std::vector<double> c = values_of(in.c), a_log = values_of(in.a_log), d = values_of(in.d);
  const std::vector<double> dt_bias = values_of(in.dt_bias);
  std::vector<double> state = in.state.defined()
                                  ? values_of(in.state)
                                  : std::vector<double>(batch * heads * head_dim * columns, 0.0);
  const bool step = params.form == SsdForm::step;
  const TimeStep time_step{storage};
  // The step form rounds the input's two products, the state that is read, y's sum and d x.
  const auto in_step = [&](const char* name) {
    return Rounding(step ? storage : DType::f64, name);
  };
  const Rounding scaled_b = in_step("ssd_scan.dt_b"), outer = in_step("ssd_scan.input");
  const Rounding read = in_step("ssd_scan.state"), product = in_step("ssd_scan.product");
  const Rounding skip = in_step("ssd_scan.skip");
  const Noise noise(storage);
  std::vector<double> values(x.size());
  for (size_t row = 0; row < batch * tokens; ++row) {
    const size_t n = row / tokens;
    for (size_t h = 0; h < heads; ++h) {
      const size_t vectors = (row * groups + h / (heads / groups)) * columns;
      const double delta = time_step(dt[row * heads + h], dt_bias[h], params).dt;
      const double decay = noise.function(std::exp(delta * noise.function(-std::exp(a_log[h]))));
      for (size_t p = 0; p < head_dim; ++p) {
        const size_t at = (row * heads + h) * head_dim + p;
        double* s = state.data() + ((n * heads + h) * head_dim + p) * columns;
        double sum = 0, magnitudes = 0;
        for (size_t k = 0; k < columns; ++k) {
          const double input = outer(scaled_b(delta * b[vectors + k]) * x[at]);
          s[k] = s[k] * decay + input;
          // The state is stored in float32 after every step, in one go after a sequence.
          if (step && storage != DType::f64) s[k] = round_to(DType::f32, s[k]);
          s[k] = noise.sum(s[k], std::fabs(s[k]), 2);
          const double term = read(s[k]) * c[vectors + k];
          sum += term;
          magnitudes += std::fabs(term);
        }
        values[at] = product(noise.sum(sum, magnitudes, columns)) + skip(x[at] * d[h]);
      }
    }
  }
  put(y, values, "ssd_scan");
  if (state_after.defined()) move(state_after, state);
}

}  // namespace plumb
