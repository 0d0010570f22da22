#include "harness/chain/chain_spread.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <string>
#include <tuple>
#include <utility>

#include "harness/chain/chain_compare.h"
#include "harness/chain/chain_rows.h"
#include "harness/recording/layout.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

using Place = std::tuple<int64_t, std::string, std::string>;  // step, checkpoint, output

// The error that the reference introduces at a place, on recorded inputs.
struct Introduced {
  Shape shape;
  std::vector<double> error;  // zero where an element is not judged
};
using Errors = std::map<Place, Introduced>;

// RMS of what the recorded difference of a denormal to its oracle, a float32, does not say.
double lost_below(DType storage) {
  const bool float32 = storage == DType::f32;
  return float32 ? std::ldexp(1.0, -149) / std::sqrt(12.0) : 0;
}

Introduced introduced(const Recording& recording, const OutputRef& output, double factor) {
  const Tensor delta = converted(recording.read(*output.delta), DType::f64);
  Introduced out{delta.shape(), {delta.data<double>(), delta.data<double>() + delta.numel()}};
  std::vector<uint8_t> valid(out.error.size(), 1);
  if (output.valid) {
    const Tensor mask = recording.read(output.valid->tensor);
    const Layout layout = layout_of(out.shape, output.axes);
    // Masks are by token, which rows of the layout follow: batch and token come first.
    const bool in_order = layout.batch_axis == 0 && layout.token_axis == 1;
    if (in_order) valid = to_mask(mask, output.valid->axes, layout);
  }
  const Tensor reference = converted(recording.read(output.tensor), DType::f64);
  const double step = lost_below(recording.dtype());
  for (size_t i = 0; i < out.error.size(); ++i) {
    const double r = std::fabs(reference.data<double>()[i]);
    // Of a denormal what is recorded is a whole number of steps, most often none.
    const bool denormal = r > 0 && r < std::ldexp(1.0, info(recording.dtype()).min_exponent);
    const double error = denormal ? std::max(std::fabs(out.error[i]), step) : out.error[i];
    out.error[i] = valid[i] && std::isfinite(r) && std::isfinite(error) ? factor * error : 0;
  }
  return out;
}

// A layer inside another one is a part of that.
bool is_inner(const ChainRun& run, const std::vector<ChainRow>& rows, size_t row) {
  const std::string& path = run.of_row[row]->path;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string outer = run.of_row[i]->path + '.';
    if (rows[i].step == rows[row].step && !rows[i].is_state() && path.starts_with(outer)) {
      return true;
    }
  }
  return false;
}

// Of embedding, layers, final norm and head.
Errors layer_errors(const ChainRun& run, const std::vector<ChainRow>& rows) {
  Errors out;
  for (size_t i = 0; i < rows.size(); ++i) {
    const ChainRow& row = rows[i];
    const OutputRef& output = run.of_row[i]->outputs.at(row.output);
    if (row.is_state() || !output.delta || is_inner(run, rows, i)) continue;
    const bool more = row.isolated_reference > 0 && row.isolated > row.isolated_reference;
    const double factor = more ? row.isolated / row.isolated_reference : 1;
    out[{row.step, place_of(*run.of_row[i]), row.output}] =
        introduced(run.recording, output, factor);
  }
  return out;
}

bool is_composite(const std::string& block) {
  return block == "attention" || block == "glu_mlp" || block == "mamba2_mixer" ||
         block == "shared_transformer" || block.ends_with("_layer");
}

// Of the parts inside layers, which states come from.
void add_part_errors(Errors& errors, const ChainRun& run) {
  for (const Checkpoint& c : run.recording.checkpoints()) {
    if (is_composite(c.block)) continue;
    for (const auto& [name, output] : c.outputs) {
      if (!output.delta || output.sampled) continue;
      const double factor = introduced_inside(c, output, run.recording.dtype());
      errors.try_emplace({c.step, place_of(c), name}, introduced(run.recording, output, factor));
    }
  }
}

