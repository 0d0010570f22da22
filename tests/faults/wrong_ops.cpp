#include "tests/faults/wrong_ops.h"

#include <cmath>

#include "kernels/core/device.h"

namespace plumb::harness::testing {

Tensor fresh(Ops& ops, DType dtype, const Shape& shape) {
  return ops.device().allocate(dtype, shape);
}

Tensor copied(Ops& ops, const Tensor& x) {
  const Tensor out = fresh(ops, x.dtype(), x.shape());
  put(out, values_of(x));
  return out;
}

Tensor changed(Ops& ops, const Tensor& x, const std::function<void(Values&)>& change) {
  const Tensor out = copied(ops, x);
  edit(out, change);
  return out;
}

Tensor mapped(Ops& ops, const Tensor& x, const std::function<double(double)>& f) {
  return changed(ops, x, [&](Values& values) {
    for (double& value : values) value = f(value);
  });
}

void edit(const Tensor& t, const std::function<void(Values&)>& change) {
  Values values = values_of(t);
  change(values);
  put(t, values);
}

double truncated_to(DType dtype, double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const DTypeInfo& format = info(dtype);
  const int exponent = std::max(std::ilogb(x), format.min_exponent);
  const double unit = std::ldexp(1.0, exponent - format.significand_bits + 1);
  return std::trunc(x / unit) * unit;
}

void put_truncated(const Tensor& t, const Values& values, std::string_view) {
  Values out = values;
  for (double& value : out) value = truncated_to(t.dtype(), value);
  put(t, out);
}

double round_if(bool rounds, DType dtype, double x) { return rounds ? round_to(dtype, x) : x; }

namespace {

void store_values(const Tensor& out, const Values& values, bool truncate) {
  truncate ? put_truncated(out, values) : put(out, values);
}

size_t width_of(const Tensor& t) { return static_cast<size_t>(t.dim(-1)); }

struct NormStatistics {
  double mean = 0, factor = 1;
};

NormStatistics norm_statistics(const double* x, size_t n, DType storage, const NormSpec& spec) {
  const size_t terms = n - static_cast<size_t>(spec.dropped);
  const double count = static_cast<double>(n) + spec.divisor;
  double sum = 0;
  for (size_t i = 0; i < terms; ++i) sum += x[i];
  const double mean = sum / static_cast<double>(n);
  double squares = 0;
  for (size_t i = 0; i < terms; ++i) {
    const double v = spec.centred_variance ? x[i] - mean : x[i];
    const double term = spec.absolute ? std::fabs(v) : v * v;
    const bool rounds = spec.storage_sums || spec.round_squares;
    squares = round_if(spec.storage_sums, storage, squares + round_if(rounds, storage, term));
  }
  if (spec.place == NormSpec::Eps::in_the_sum) squares += spec.eps;
  double variance = squares / count;
  if (spec.place == NormSpec::Eps::inside_root) variance += spec.eps;
  double deviation = spec.absolute || spec.squared ? variance : std::sqrt(variance);
  if (spec.place == NormSpec::Eps::after_root) deviation += spec.eps;
  return {spec.subtract_mean ? mean : 0, 1 / deviation};
}

}  // namespace

void wrong_norm(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                const NormSpec& spec) {
  const Values in = values_of(x), w = values_of(weight);
  const Values b = bias.defined() ? values_of(bias) : Values(w.size(), 0.0);
  const DType storage = x.dtype();
  Values values(in.size());
  const size_t n = width_of(x);
  for (size_t row = 0; row < in.size(); row += n) {
    const double* source = in.data() + (spec.shared_statistics ? 0 : row);
    const NormStatistics s = norm_statistics(source, n, storage, spec);
    for (size_t i = 0; i < n; ++i) {
      const double normalised = (in[row + i] - s.mean) * s.factor;
      const double gain = round_if(spec.round_gain, storage, spec.offset + w[i]);
      values[row + i] =
          round_if(spec.round_normalised, storage, normalised) * gain + spec.bias * b[i];
    }
  }
  store_values(out, values, spec.truncate);
}

void wrong_linear(const Tensor& out, const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const LinearSpec& spec) {
  Values in = values_of(x), w = values_of(weight);
  const Values b = bias.defined() ? values_of(bias) : Values();
  const DType storage = x.dtype();
  if (spec.multiply) {
    for (Values* operand : {&in, &w}) {
      for (double& value : *operand) value = round_to(*spec.multiply, value);
    }
  }
  const size_t depth = width_of(x), columns = static_cast<size_t>(weight.dim(0));
  Values values;
  for (size_t row = 0; row < in.size(); row += depth) {
    for (size_t j = 0; j < columns; ++j) {
      const bool drops = j >= static_cast<size_t>(spec.dropped_from);
      const size_t terms = depth - (drops ? static_cast<size_t>(spec.dropped) : 0);
      double sum = 0;
      for (size_t p = 0; p < terms; ++p) {
        const bool flipped = spec.transposed && columns == depth;
        const double product = in[row + p] * w[flipped ? p * columns + j : j * depth + p];
        sum = round_if(spec.storage_sums, storage, sum + product);
      }
      if (!b.empty()) sum = round_if(spec.round_before_bias, storage, sum) + spec.bias * b[j];
      values.push_back(sum);
    }
  }
  store_values(out, values, spec.truncate);
}

void wrong_rotary(const Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin,
                  RotaryStyle style, const RotarySpec& spec) {
  const DType storage = x.dtype();
  const size_t width = width_of(x), r = width_of(cos), half = r / 2;
  const auto tokens = static_cast<size_t>(x.dim(2)), heads = static_cast<size_t>(x.dim(1));
  const size_t start = spec.rotate_last_columns ? width - r : 0;
  const Values in = values_of(x), c = values_of(cos), s = values_of(sin);
  const auto product = [&](double a, double b) {
    return round_if(spec.round_products, storage, a * b);
  };
  Values values = in;
  for (size_t row = 0; row * width < in.size(); ++row) {
    const size_t b = row / (heads * tokens), h = row / tokens % heads, t = row % tokens;
    const size_t table = (b * tokens + (spec.table_by_head ? h % tokens : t)) * r;
    for (size_t i = 0; i < half; ++i) {
      const bool halves = style == RotaryStyle::half;
      const size_t first = row * width + start + (halves ? i : 2 * i);
      const size_t second = halves ? first + half : first + 1;
      const size_t again = table + (halves ? i + half : i);
      const double a = in[first], z = in[second];
      values[first] = product(a, c[table + i]) - product(z, spec.sine * s[table + i]);
      if (spec.first_half_only) continue;
      values[second] = product(z, c[again]) + product(a, spec.sine * s[again]);
    }
  }
  store_values(out, values, spec.truncate);
}

double exact_activation(Activation function, double x) {
  switch (function) {
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::gelu: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:  // x/2 (1 + tanh u), without the cancellation at negative u
      return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::tanh: return std::tanh(x);
  }
  return x;
}

}  // namespace plumb::harness::testing
