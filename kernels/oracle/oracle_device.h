// The oracle: every op in float64, the in-house referee; large products in tiles on all cores. On
// f64 tensors nothing is rounded; on any other storage dtype values are rounded exactly where ops.h
// says R(), which makes it the rounded model of a contract.
#pragma once

#include <memory>

#include "kernels/core/device.h"

namespace plumb {

class Float64Products;

// `threads` of large products, 0: one per core; no result depends on them.
std::unique_ptr<Device> open_oracle_device(int threads);
// The largest are computed by `products`, where there is such a thing, and checked.
std::unique_ptr<Device> open_oracle_device(int threads, std::shared_ptr<Float64Products> products);

}  // namespace plumb
