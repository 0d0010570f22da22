#include "harness/trace/stated_error.h"

#include <cmath>

#include "harness/recording/layout.h"
#include "harness/recording/reference_error.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// Of NaN and infinities there is no figure.
bool has_figure(const Evidence& output) {
  const Layout layout = layout_of(output.reference.shape(), output.axes);
  const std::vector<double> r = to_matrix(output.reference, layout);
  std::vector<double> o = r;
  if (output.delta.defined()) add_delta(o, output.delta, layout);
  const std::vector<uint8_t> valid = to_mask(output.valid, output.valid_axes, layout);
  for (size_t i = 0; i < o.size(); ++i) {
    if (valid[i] && !(std::isfinite(r[i]) && std::isfinite(o[i]))) return false;
  }
  return true;
}

// Nothing was compared where y has another shape, or the recording contradicts itself.
bool is_structure_alone(const OutputVerdict& verdict) { return verdict.gates.size() == 1; }

}  // namespace

void require_stated_error(const Checkpoint& checkpoint, const Evidence& output,
                          const OutputVerdict& verdict) {
  if (is_structure_alone(verdict)) return;
  const double stated = checkpoint.outputs.at(output.name).error, computed = verdict.recorded_error;
  if (is_stated(stated, computed)) return;
  if (!std::isfinite(stated) && !has_figure(output)) return;
  throw BadInput(text(checkpoint.params.where(), ": outputs.", output.name, ".error is ", stated,
                      ", reference and delta give ", computed, "; record it again"));
}

}  // namespace plumb::harness
