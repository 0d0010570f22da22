// Words for the elements of a layout, and for the groups of its error families.
#include <algorithm>

#include "harness/recording/layout_parts.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

std::string axis_range(const Layout& layout, int axis, Range r) {
  const std::string name = layout.axis_name(axis);
  if (r.end - r.begin == 1) return text(name, ' ', r.begin);
  return text(name, ' ', r.begin, "..", r.end - 1);
}

void append(std::string& words, const std::string& part) {
  if (!words.empty()) words += ", ";
  words += part;
}

// The i-th token, as a range of token indices.
Range token_range(const Layout& layout, int64_t i) {
  const int64_t token = layout.token_at(i);
  return {token, token + 1};
}

std::string row_words(const Layout& layout, int64_t batch, Range tokens) {
  std::string words;
  if (layout.batch_axis >= 0 && extent(layout, layout.batch_axis) > 1) {
    words = axis_range(layout, layout.batch_axis, {batch, batch + 1});
  }
  if (layout.token_axis >= 0) append(words, axis_range(layout, layout.token_axis, tokens));
  return words;
}

// Columns [begin, end): one index per axis when they are in one row of the last axis.
std::string column_words(const Layout& layout, Range columns) {
  if (layout.column_axes.empty()) return {};
  const int last = layout.column_axes.back();
  const int64_t width = extent(layout, last);
  if (columns.begin / width != (columns.end - 1) / width) {
    return text("columns ", columns.begin, "..", columns.end - 1);
  }
  std::string words =
      axis_range(layout, last, {columns.begin % width, (columns.end - 1) % width + 1});
  int64_t rest = columns.begin / width;
  for (auto axis = layout.column_axes.rbegin() + 1; axis != layout.column_axes.rend(); ++axis) {
    const int64_t count = extent(layout, *axis);
    words = axis_range(layout, *axis, {rest % count, rest % count + 1}) + ", " + words;
    rest /= count;
  }
  return words;
}

std::string joined(std::string left, const std::string& right) {
  if (!right.empty()) append(left, right);
  return left;
}

// Indices and sizes of all axes, for axes without names. A range of no extent is the whole axis.
std::string index_words(const Layout& layout, const std::vector<Range>& of_axis) {
  std::string out = "[";
  for (size_t axis = 0; axis < of_axis.size(); ++axis) {
    const Range r = of_axis[axis];
    const int64_t size = layout.shape[static_cast<int>(axis)];
    out += axis == 0 ? "" : ", ";
    if (r.begin == r.end || (r.end - r.begin == size && size > 1)) {
      out += ':';
    } else {
      out += std::to_string(r.begin);
      if (r.end - r.begin > 1) out += text("..", r.end - 1);
    }
  }
  return text(out, "] of ", layout.shape);
}

// Some rows of one batch entry.
struct RowRange {
  int64_t batch = 0;
  Range tokens = {0, 0};
};

// Where rows and columns are on the axes; without rows, or with columns of no extent, all of them.
std::vector<Range> axis_ranges(const Layout& layout, const RowRange* rows, Range columns) {
  std::vector<Range> out(static_cast<size_t>(layout.shape.rank()), Range{0, 0});
  const auto set = [&](int axis, Range r) {
    if (axis >= 0) out[static_cast<size_t>(axis)] = r;
  };
  if (rows) {
    set(layout.batch_axis, {rows->batch, rows->batch + 1});
    set(layout.token_axis, rows->tokens);
  }
  if (columns.begin == columns.end) return out;
  int64_t first = columns.begin, last = columns.end - 1;
  bool whole = false;  // an axis further out has more than one index
  for (auto axis = layout.column_axes.rbegin(); axis != layout.column_axes.rend(); ++axis) {
    const int64_t count = extent(layout, *axis);
    whole = first / count != last / count;
    set(*axis, whole ? Range{0, 0} : Range{first % count, last % count + 1});
    first /= count;
    last /= count;
  }
  return out;
}

}  // namespace

bool is_nameless(const Layout& layout) {
  return std::any_of(layout.labels.begin(), layout.labels.end(),
                     [](const std::string& label) { return label.empty(); });
}

std::string Layout::axis_name(int axis) const {
  const auto at = static_cast<size_t>(axis);
  if (labels.empty()) return axes[at];
  return labels[at].empty() ? text("axis ", axis) : labels[at];
}

std::string element_name(const Layout& layout, int64_t position) {
  const int64_t row = position / layout.columns;
  const int64_t column = position % layout.columns;
  if (is_nameless(layout)) {
    const RowRange rows{row / layout.tokens, token_range(layout, row % layout.tokens)};
    return index_words(layout, axis_ranges(layout, &rows, {column, column + 1}));
  }
  return joined(row_words(layout, row / layout.tokens, token_range(layout, row % layout.tokens)),
                column_words(layout, {column, column + 1}));
}

std::string group_name(const Layout& layout, const Partition& family, int64_t group) {
  const bool nameless = is_nameless(layout);
  const auto rows_at = [&](int64_t row) {
    return RowRange{row / layout.tokens, token_range(layout, row % layout.tokens)};
  };
  const auto words = [&](const RowRange& rows, Range columns) {
    if (nameless) return index_words(layout, axis_ranges(layout, &rows, columns));
    return joined(row_words(layout, rows.batch, rows.tokens),
                  columns.begin == columns.end ? "" : column_words(layout, columns));
  };
  if (family.name == "channel") {
    const Range column{group, group + 1};
    return nameless ? index_words(layout, axis_ranges(layout, nullptr, column))
                    : column_words(layout, column);
  }
  if (family.name == "head") {
    const int head = head_axis(layout);
    const Range at{group, group + 1};
    if (!nameless) return axis_range(layout, head, at);
    std::vector<Range> ranges = axis_ranges(layout, nullptr, {0, 0});
    ranges[static_cast<size_t>(head)] = at;
    return index_words(layout, ranges);
  }
  if (family.name == "token") return words(rows_at(group), {0, 0});
  if (family.name == "token x head") {
    const int head = head_axis(layout);
    const int64_t heads = extent(layout, head);
    const RowRange rows = rows_at(group / heads);
    const Range at{group % heads, group % heads + 1};
    if (nameless) {
      std::vector<Range> ranges = axis_ranges(layout, &rows, {0, 0});
      ranges[static_cast<size_t>(head)] = at;
      return index_words(layout, ranges);
    }
    return joined(row_words(layout, rows.batch, rows.tokens), axis_range(layout, head, at));
  }
  const int64_t across = tiles_across(layout);
  const std::vector<Range> tokens = tile_rows(layout).tokens;
  const auto down = static_cast<int64_t>(tokens.size());
  const int64_t column = group % across * tile_columns(layout);
  const RowRange rows{group / across / down, tokens[static_cast<size_t>(group / across % down)]};
  return words(rows, {column, std::min(column + tile_columns(layout), layout.columns)});
}

std::string row_name(const Layout& layout, int64_t row) {
  return group_name(layout, {"token", {}, {}, layout.rows}, row);
}

}  // namespace plumb::harness
