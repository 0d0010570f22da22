#include "harness/model/sampling.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "harness/io/generator.h"
#include "kernels/error.h"

namespace plumb::harness {
namespace {

// Uniform in [0, 1).
double uniform(uint64_t seed, uint64_t draw) {
  return static_cast<double>(splitmix64(seed, draw) >> 11) * 0x1p-53;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int64_t choose_token(const char* logits, DType dtype, int64_t count, const Sampling& sampling,
                     uint64_t draw) {
  std::vector<double> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[static_cast<size_t>(i)] = load(dtype, logits + i * size_of(dtype));
  }
  const auto nan = std::find_if(values.begin(), values.end(), [](double x) { return x != x; });
  require<DeviceError>(nan == values.end(), "generate", "the logit of token ", nan - values.begin(),
                       " is NaN");
  if (sampling.temperature == 0) {
    return std::max_element(values.begin(), values.end()) - values.begin();
  }
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const double x = values[static_cast<size_t>(a)], y = values[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  if (sampling.top_k > 0) order.resize(static_cast<size_t>(std::min(sampling.top_k, count)));
  const double largest = values[static_cast<size_t>(order[0])];
  std::vector<double> weights;
  for (const int64_t id : order) {
    weights.push_back(std::exp((values[static_cast<size_t>(id)] - largest) / sampling.temperature));
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0;
  size_t candidates = 0;
  while (candidates < weights.size() && (candidates == 0 || kept < sampling.top_p * sum)) {
    kept += weights[candidates++];
  }
  double left = uniform(sampling.seed, draw) * kept;
  for (size_t i = 0; i < candidates; ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[candidates - 1];
}

Generated generate(Inference& inference, const TokenRows& prompt, int64_t most,
                   const Sampling& sampling, const std::vector<int64_t>& stops,
                   const std::function<void(size_t row, int64_t id)>& said) {
  Generated out;
  out.tokens.resize(prompt.size());
  std::vector<bool> done(prompt.size(), false);
  TokenRows next = prompt;
  auto start = std::chrono::steady_clock::now();
  for (int64_t step = 0; step < most; ++step) {
    const Tensor logits = inference.forward(next, 1);
    const int64_t vocabulary = logits.dim(-1);
    for (size_t row = 0; row < prompt.size(); ++row) {
      const char* at =
          logits.data<char>() + static_cast<int64_t>(row) * vocabulary * size_of(logits.dtype());
      const uint64_t draw = static_cast<uint64_t>(step) * prompt.size() + row;
      const int64_t id = choose_token(at, logits.dtype(), vocabulary, sampling, draw);
      next[row] = {id};
      if (done[row]) continue;  // computed with the others, not shown
      out.tokens[row].push_back(id);
      said(row, id);
      done[row] = std::find(stops.begin(), stops.end(), id) != stops.end();
    }
    (step == 0 ? out.prompt_seconds : out.decode_seconds) += seconds_since(start);
    out.decoded_per_row += step > 0;
    start = std::chrono::steady_clock::now();
    if (std::all_of(done.begin(), done.end(), [](bool d) { return d; })) break;
  }
  return out;
}

}  // namespace plumb::harness
