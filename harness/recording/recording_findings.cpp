#include "harness/recording/recording_findings.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/io/printable.h"
#include "harness/recording/block_names.h"
#include "harness/recording/layout.h"
#include "harness/recording/recording.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// The delta was rounded to float32: an error that is computed again differs in the eighth digit.
constexpr double kErrorTolerance = 1e-5;

class Findings {
 public:
  template <class Check>
  void of(const Check& check) {
    try {
      check();
    } catch (const BadInput& error) {
      texts.emplace_back(error.what());
    }
  }
  std::vector<std::string> texts;
};

// sqrt(sum delta^2 / sum o^2) with the oracle o = r + delta, over valid elements whose r is finite;
// infinite where one is not, and is not what o is.
double reference_error(const Recording& recording, const OutputRef& output) {
  const Tensor reference = recording.read(output.tensor);
  const Layout layout = layout_of(reference.shape(), output.axes);
  const std::vector<double> r = to_matrix(reference, layout);
  const std::vector<double> delta = to_matrix(recording.read(*output.delta), layout);
  const std::vector<uint8_t> valid =
      output.valid ? to_mask(recording.read(output.valid->tensor), output.valid->axes, layout)
                   : to_mask({}, {}, layout);
  double above = 0, below = 0;
  for (size_t i = 0; i < r.size(); ++i) {
    if (!valid[i]) continue;
    if (!std::isfinite(r[i])) {
      if (delta[i] != 0) return std::numeric_limits<double>::infinity();
      continue;
    }
    above += delta[i] * delta[i];
    below += (r[i] + delta[i]) * (r[i] + delta[i]);
  }
  return above == 0 ? 0 : std::sqrt(above / below);
}

bool is_near(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return true;
  return std::isfinite(a) && std::isfinite(b) &&
         std::fabs(a - b) <= kErrorTolerance * std::max(std::fabs(a), std::fabs(b));
}

void check_error(const Recording& recording, const OutputRef& output, const std::string& where) {
  const double error = output.delta ? reference_error(recording, output) : 0;
  if (is_near(error, output.error)) return;
  throw BadInput(text(where, ".error: is ", output.error, ", but the tensors give ", error));
}

void check_numbers(const Recording& recording, const Checkpoint& c, const std::string& where,
                   Findings& findings) {
  for (const auto& [name, output] : c.outputs) {
    const std::string field = text(where, ": outputs.", name);
    const int64_t stored = recording.tensor_info(output.tensor).shape.numel();
    findings.of([&] { check_error(recording, output, field); });
    findings.of([&] {
      if (!output.sampled) return;
      check_ascending(recording.read(output.sampled->tokens), output.sampled->of, field + ".rows");
    });
    findings.of([&] {
      if (!output.model || output.model->at.empty()) return;
      check_ascending(recording.read(output.model->at), stored, field + ".model.at");
    });
  }
  for (const PlantedBug& bug : c.bugs) {
    const Shape& shape = recording.tensor_info(c.outputs.at(bug.output).tensor).shape;
    findings.of([&] {
      check_ascending(recording.read(bug.at), shape.numel(),
                      text(where, ": bugs: ", printable(bug.name), ".at"));
    });
  }
}

}  // namespace

std::vector<std::string> recording_findings(const std::filesystem::path& folder) {
  Findings findings;
  findings.of([&] {
    const Recording recording = Recording::open(folder, &findings.texts);
    const std::string& document = recording.provenance().document().name();
    for (const std::string& hash : recording.wrong_hashes()) findings.texts.push_back(hash);
    for (const Checkpoint& c : recording.checkpoints()) {
      for (const std::string& name : name_findings(c)) {
        findings.texts.push_back(text(document, ": ", printable(c.id), ": ", name));
      }
    }
    if (!findings.texts.empty()) return;
    for (const Checkpoint& c : recording.checkpoints()) {
      check_numbers(recording, c, text(document, ": ", printable(c.id)), findings);
    }
  });
  return findings.texts;
}

}  // namespace plumb::harness
