// Ids in the host's memory: whole numbers of several dtypes that name elements along an axis.
#pragma once

#include <string>

#include "kernels/core/error.h"
#include "kernels/core/tensor.h"
#include "kernels/ops/op_id.h"

namespace plumb {

// "[gather] id 9 at place 2 of ids is outside [0, 7)".
inline std::string unknown_id(OpId op, int64_t id, int64_t place, int64_t extent) {
  return text('[', name_of(op), "] id ", id, " at place ", place, " of ids is outside [0, ", extent,
              ')');
}

// Element `offset` behind the tensor's first.
inline int64_t id_at(const Tensor& ids, int64_t offset) {
  switch (ids.dtype()) {
    case DType::i32: return ids.data<int32_t>()[offset];
    case DType::u32: return ids.data<uint32_t>()[offset];
    case DType::u8: return ids.data<uint8_t>()[offset];
    default: return ids.data<int64_t>()[offset];
  }
}

// Throws UsageError for the first that is outside [0, extent).
inline void require_ids(OpId op, const Tensor& ids, int64_t extent) {
  int64_t place = 0;
  for_each_row(ids, [&](int64_t row) {
    for (int64_t i = 0; i < ids.dim(-1); ++i, ++place) {
      const int64_t id = id_at(ids, row + i);
      if (id < 0 || id >= extent) throw UsageError(unknown_id(op, id, place, extent));
    }
  });
}

}  // namespace plumb
