// harness list: recordings and their checkpoints, or the catalog of blocks.
#include <CLI/CLI.hpp>
#include <iostream>
#include <map>

#include "blocks/catalog.h"
#include "harness/cli/cli.h"
#include "harness/io/escape.h"
#include "kernels/ops/map_call.h"

namespace plumb::harness {
namespace {

int list_blocks() {
  for (const blocks::BlockEntry& entry : blocks::block_catalog()) {
    std::cout << std::left << std::setw(20) << entry.name << entry.summary << "\n";
  }
  std::cout << "\nsuites, for --suite\n";
  for (const blocks::BlockSuite& suite : blocks::block_suites()) {
    std::cout << std::left << std::setw(20) << suite.name << suite.summary << ":";
    for (const std::string_view block : suite.blocks) std::cout << ' ' << block;
    std::cout << "\n";
  }
  return 0;
}

// "out = x, weight, [bias]"
std::string operands_of(const OpRow& row) {
  std::string out;
  for (int i = 0; i < row.operands.count; ++i) {
    const Operand& it = row.operands.operands.at(static_cast<size_t>(i));
    if (i > 0) out += i == row.operands.outputs ? " = " : ", ";
    out += it.optional ? text('[', it.name, ']') : text(it.name);
  }
  return out;
}

// The ops that plugins may have, and what those compute that are one formula.
int list_ops() {
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<OpId>(i);
    std::cout << std::left << std::setw(18) << name_of(op);
    if (has_one_formula(op)) {
      std::cout << std::setw(22) << operands_of(row_of(op)) << text_of(op, *row_of(op).formula);
    } else {
      std::cout << operands_of(row_of(op));
    }
    std::cout << "\n";
  }
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

Action add_list(CLI::App& app) {
  auto selection = std::make_shared<Selection>();
  auto blocks = std::make_shared<bool>(false);
  auto ops = std::make_shared<bool>(false);
  add_selection(app, selection);
  app.add_flag("--blocks", *blocks, "the kinds of blocks this binary knows");
  app.add_flag("--ops", *ops, "the ops of a device, which plugins replace: operands, formulas");
  return [selection, blocks, ops] {
    if (*blocks) return list_blocks();
    if (*ops) return list_ops();
    require_known_blocks(*selection);
    return list_recordings(*selection);
  };
}

}  // namespace plumb::harness
