// Tensor maps: what Hopper's copy engine needs to know of a tensor.
#pragma once

#include <cuda.h>

#include <optional>

#include "kernels/core/tensor.h"

namespace plumb::cuda {

// The map of a 16-bit tensor of rank 4, whose axes 1 and 2 are heads and tokens, or tokens and
// heads (token_axis 2 or 1). Copies have coordinates (column, token, head, batch) and move boxes of
// `tokens` rows by 64 columns, in shared memory with the 128-byte swizzle; tokens beyond the last
// read as zeros and are not written. Nothing when the copy engine cannot take the tensor: a start
// or stride that is no multiple of 16 bytes, an axis repeated (stride 0), too large, or a driver
// without such maps. Nothing is allocated; the map holds the tensor's address.
std::optional<CUtensorMap> make_tensor_map(const Tensor& t, int token_axis, int tokens);

// The same of a tensor [batch, head, token, column], whose last extent is a multiple of 64, for
// boxes of whole rows: panels of 64 columns, one after the other. Coordinates: (0, token, 0, head,
// batch).
std::optional<CUtensorMap> make_row_map(const Tensor& t, int tokens);

}  // namespace plumb::cuda
