// harness show RECORDING: where it comes from and what is in it; with --checkpoint, the operands.
#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>

#include "harness/cli/cli.h"
#include "harness/io/escape.h"
#include "harness/referee/features.h"
#include "harness/report/console.h"

namespace plumb::harness {
namespace {

// "f32 [2, 11, 32]  mean 0.01  rms 1.2  min -3  max 3"
std::string describe(const Tensor& t) {
  double sum = 0, squares = 0, low = INFINITY, high = -INFINITY;
  const int64_t count = t.numel();
  for (int64_t i = 0; i < count; ++i) {
    const double value = load(t.dtype(), t.data<char>() + i * size_of(t.dtype()));
    sum += value;
    squares += value * value;
    low = std::fmin(low, value);
    high = std::fmax(high, value);
  }
  std::string out = text(name_of(t.dtype()), ' ', t.shape());
  if (count == 0) return out + "  empty";
  const double n = static_cast<double>(count);
  return out + "  mean " + short_number(sum / n) + "  rms " + short_number(std::sqrt(squares / n)) +
         "  min " + short_number(low) + "  max " + short_number(high);
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + terminal_text(word);
  return out;
}

std::string value_text(const blocks::Params::Value& value) {
  struct Visitor {
    std::string operator()(blocks::Params::Null) const { return "null"; }
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(double d) const { return text(d); }
    std::string operator()(const std::string& s) const { return terminal_text(s); }
    std::string operator()(const std::vector<double>& list) const {
      std::string out = "[";
      for (double d : list) out += (out.size() > 1 ? ", " : "") + text(d);
      return out + "]";
    }
    std::string operator()(const std::vector<std::string>& list) const {
      return "[" + joined(list) + "]";
    }
    std::string operator()(const blocks::Params& nested) const {
      std::string out = "{";
      for (const auto& [name, inner] : nested.values()) {
        out += (out.size() > 1 ? ", " : "") + terminal_text(name) + ": " + value_text(inner);
      }
      return out + "}";
    }
  };
  return std::visit(Visitor{}, value);
}

void show_checkpoint(const Recording& recording, const Checkpoint& checkpoint) {
  std::cout << terminal_text(checkpoint.id) << "  " << terminal_text(checkpoint.block) << ", step "
            << checkpoint.step << ", contract " << terminal_text(checkpoint.contract) << "\n";
  for (const auto& [name, value] : checkpoint.params.values()) {
    std::cout << "  param   " << terminal_text(name) << " = " << value_text(value) << "\n";
  }
  for (const auto& [name, ref] : checkpoint.inputs) {
    std::cout << "  input   " << terminal_text(name) << "  " << describe(recording.read(ref.tensor))
              << "  (" << joined(ref.axes) << ")\n";
  }
  for (const auto& [name, key] : checkpoint.weights) {
    std::cout << "  weight  " << terminal_text(name) << "  " << describe(recording.read(key))
              << "\n";
  }
  for (const auto& [name, ref] : checkpoint.outputs) {
    std::cout << "  output  " << terminal_text(name) << "  " << describe(recording.read(ref.tensor))
              << "  (" << joined(ref.axes) << ")  error of the reference "
              << short_number(ref.error);
    if (ref.sampled) std::cout << "  (some rows of " << ref.sampled->of << ", and a sketch of all)";
    std::cout << "\n";
  }
  const Features features = features_of(recording, checkpoint);
  std::cout << "  sees    " << joined(features.exercised) << "\n";
  if (!features.blind.empty()) std::cout << "  blind   " << joined(features.blind) << "\n";
}

void show_recording(const Recording& recording) {
  std::cout << terminal_text(recording.name()) << "\n"
            << "  folder        " << recording.folder().string() << "\n"
            << "  architecture  " << terminal_text(recording.architecture()) << " ("
            << terminal_text(recording.model_type()) << "), " << name_of(recording.dtype())
            << ", mode " << terminal_text(recording.mode()) << "\n"
            << "  checkpoints   " << recording.checkpoints().size() << "\n"
            << "  sha256        " << recording.sha256() << "\n";
  for (auto [name, value] : recording.provenance().at("producer").members()) {
    if (value.kind() == JsonValue::Kind::string) {
      std::cout << "  " << std::left << std::setw(14) << terminal_text(name)
                << terminal_text(value.string()) << "\n";
    }
  }
  std::map<std::string, int> counts;
  for (const Checkpoint& checkpoint : recording.checkpoints()) ++counts[checkpoint.block];
  for (const auto& [block, count] : counts) {
    std::cout << "  " << std::setw(6) << std::right << count << "  " << terminal_text(block)
              << "\n";
  }
}

}  // namespace

Action add_show(CLI::App& app) {
  auto folder = std::make_shared<std::string>();
  auto selection = std::make_shared<Selection>();
  app.add_option("recording", *folder, "folder of the recording")->required();
  add_narrowing(app, *selection);
  return [folder, selection] {
    const Recording recording = open_recording(*folder);
    require_known_blocks(*selection);
    if (selection->blocks.empty() && selection->checkpoint.empty()) {
      show_recording(recording);
      return 0;
    }
    const std::vector<size_t> indices = selected_checkpoints(*selection, recording);
    require_some(indices, *selection, recording);
    for (size_t i : indices) show_checkpoint(recording, recording.checkpoints()[i]);
    return 0;
  };
}

}  // namespace plumb::harness