// What the embedding gives: its scale is rounded to storage in transformers (Gemma 2) and not in a
// float64 model.
std::map<Place, Tensor> embeddings(const ChainRun& run, const std::vector<ChainRow>& rows) {
  std::map<Place, Tensor> out;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].block != "embedding") continue;
    const OutputRef& output = run.of_row[i]->outputs.at(rows[i].output);
    const Tensor o = host_tensor(DType::f64, run.recording.tensor_info(output.tensor).shape);
    const Tensor r = converted(run.recording.read(output.tensor), DType::f64);
    std::copy_n(r.data<double>(), r.numel(), o.data<double>());
    if (output.chained && output.chained->delta) {
      const Tensor delta = run.recording.read(*output.chained->delta);
      for (int64_t k = 0; k < o.numel(); ++k) o.data<double>()[k] += delta.data<float>()[k];
    }
    out[{rows[i].step, place_of(*run.of_row[i]), rows[i].output}] = o;
  }
  return out;
}

// A normal number for every element of every run: splitmix64, Box and Muller.
class Normals {
 public:
  explicit Normals(uint64_t seed) : state_(seed) {}
  double next() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  double uniform() {  // above 0, at most 1
    uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return std::ldexp(static_cast<double>(((z ^ (z >> 31)) >> 11) + 1), -53);
  }

  uint64_t state_;
};

// Each inverse frequency by a float32 rounding, the same one in every step.
class MovedFrequencies {
 public:
  explicit MovedFrequencies(uint64_t seed) : normals_(~seed) {}
  void operator()(std::vector<double>& inv_freq) {
    while (factors_.size() < inv_freq.size()) {
      factors_.push_back(1 + normals_.next() * unit_roundoff(DType::f32));
    }
    for (size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] *= factors_[i];
  }

 private:
  Normals normals_;
  std::vector<double> factors_;
};

void move(const Tensor& value, const std::vector<double>& by, Normals& normals) {
  std::vector<int64_t> at(static_cast<size_t>(value.rank()), 0);
  for (const double error : by) {
    int64_t offset = 0;
    for (int axis = 0; axis < value.rank(); ++axis) {
      offset += at[static_cast<size_t>(axis)] * value.stride(axis);
    }
    value.data<double>()[offset] += normals.next() * error;
    for (int axis = value.rank(); axis-- > 0;) {
      if (++at[static_cast<size_t>(axis)] < value.dim(axis)) break;
      at[static_cast<size_t>(axis)] = 0;
    }
  }
}

// Of every row.
using Values = std::vector<Tensor>;

Values chain_with(const ChainRun& run, const std::vector<ChainRow>& rows, const Errors& errors,
                  uint64_t seed) {
  std::map<Place, size_t> wanted;
  for (size_t i = 0; i < rows.size(); ++i) {
    wanted[{rows[i].step, place_of(*run.of_row[i]), rows[i].output}] = i;
  }
  Normals normals(seed);
  const std::map<Place, Tensor> given = embeddings(run, rows);
  const auto disturb = [&](int64_t step, const std::string& place, std::string_view output,
                           const Tensor& value) {
    const Place here = {step, place, std::string(output)};
    const auto exact = given.find(here);
    if (exact != given.end() && exact->second.shape() == value.shape() && value.contiguous()) {
      std::copy_n(exact->second.data<double>(), value.numel(), value.data<double>());
    }
    const auto found = errors.find(here);
    if (found == errors.end()) return;
    if (value.shape() == found->second.shape) move(value, found->second.error, normals);
  };
  const auto is_row = [&](int64_t step, const std::string& place, std::string_view output) {
    return wanted.contains({step, place, std::string(output)});
  };
  ChainReplay::Frequencies frequencies;
  if (!errors.empty()) frequencies = MovedFrequencies(seed);
  const auto seen =
      run.replay.run(run.oracle, DType::f64, run.replay.steps() - 1, is_row, disturb, frequencies);
  Values out;
  for (size_t i = 0; i < rows.size(); ++i) {
    const OutputRef& ref = run.of_row[i]->outputs.at(rows[i].output);
    Tensor value = find_seen(seen[static_cast<size_t>(rows[i].step)], place_of(*run.of_row[i]),
                             rows[i].output);
    if (rows[i].block == "lm_head") {
      value = last_tokens(value, run.recording.tensor_info(ref.tensor).shape[1]);
    }
    out.push_back(value);
  }
  return out;
}

