// How an output with named axes is seen as rows x columns, and the groups its error is summed over.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/tensor.h"

namespace plumb::harness {

// Row = (batch, token), or (batch, kv_token) where no axis is called token; column = all other
// axes, flattened in order. Either product is 1 when its axes are missing.
struct Layout {
  std::vector<std::string> axes;  // one name per dimension of `shape`
  // What words call the axes; none: their names. "" is an axis without a name, for which `axes`
  // has a guess.
  std::vector<std::string> labels;
  Shape shape;
  int batch_axis = -1;  // -1: none
  int token_axis = -1;
  std::vector<int> column_axes;  // in order
  int64_t rows = 1;
  int64_t columns = 1;
  int64_t tokens = 1;  // rows of one batch entry
  // Where only some tokens are here: the index of each in the whole output, ascending. Empty: all.
  std::vector<int64_t> chosen;

  int64_t token_at(int64_t i) const { return chosen.empty() ? i : chosen[static_cast<size_t>(i)]; }
  int64_t size() const { return rows * columns; }
  bool is_named(int axis) const {
    return labels.empty() || !labels[static_cast<size_t>(axis)].empty();
  }
  // "head"; of an axis without a name its number: "axis 2".
  std::string axis_name(int axis) const;
};

// Whether the axes have no names: a row may be something else than a token.
bool is_nameless(const Layout& layout);

// Throws BadInput unless there is one axis name per dimension.
Layout layout_of(const Shape& shape, const std::vector<std::string>& axes,
                 std::vector<int64_t> chosen = {});

// The elements of a host tensor of the layout's shape (strided or not) as doubles, [rows, columns].
std::vector<double> to_matrix(const Tensor& t, const Layout& layout);
// Such a matrix of the reference becomes the oracle's, by a recorded delta: o - r, or o itself
// where r alone is no number (0: r and o are the same; an infinity: o is not known).
void add_delta(std::vector<double>& matrix, const Tensor& delta, const Layout& layout);
// Of every element of that matrix the row-major position in the layout's shape.
std::vector<int64_t> flat_positions(const Layout& layout);

// A bool tensor whose axes are among the layout's, broadcast over the missing ones and over extents
// of 1: 1 where true. All ones for an undefined tensor. Throws BadInput when the axes do not fit.
std::vector<uint8_t> to_mask(const Tensor& mask, const std::vector<std::string>& mask_axes,
                             const Layout& layout);

// A division of the elements into groups: (row, column) is in group row_part[row] +
// column_part[column].
struct Partition {
  std::string_view name;
  std::vector<int64_t> row_part;
  std::vector<int64_t> column_part;
  int64_t groups = 0;
};

// The group families of the gates: token, token x head, channel (one column), tile (8 rows of one
// batch entry x 8 columns; where some rows are missing, those that are here x 64 columns). A family
// whose axis is missing is left out.
std::vector<Partition> error_families(const Layout& layout);
// One group per index of an axis (number `axis` of layout.axes).
Partition along_axis(const Layout& layout, int axis);

// Words for an element (position in the [rows, columns] matrix) or a group of error_families():
// "batch 1, token 5, head 3, head_dim 7"; "token 8..15, channel 24..31". A batch of extent 1 is not
// named. Where the axes have no names, indices and sizes in their order:
// "[1, 3, 5, 7] of [2, 4, 9, 8]"; "[0, 8..15, 24..31] of [1, 20, 64]".
std::string element_name(const Layout& layout, int64_t position);
std::string group_name(const Layout& layout, const Partition& family, int64_t group);
// "batch 1, token 5"
std::string row_name(const Layout& layout, int64_t row);

}  // namespace plumb::harness
