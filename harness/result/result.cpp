#include "harness/result/result.h"

#include <cmath>
#include <cstdio>

#include "harness/result/device_errors.h"
#include "kernels/core/error.h"

namespace plumb::harness {

CheckpointResult external_result(const Recording& recording, const Checkpoint& checkpoint) {
  CheckpointResult result;
  result.block = checkpoint.block;
  result.checkpoint = checkpoint.id;
  result.recording = recording.name();
  result.fixture = recording.folder().string();
  result.device = "external";
  result.dtype = name_of(recording.dtype());
  result.step = checkpoint.step;
  result.golden_sha256 = recording.sha256();
  return result;
}

void add_diagnosis(CheckpointResult& result, const std::string& output, const std::string& words) {
  result.diagnosis += result.diagnosis.empty() ? "" : "; ";
  result.diagnosis += output.empty() ? words : output + ": " + words;
}

void status_of_exception(CheckpointResult& result, const std::string& where,
                         const std::function<void()>& work) {
  const auto give_up = [&](Status status, const std::string& reason) {
    result.status = status;
    result.reason = reason;
  };
  try {
    settle_device_errors(result.status, result.reason, work);
  } catch (const BadInput& error) {
    give_up(Status::bad_input, error.what());
  } catch (const UsageError& error) {
    // It was called as the recording says: operands that do not fit are the recording's fault.
    give_up(Status::bad_input, text(where, ": ", error.what()));
  } catch (const std::exception& error) {
    give_up(Status::internal_error, error.what());
  }
}

void note_sample(const OutputCase& output, CheckpointResult& result) {
  if (!output.evidence.sample) return;
  const bool other_model = output.rule.held_to_model || output.rule.conformance;
  const bool lacks_model = other_model && !output.evidence.model.defined() && !output.rule.exact;
  result.details.push_back(text("output \"", output.evidence.name, "\" judged from ",
                                words_of(*output.evidence.sample),
                                lacks_model ? ", without its rounded model" : ""));
}

std::string words_of(const KnownBugFound& found) {
  char figure[64];
  const bool bits = !std::isnan(found.differ);
  std::snprintf(figure, sizeof figure, bits ? "%.2g %% of bits differ" : "error %.2g of its limit",
                bits ? 100 * found.differ : found.ratio);
  return text("equals the block with a known bug, ", found.bug, ": ", figure);
}

}  // namespace plumb::harness
