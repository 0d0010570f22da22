#include "harness/io/table.h"

#include <algorithm>
#include <utility>

#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

size_t width_of(const std::string& words) {
  return static_cast<size_t>(std::count_if(words.begin(), words.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;  // not a continuation byte of UTF-8
  }));
}

}  // namespace

void Table::add_column(std::string title, bool right) {
  columns_.push_back({std::move(title), right});
}

void Table::add_row(std::vector<Cell> cells) {
  require(cells.size() == columns_.size(), "table", "a row of ", cells.size(), " cells for ",
          columns_.size(), " columns");
  rows_.push_back(std::move(cells));
}

std::string Table::to_text() const {
  std::vector<Cell> titles;
  for (const Column& column : columns_) titles.push_back({column.title, ""});
  std::vector<const std::vector<Cell>*> lines = {&titles};
  for (const std::vector<Cell>& row : rows_) lines.push_back(&row);

  std::vector<size_t> widths(columns_.size(), 0);
  for (const auto* line : lines) {
    for (size_t c = 0; c < widths.size(); ++c) {
      widths[c] = std::max(widths[c], width_of((*line)[c].words));
    }
  }
  std::string out;
  for (const auto* line : lines) {
    for (size_t c = 0; c < widths.size(); ++c) {
      const Cell& cell = (*line)[c];
      const std::string gap(widths[c] - width_of(cell.words), ' ');
      const std::string shown =
          cell.colour.empty() ? cell.words : cell.colour + cell.words + "\x1b[0m";
      out += columns_[c].right ? gap + shown : shown + gap;
      out += "  ";
    }
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  }
  return out;
}

}  // namespace plumb::harness
