// harness list: recordings and their checkpoints, or the catalog of blocks.
#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "blocks/catalog.h"
#include "blocks/models/dialects.h"
#include "harness/cli/cli.h"
#include "harness/io/escape.h"
#include "kernels/ops/map_call.h"

namespace plumb::harness {
namespace {

int list_blocks() {
  for (const blocks::BlockEntry& entry : blocks::block_catalog()) {
    std::cout << std::left << std::setw(20) << entry.name << entry.summary << "\n";
  }
  std::cout << "\ngradients, for --direction backward: of all but";
  for (const blocks::BlockEntry& entry : blocks::block_catalog()) {
    if (!entry.has_backward) std::cout << ' ' << entry.name;
  }
  std::cout << "\n\nsuites, for --suite\n";
  for (const blocks::BlockSuite& suite : blocks::block_suites()) {
    std::cout << std::left << std::setw(20) << suite.name << suite.summary << ":";
    for (const std::string_view block : suite.blocks) std::cout << ' ' << block;
    std::cout << "\n";
  }
  std::cout << std::left << std::setw(20) << kOpSuite
            << "every op on calls made from its row, no recordings: harness list --ops\n";
  return 0;
}

// The ops that plugins may have, and what those compute that are one formula.
int list_ops() {
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<OpId>(i);
    std::cout << std::left << std::setw(32) << name_of(op);
    if (has_one_formula(op)) {
      std::cout << std::setw(24) << operands_of(row_of(op)) << text_of(op, *row_of(op).formula);
    } else if (row_of(op).reduction) {
      std::cout << std::setw(24) << operands_of(row_of(op)) << text_of(*row_of(op).reduction);
    } else {
      std::cout << operands_of(row_of(op));
    }
    std::cout << "\n";
  }
  return 0;
}

// Rows of the table of decoders, as far as they say which class of transformers is which block.
int list_models() {
  const auto key = [](const auto& it) {
    return it.name ? nlohmann::ordered_json(it.name) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json out;
  for (const blocks::Dialect& row : blocks::dialects()) {
    nlohmann::ordered_json norm;  // of an RMSNorm
    if (row.norm == blocks::NormKind::rms) {
      norm["weight_offset"] = static_cast<int>(row.norm_offset);
      norm["rounding"] = row.norm_rounding == WeightRounding::before ? "before" : "after";
    }
    nlohmann::ordered_json rotation{
        {"style", row.rotation.style == RotaryStyle::half ? "half" : "interleaved"}};
    if (row.rotation.table_of_pairs) rotation["table"] = "pairs";
    if (row.rotation.in_float32) rotation["float32"] = true;
    out[std::string(row.model_type)] = {{"classes", row.classes},
                                        {"form", blocks::name_of(row.form)},
                                        {"packed", row.packed},
                                        {"norm", norm},
                                        {"rotation", rotation},
                                        {"scaled_embedding", row.scaled_embedding},
                                        {"score_cap", key(row.score_cap)},
                                        {"logit_cap", key(row.logit_cap)},
                                        {"logit_scale", key(row.logit_scale)},
                                        {"slides", row.slides != blocks::Slides::never}};
  }
  std::cout << out.dump(2) << "\n";
  return 0;
}

int list_recordings(const Selection& selection) {
  const bool narrowed =
      !selection.blocks.empty() || !selection.suites.empty() || !selection.checkpoint.empty();
  size_t shown = 0;
  for (const auto& folder : selected_recordings(selection)) {
    const Recording recording = Recording::open(folder);
    const std::vector<size_t> indices = selected_checkpoints(selection, recording);
    if (indices.empty()) continue;
    shown += indices.size();
    std::cout << terminal_text(recording.name()) << "  " << name_of(recording.dtype()) << ", "
              << indices.size() << " checkpoint(s)  " << folder.string() << "\n";
    std::map<std::string, int> counts;
    for (size_t i : indices) {
      const Checkpoint& checkpoint = recording.checkpoints()[i];
      if (narrowed) {
        std::cout << "  " << std::left << std::setw(20) << terminal_text(checkpoint.block)
                  << terminal_text(checkpoint.id) << "\n";
      }
      ++counts[checkpoint.block];
    }
    if (narrowed) continue;
    std::string line = " ";
    for (const auto& [block, count] : counts) line += text(' ', terminal_text(block), ' ', count);
    std::cout << line << "\n";
  }
  require(shown > 0, "selection", "no checkpoint matches; harness list without options shows all");
  return 0;
}

}  // namespace

std::string operands_of(const OpRow& row) {
  std::string out;
  for (int i = 0; i < row.operands.count; ++i) {
    const Operand& it = row.operands.operands.at(static_cast<size_t>(i));
    if (i > 0) out += i == row.operands.outputs ? " = " : ", ";
    out += it.optional ? text('[', it.name, ']') : text(it.name);
  }
  return out;
}

Action add_list(CLI::App& app) {
  auto selection = std::make_shared<Selection>();
  auto blocks = std::make_shared<bool>(false);
  auto ops = std::make_shared<bool>(false);
  auto models = std::make_shared<bool>(false);
  add_selection(app, selection);
  app.add_flag("--blocks", *blocks, "the kinds of blocks this binary knows");
  app.add_flag("--ops", *ops, "the ops of a device, which plugins replace: operands, formulas");
  app.add_flag("--models", *models, "the decoders this binary runs: a JSON table of their rows");
  return [selection, blocks, ops, models] {
    if (*blocks) return list_blocks();
    if (*ops) return list_ops();
    if (*models) return list_models();
    require_known_blocks(*selection);
    return list_recordings(*selection);
  };
}

}  // namespace plumb::harness
