#include "harness/recording/layout.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "harness/recording/layout_parts.h"
#include "kernels/core/error.h"
#include "kernels/core/shared_loop.h"

namespace plumb::harness {
namespace {

constexpr int64_t kTileSide = 8;
// Columns of a tile where some rows are missing: eight elements of one row are often all small.
constexpr int64_t kSparseTileColumns = 64;

int find_axis(const std::vector<std::string>& axes, std::string_view name) {
  const auto at = std::find(axes.begin(), axes.end(), name);
  return at == axes.end() ? -1 : static_cast<int>(at - axes.begin());
}

// Element offsets of the rows and columns in a tensor with the given stride per axis of the layout.
struct Offsets {
  std::vector<int64_t> row, column;
};

Offsets offsets_of(const Layout& layout, const std::array<int64_t, kMaxRank>& strides) {
  const auto stride = [&](int axis) { return axis < 0 ? 0 : strides[static_cast<size_t>(axis)]; };
  Offsets out;
  out.row.reserve(static_cast<size_t>(layout.rows));
  for (int64_t row = 0; row < layout.rows; ++row) {
    out.row.push_back(row / layout.tokens * stride(layout.batch_axis) +
                      row % layout.tokens * stride(layout.token_axis));
  }
  out.column.assign(static_cast<size_t>(layout.columns), 0);
  int64_t inner = 1;
  for (auto axis = layout.column_axes.rbegin(); axis != layout.column_axes.rend(); ++axis) {
    const int64_t count = extent(layout, *axis);
    for (int64_t c = 0; c < layout.columns; ++c) {
      out.column[static_cast<size_t>(c)] += c / inner % count * stride(*axis);
    }
    inner *= count;
  }
  return out;
}

// put(place, element) for every element, in the matrix's order.
template <class T, class Put>
void gather(const T* data, const Offsets& at, std::vector<double>& out, const Put& put) {
  const size_t columns = at.column.size();
  const LoopParts rows(at.row.size(), 1, out.size());
  // Most tensors have the columns of a row side by side.
  const bool dense =
      std::adjacent_find(at.column.begin(), at.column.end(),
                         [](int64_t a, int64_t b) { return b != a + 1; }) == at.column.end();
  for_parts(rows, [&](size_t begin, size_t end, size_t) {
    for (size_t row = begin; row < end; ++row) {
      double* to = out.data() + row * columns;
      const T* from = data + at.row[row];
      if (dense) {
        for (size_t c = 0; c < columns; ++c) put(to[c], from[c]);
      } else {
        for (size_t c = 0; c < columns; ++c) put(to[c], from[at.column[c]]);
      }
    }
  });
}

template <class Put>
void gather_from(const Tensor& t, const Offsets& at, std::vector<double>& out, const Put& put) {
  switch (t.dtype()) {
    case DType::f64: gather(t.data<double>(), at, out, put); break;
    case DType::f32:
      gather(t.data<float>(), at, out, [&](double& to, float x) { put(to, double{x}); });
      break;
    case DType::bf16:
      gather(t.data<uint16_t>(), at, out,
             [&](double& to, uint16_t x) { put(to, double{bf16_to_f32(x)}); });
      break;
    case DType::f16:
      gather(t.data<uint16_t>(), at, out,
             [&](double& to, uint16_t x) { put(to, double{f16_to_f32(x)}); });
      break;
    default: {
      const char* base = t.data<char>();
      const int64_t size = size_of(t.dtype());
      size_t i = 0;
      for (const int64_t row : at.row) {
        for (const int64_t column : at.column)
          put(out[i++], load(t.dtype(), base + (row + column) * size));
      }
    }
  }
}

Offsets offsets_in(const Tensor& t, const Layout& layout) {
  require(t.shape() == layout.shape, "judge", "a tensor of shape ", t.shape(), ", expected ",
          layout.shape);
  std::array<int64_t, kMaxRank> strides{};
  for (int axis = 0; axis < t.rank(); ++axis) strides[static_cast<size_t>(axis)] = t.stride(axis);
  return offsets_of(layout, strides);
}

std::vector<int64_t> multiples(int64_t count, int64_t step) {
  std::vector<int64_t> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int64_t>(i) * step;
  return out;
}

}  // namespace

int head_axis(const Layout& layout) {
  for (const int axis : layout.column_axes) {
    const std::string& name = layout.axes[static_cast<size_t>(axis)];
    if (name == "head" || name == "kv_head") return axis;
  }
  return -1;
}

TileRows tile_rows(const Layout& layout) {
  TileRows out;
  for (int64_t i = 0; i < layout.tokens; ++i) {
    const int64_t token = layout.token_at(i);
    if (out.tokens.empty() || out.tokens.back().begin / kTileSide != token / kTileSide) {
      out.tokens.push_back({layout.chosen.empty() ? token / kTileSide * kTileSide : token, token});
    }
    out.tokens.back().end = token + 1;
    out.of_token.push_back(static_cast<int64_t>(out.tokens.size()) - 1);
  }
  return out;
}

int64_t tile_columns(const Layout& layout) {
  return layout.chosen.empty() ? kTileSide : kSparseTileColumns;
}

int64_t tiles_across(const Layout& layout) {
  return (layout.columns + tile_columns(layout) - 1) / tile_columns(layout);
}

Layout layout_of(const Shape& shape, const std::vector<std::string>& axes,
                 std::vector<int64_t> chosen) {
  require<BadInput>(axes.size() == static_cast<size_t>(shape.rank()), "axes", axes.size(),
                    " axis names for shape ", shape, " of rank ", shape.rank());
  Layout out;
  out.axes = axes;
  out.shape = shape;
  out.batch_axis = find_axis(axes, "batch");
  out.token_axis = find_axis(axes, "token");
  if (out.token_axis < 0) out.token_axis = find_axis(axes, "kv_token");
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (axis == out.batch_axis || axis == out.token_axis) continue;
    out.column_axes.push_back(axis);
    out.columns *= shape[axis];
  }
  out.tokens = extent(out, out.token_axis);
  out.rows = extent(out, out.batch_axis) * out.tokens;
  require(chosen.empty() || static_cast<int64_t>(chosen.size()) == out.tokens, "judge",
          chosen.size(), " chosen tokens for a tensor of shape ", shape);
  out.chosen = std::move(chosen);
  return out;
}

