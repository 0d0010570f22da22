// Rotary tables and their application. Formulas and roundings: ops.h.
#include <cmath>

#include "kernels/oracle/oracle_ops.h"

namespace plumb {

namespace {

// The values of cos or sin, in the place of those that they round to. One table may serve a batch.
void use_unrounded(const std::vector<double>& unrounded, DType storage,
                   std::vector<double>& values) {
  if (unrounded.empty() || values.size() % unrounded.size() != 0) return;
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = unrounded[i % unrounded.size()];
    if (round_to(storage, value) == values[i]) values[i] = value;
  }
}

}  // namespace

void OracleOps::do_rotary_table(const Tensor& cos, const Tensor& sin, const Tensor& positions,
                                const Tensor& inv_freq, double attention_scaling) {
  const std::vector<double> frequencies = values_of(inv_freq);
  const size_t half = frequencies.size();
  const bool exact = cos.dtype() == DType::f64;  // else HF's angles are float32
  const Noise noise(cos.dtype());
  std::vector<double> cosines, sines;
  for (double position : values_of(positions)) {
    for (size_t i = 0; i < 2 * half; ++i) {
      const double angle = position * frequencies[i % half];
      const double rounded = exact ? angle : round_to(DType::f32, angle);
      cosines.push_back(noise.function(std::cos(rounded)) * attention_scaling);
      sines.push_back(noise.function(std::sin(rounded)) * attention_scaling);
    }
  }
  put(cos, cosines, "rotary_table.cos");
  put(sin, sines, "rotary_table.sin");
}

void OracleOps::do_rotary(const Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin,
                          RotaryStyle style) {
  // Two points: a fused multiply-add rounds one of the products.
  const Rounding by_cos(x.dtype(), "rotary.product_by_cos");
  const Rounding by_sin(x.dtype(), "rotary.product_by_sin");
  const size_t head_dim = static_cast<size_t>(x.dim(3)), rotated = static_cast<size_t>(cos.dim(2));
  const size_t tokens = static_cast<size_t>(x.dim(2)), heads = static_cast<size_t>(x.dim(1));
  const std::vector<double> in = values_of(x);
  std::vector<double> c = values_of(cos), s = values_of(sin);
  const ArithmeticScope* scope = ArithmeticScope::current();
  if (const RotaryTable* table = scope ? scope->arithmetic().table.get() : nullptr) {
    use_unrounded(table->cos, cos.dtype(), c);
    use_unrounded(table->sin, sin.dtype(), s);
  }
  std::vector<double> values = in;
  for (size_t row = 0; row * head_dim < in.size(); ++row) {
    const size_t table = (row / (heads * tokens) * tokens + row % tokens) * rotated;
    for (size_t i = 0; i < rotated / 2; ++i) {
      const bool halves = style == RotaryStyle::half;
      const size_t first = halves ? i : 2 * i, second = halves ? i + rotated / 2 : 2 * i + 1;
      const size_t table_second = table + (halves ? i + rotated / 2 : i);
      const double a = in[row * head_dim + first], b = in[row * head_dim + second];
      const double cos_a = by_cos(a * c[table + i]);
      const double sin_b = by_sin(b * s[table + i]);
      const double cos_b = by_cos(b * c[table_second]);
      const double sin_a = by_sin(a * s[table_second]);
      values[row * head_dim + first] = cos_a - sin_b;
      values[row * head_dim + second] = cos_b + sin_a;
    }
  }
  put(out, values, "rotary");
}

void OracleOps::do_rotary_backward(const Tensor& d_x, const Tensor& d_out, const Tensor& cos,
                                   const Tensor& sin, RotaryStyle style) {
  const Rounding by_cos(d_out.dtype(), "rotary_backward.product_by_cos");
  const Rounding by_sin(d_out.dtype(), "rotary_backward.product_by_sin");
  const size_t head_dim = extent(d_out, 3), rotated = extent(cos, 2);
  const size_t tokens = extent(d_out, 2), heads = extent(d_out, 1);
  const std::vector<double> in = values_of(d_out), c = values_of(cos), s = values_of(sin);
  std::vector<double> values = in;
  for (size_t row = 0; row * head_dim < in.size(); ++row) {
    const size_t table = (row / (heads * tokens) * tokens + row % tokens) * rotated;
    for (size_t i = 0; i < rotated / 2; ++i) {
      const bool halves = style == RotaryStyle::half;
      const size_t first = halves ? i : 2 * i, second = halves ? i + rotated / 2 : 2 * i + 1;
      const size_t table_second = table + (halves ? i + rotated / 2 : i);
      const double a = in[row * head_dim + first], b = in[row * head_dim + second];
      const double cos_a = by_cos(a * c[table + i]), sin_b = by_sin(b * s[table_second]);
      const double cos_b = by_cos(b * c[table_second]), sin_a = by_sin(a * s[table + i]);
      values[row * head_dim + first] = cos_a + sin_b;
      values[row * head_dim + second] = cos_b - sin_a;
    }
  }
  put(d_x, values, "rotary_backward");
}

}  // namespace plumb