bool agrees(const ChainRun& run, const std::vector<ChainRow>& rows,
            const std::vector<Tensor>& judged, const Values& exact) {
  for (size_t i = 0; i < rows.size(); ++i) {
    ChainRow row = rows[i];
    compare_chained(row, run.recording, *run.of_row[i], exact[i], judged[i], run.dtype);
    const double size = std::max(row.reference, row.floor);
    const double ratio = size_ratio(run.recording, *run.of_row[i], row.output);
    const double lost = ratio > 1 ? unit_roundoff(run.dtype) * ratio : 0;  // in denormals
    if (!(row.chained <= std::max(kSimulationAgrees * size, lost))) return false;
  }
  return true;
}

// mean + 10 sd.
double reach(const std::vector<double>& values, double deviations = kSimulatedDeviations) {
  const auto n = static_cast<double>(values.size());
  double mean = 0, squares = 0;
  for (const double value : values) mean += value / n;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return mean + deviations * std::sqrt(squares / (n - 1));
}

}  // namespace

std::optional<ChainSpread> chain_spread(const ChainRun& run, const std::vector<ChainRow>& rows,
                                        const std::vector<Tensor>& judged) try {
  const Values exact = chain_with(run, rows, {}, 0);
  if (!agrees(run, rows, judged, exact)) return std::nullopt;
  Errors errors_of = layer_errors(run, rows);
  add_part_errors(errors_of, run);
  std::vector<std::vector<double>> errors(rows.size());
  std::vector<double> mean_kl, max_kl;
  std::vector<std::vector<std::vector<double>>> deciding(rows.size());  // by row, token and run
  for (int k = 1; k <= kSimulatedChains; ++k) {
    const Values moved = chain_with(run, rows, errors_of, static_cast<uint64_t>(k) << 32);
    std::vector<TokenLogits> tokens;
    for (size_t i = 0; i < rows.size(); ++i) {
      const Tensor& y = moved[i];
      const Between between{run.recording, *run.of_row[i], rows[i].output, judged[i]};
      errors[i].push_back(between.error(y, exact[i]));
      if (rows[i].block != "lm_head" || is_saturated(run.dtype, rows[i].reference)) continue;
      const size_t before = tokens.size();
      between.add_tokens(tokens, y, exact[i]);
      deciding[i].resize(tokens.size() - before);
      for (size_t t = 0; t < deciding[i].size(); ++t) {
        deciding[i][t].push_back(deciding_error(tokens[before + t].y, tokens[before + t].o));
      }
    }
    const ModelFigures figures = model_figures(std::move(tokens), run.dtype, 1);
    mean_kl.push_back(figures.mean_kl);
    max_kl.push_back(figures.max_kl);
  }
  ChainSpread out;
  for (const std::vector<double>& values : errors) out.rows.push_back(reach(values));
  for (const auto& tokens : deciding) {
    std::vector<double>& reached = out.deciding.emplace_back();
    for (const std::vector<double>& values : tokens)
      reached.push_back(reach(values, kDecidingDeviations));
  }
  out.mean_kl = reach(mean_kl);
  out.max_kl = reach(max_kl);
  return out;
} catch (const BadInput&) {  // the model is not the recorded one: other frequencies
  return std::nullopt;
}

}  // namespace plumb::harness
