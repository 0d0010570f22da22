#include "harness/model/sampling.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <vector>

#include "harness/io/generator.h"
#include "kernels/core/error.h"
#include "kernels/ops/argmax.h"

namespace plumb::harness {
namespace {

// Uniform in [0, 1).
double uniform(uint64_t seed, uint64_t draw) {
  return static_cast<double>(splitmix64(seed, draw) >> 11) * 0x1p-53;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What argmax gives.
void require_number(int64_t place) {
  require<DeviceError>(place >= 0, "generate", "the logit of token ", -1 - place, " is NaN");
}

}  // namespace

int64_t choose_token(const char* logits, DType dtype, int64_t count, const Sampling& sampling,
                     uint64_t draw) {
  const int64_t best = argmax(dtype, logits, count);
  require_number(best);
  if (sampling.temperature == 0) return best;
  std::vector<double> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[static_cast<size_t>(i)] = load(dtype, logits + i * size_of(dtype));
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
  TokenRows all = prompt;     // and what came since, 0 after a stop
  std::vector<int64_t> last;  // of every sequence that continues
  const auto take = [&](const std::vector<int64_t>& ids) {
    last.assign(ids.size(), 0);
    for (size_t row = 0; row < ids.size(); ++row) {
      if (done[row]) continue;  // computed with the others, not shown
      require_number(ids[row]);
      last[row] = ids[row];
      out.tokens[row].push_back(ids[row]);
      said(row, ids[row]);
      done[row] = std::find(stops.begin(), stops.end(), ids[row]) != stops.end();
    }
    for (size_t row = 0; row < ids.size(); ++row) all[row].push_back(last[row]);
  };
  const auto choose = [&](const Tensor& logits, int64_t step) {
    std::vector<int64_t> ids;
    const int64_t vocabulary = logits.dim(-1);
    for (size_t row = 0; row < prompt.size(); ++row) {
      const char* at =
          logits.data<char>() + static_cast<int64_t>(row) * vocabulary * size_of(logits.dtype());
      const uint64_t draw = static_cast<uint64_t>(step) * prompt.size() + row;
      ids.push_back(choose_token(at, logits.dtype(), vocabulary, sampling, draw));
    }
    return ids;
  };
  auto start = std::chrono::steady_clock::now();
  take(choose(inference.forward(prompt, 1), 0));
  out.prompt_seconds = seconds_since(start);
  int64_t at_once = 1, count = 1;
  const auto all_done = [&] {
    return std::all_of(done.begin(), done.end(), [](bool d) { return d; });
  };
  for (int64_t step = 1; step < most && !all_done(); step += count) {
    start = std::chrono::steady_clock::now();
    const auto before = static_cast<int64_t>(all[0].size());
    const int64_t reread_at = inference.rereads_at().value_or(0);
    if (before == reread_at) {
      count = 1;
      inference.restart();
      take(choose(inference.forward(all, 1), step));
      ++out.decoded_per_row;
    } else if (sampling.temperature == 0) {
      count = std::min(at_once, most - step);
      if (before < reread_at) count = std::min(count, reread_at - before);
      for (const auto& ids : inference.decode_greedily(last, count)) {
        if (all_done()) break;
        take(ids);
        ++out.decoded_per_row;
      }
    } else {
      TokenRows next;
      for (const int64_t id : last) next.push_back({id});
      take(choose(inference.forward(next, 1), step));
      ++out.decoded_per_row;
    }
    const double seconds = seconds_since(start);
    out.decode_seconds += seconds;
    at_once = Inference::at_once(seconds / static_cast<double>(count));
  }
  return out;
}

}  // namespace plumb::harness
