#include "harness/recording/recording_findings.h"

#include "harness/io/printable.h"
#include "harness/recording/block_names.h"
#include "harness/recording/layout.h"
#include "harness/recording/recording.h"
#include "harness/recording/reference_error.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

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

double error_in_tensors(const Recording& recording, const OutputRef& output) {
  const Tensor reference = recording.read(output.tensor);
  const Layout layout = layout_of(reference.shape(), output.axes);
  const std::vector<uint8_t> valid =
      output.valid ? to_mask(recording.read(output.valid->tensor), output.valid->axes, layout)
                   : to_mask({}, {}, layout);
  return reference_error(to_matrix(reference, layout),
                         to_matrix(recording.read(*output.delta), layout), valid);
}

void check_error(const Recording& recording, const OutputRef& output, const std::string& where) {
  const double error = output.delta ? error_in_tensors(recording, output) : 0;
  if (is_stated(output.error, error)) return;
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
