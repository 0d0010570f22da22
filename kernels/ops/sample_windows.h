// What calls of convolutions, pools and group norms are made of (kernels/ops/samples.h): windows,
// and extents that they fit into.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "kernels/ops/op_params.h"
#include "kernels/ops/table.h"

namespace plumb {

struct WindowSample {
  std::map<char, int64_t> extents;    // of the row's letters
  std::vector<int64_t> behind_batch;  // of group norm, whose other axes have no letters
  ConvParams conv;
  PoolParams pool;
  int64_t groups = 1;  // of group norm
};

// Of an op without windows it is empty. several: else all extents are 1. choose(n): one of n.
WindowSample sample_windows(const OpRow& row, bool several, const std::function<int(int)>& choose);

}  // namespace plumb
