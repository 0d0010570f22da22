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

struct Turn {
  const std::vector<double>&in, &cos, &sin;
  size_t head_dim, rotated, tokens, heads;
  RotaryStyle style;
};

// Pairs turned by their angles: by the table's transpose, if inverse.
std::vector<double> turned(const Turn& t, const Rounding& by_cos, const Rounding& by_sin,
                           bool inverse) {
  std::vector<double> out = t.in;
  for (size_t row = 0; row * t.head_dim < out.size(); ++row) {
    const size_t table = (row / (t.heads * t.tokens) * t.tokens + row % t.tokens) * t.rotated;
    for (size_t i = 0; i < t.rotated / 2; ++i) {
      const bool halves = t.style == RotaryStyle::half;
      const size_t first = halves ? i : 2 * i, second = halves ? i + t.rotated / 2 : 2 * i + 1;
      const size_t table_first = table + i, table_second = table + (halves ? second : i);
      const double a = t.in[row * t.head_dim + first], b = t.in[row * t.head_dim + second];
      const double cos_a = by_cos(a * t.cos[table_first]);
      const double sin_b = by_sin(b * t.sin[inverse ? table_second : table_first]);
      const double cos_b = by_cos(b * t.cos[table_second]);
      const double sin_a = by_sin(a * t.sin[inverse ? table_first : table_second]);
      out[row * t.head_dim + first] = inverse ? cos_a + sin_b : cos_a - sin_b;
      out[row * t.head_dim + second] = inverse ? cos_b - sin_a : cos_b + sin_a;
    }
  }
  return out;
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
  const std::vector<double> values =
      turned({in, c, s, head_dim, rotated, tokens, heads, style}, by_cos, by_sin, false);
  put(out, values, "rotary");
}

void OracleOps::do_rotary_backward(const Tensor& d_x, const Tensor& d_out, const Tensor& cos,
                                   const Tensor& sin, RotaryStyle style) {
  const Rounding by_cos(d_out.dtype(), "rotary_backward.product_by_cos");
  const Rounding by_sin(d_out.dtype(), "rotary_backward.product_by_sin");
  const size_t head_dim = extent(d_out, 3), rotated = extent(cos, 2);
  const size_t tokens = extent(d_out, 2), heads = extent(d_out, 1);
  const std::vector<double> in = values_of(d_out), c = values_of(cos), s = values_of(sin);
  const std::vector<double> values =
      turned({in, c, s, head_dim, rotated, tokens, heads, style}, by_cos, by_sin, true);
  put(d_x, values, "rotary_backward");
}

}  // namespace plumb
