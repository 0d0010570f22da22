// What layout.cpp and layout_words.cpp have in common.
#pragma once

#include <vector>

#include "harness/recording/layout.h"

namespace plumb::harness {

struct Range {
  int64_t begin, end;
};

inline int64_t extent(const Layout& layout, int axis) { return axis < 0 ? 1 : layout.shape[axis]; }

// The axis "head" or "kv_head"; -1: none.
int head_axis(const Layout& layout);

// The tile of each token of one batch entry, counted without tokens that have none.
struct TileRows {
  std::vector<int64_t> of_token;
  std::vector<Range> tokens;  // per tile: indices in the whole output
};

TileRows tile_rows(const Layout& layout);
int64_t tile_columns(const Layout& layout);
int64_t tiles_across(const Layout& layout);

}  // namespace plumb::harness