std::vector<double> to_matrix(const Tensor& t, const Layout& layout) {
  const Offsets at = offsets_in(t, layout);
  std::vector<double> out = shared_zeros<double>(static_cast<size_t>(layout.size()));
  if (!out.empty()) gather_from(t, at, out, [](double& to, double x) { to = x; });
  return out;
}

void add_delta(std::vector<double>& matrix, const Tensor& delta, const Layout& layout) {
  const Offsets at = offsets_in(delta, layout);
  if (matrix.empty()) return;
  gather_from(delta, at, matrix, [](double& to, double x) {
    const bool itself = !std::isfinite(to) && std::isfinite(x) && x != 0;
    to = itself ? x : to + x;
  });
}

std::vector<int64_t> flat_positions(const Layout& layout) {
  std::array<int64_t, kMaxRank> strides{};
  int64_t stride = 1;
  for (int axis = layout.shape.rank() - 1; axis >= 0; --axis) {
    strides[static_cast<size_t>(axis)] = stride;
    stride *= layout.shape[axis];
  }
  std::vector<int64_t> out;
  if (layout.size() == 0) return out;
  const Offsets at = offsets_of(layout, strides);
  for (const int64_t row : at.row) {
    for (const int64_t column : at.column) out.push_back(row + column);
  }
  return out;
}

std::vector<uint8_t> to_mask(const Tensor& mask, const std::vector<std::string>& mask_axes,
                             const Layout& layout) {
  std::vector<uint8_t> out = shared_zeros<uint8_t>(static_cast<size_t>(layout.size()));
  if (!mask.defined()) {
    shared_loop(out.size(), [&](size_t begin, size_t end) {
      std::fill(out.data() + begin, out.data() + end, uint8_t{1});
    });
  }
  if (!mask.defined() || out.empty()) return out;
  require<BadInput>(
      mask.dtype() == DType::boolean && mask_axes.size() == static_cast<size_t>(mask.rank()),
      "valid", "a ", name_of(mask.dtype()), " tensor of shape ", mask.shape(), " with ",
      mask_axes.size(), " axis names, expected a bool tensor with one name per axis");
  std::array<int64_t, kMaxRank> strides{};
  for (int i = 0; i < mask.rank(); ++i) {
    const int axis = find_axis(layout.axes, mask_axes[static_cast<size_t>(i)]);
    require<BadInput>(axis >= 0, "valid", "axis ", mask_axes[static_cast<size_t>(i)],
                      " is not an axis of the output");
    require<BadInput>(mask.dim(i) == 1 || mask.dim(i) == layout.shape[axis], "valid", "axis ",
                      mask_axes[static_cast<size_t>(i)], " has extent ", mask.dim(i),
                      ", the output's has ", layout.shape[axis]);
    if (mask.dim(i) != 1) strides[static_cast<size_t>(axis)] = mask.stride(i);
  }
  const Offsets at = offsets_of(layout, strides);
  const uint8_t* data = mask.data<uint8_t>();
  size_t i = 0;
  for (const int64_t row : at.row) {
    for (const int64_t column : at.column) out[i++] = data[row + column] != 0;
  }
  return out;
}

namespace {

Partition tiles(const Layout& layout) {
  const TileRows tiles = tile_rows(layout);
  const auto down = static_cast<int64_t>(tiles.tokens.size());
  const int64_t across = tiles_across(layout);
  Partition out{"tile", multiples(layout.rows, 0), multiples(layout.columns, 0), 0};
  for (int64_t row = 0; row < layout.rows; ++row) {
    const int64_t tile = tiles.of_token[static_cast<size_t>(row % layout.tokens)];
    out.row_part[static_cast<size_t>(row)] = (row / layout.tokens * down + tile) * across;
  }
  for (int64_t c = 0; c < layout.columns; ++c)
    out.column_part[static_cast<size_t>(c)] = c / tile_columns(layout);
  out.groups = layout.rows / std::max<int64_t>(layout.tokens, 1) * down * across;
  return out;
}

}  // namespace

std::vector<Partition> error_families(const Layout& layout) {
  std::vector<Partition> out;
  const bool rows = layout.token_axis >= 0;
  const bool columns = !layout.column_axes.empty();
  if (rows) {
    out.push_back({"token", multiples(layout.rows, 1), multiples(layout.columns, 0), layout.rows});
    if (const int head = head_axis(layout); head >= 0) {
      const int64_t heads = extent(layout, head);
      out.push_back({"token x head", multiples(layout.rows, heads),
                     along_axis(layout, head).column_part, layout.rows * heads});
    }
  }
  if (columns) {
    out.push_back(
        {"channel", multiples(layout.rows, 0), multiples(layout.columns, 1), layout.columns});
  }
  if (rows && columns) out.push_back(tiles(layout));
  return out;
}

Partition along_axis(const Layout& layout, int axis) {
  std::array<int64_t, kMaxRank> strides{};
  strides[static_cast<size_t>(axis)] = 1;
  Offsets at = offsets_of(layout, strides);
  return {layout.axes[static_cast<size_t>(axis)], std::move(at.row), std::move(at.column),
          layout.shape[axis]};
}

}  // namespace plumb::harness
