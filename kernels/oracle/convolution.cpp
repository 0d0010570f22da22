// Convolutions, each product added where it belongs: a transposed one goes through the inputs, not
// through the results as all other devices do. Formulas and roundings: ops.h.
#include <cmath>

#include "kernels/oracle/oracle_ops.h"

namespace plumb {
namespace {

// What a window's element takes, or gives to: numbers of elements in their planes.
struct Tap {
  int64_t of_window, place, weight;
};

std::vector<Tap> taps_of(const ConvCall& call, const Tensor& of_windows, const Tensor& inside) {
  const ConvParams& p = call.params;
  std::vector<Tap> out;
  for (int64_t at = 0; at < of_windows.dim(2) * of_windows.dim(3); ++at) {
    for (int64_t tap = 0; tap < call.weight.dim(2) * call.weight.dim(3); ++tap) {
      const int64_t row = at / of_windows.dim(3) * p.stride[0] - p.padding[0] +
                          tap / call.weight.dim(3) * p.dilation[0];
      const int64_t column = at % of_windows.dim(3) * p.stride[1] - p.padding[1] +
                             tap % call.weight.dim(3) * p.dilation[1];
      const bool is_inside =
          row >= 0 && row < inside.dim(2) && column >= 0 && column < inside.dim(3);
      if (is_inside) out.push_back({at, row * inside.dim(3) + column, tap});
    }
  }
  return out;
}

}  // namespace

void OracleOps::do_convolve(const ConvCall& call) {
  const Tensor &out = call.out, &x = call.x;
  const bool transposed = call.transposed();
  const std::vector<Tap> taps = taps_of(call, transposed ? x : out, transposed ? out : x);
  const std::vector<double> from = values_of(x), w = values_of(call.weight);
  const size_t plane = extent(out, 2) * extent(out, 3), x_plane = extent(x, 2) * extent(x, 3);
  const auto inputs = static_cast<size_t>(call.inputs()),
             outputs = static_cast<size_t>(call.outputs());
  const size_t channels = extent(x, 1), results = extent(out, 1);
  const size_t window = extent(call.weight, 2) * extent(call.weight, 3);
  std::vector<double> sums(static_cast<size_t>(out.numel())), magnitudes(sums.size());
  for (size_t i = 0; i < extent(x, 0) * channels * outputs; ++i) {
    const size_t batch = i / outputs / channels, channel = i / outputs % channels,
                 own = i % outputs;
    const size_t result = channel / inputs * outputs + own;
    const double* weights = w.data() + window * (transposed ? channel * outputs + own
                                                            : result * inputs + channel % inputs);
    const double* source = from.data() + (batch * channels + channel) * x_plane;
    const size_t to = (batch * results + result) * plane;
    for (const Tap& tap : taps) {
      const double term = weights[tap.weight] * source[transposed ? tap.of_window : tap.place];
      const size_t at = to + static_cast<size_t>(transposed ? tap.place : tap.of_window);
      sums[at] += term;
      magnitudes[at] += std::fabs(term);
    }
  }
  const Noise noise(x.dtype());
  const std::vector<double> added =
      call.bias.defined() ? values_of(call.bias) : std::vector<double>(results, 0.0);
  for (size_t i = 0; i < sums.size(); ++i) {
    const double bias = added[i / plane % results];
    sums[i] = noise.sum(sums[i] + bias, magnitudes[i] + std::fabs(bias),
                        static_cast<size_t>(call.terms()));
  }
  put(out, sums, call.row.name);
}

}  // namespace plumb
