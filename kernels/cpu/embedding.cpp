// Embedding lookup: out[..., :] = weight[ids[...], :], or R(weight * scale) where scale is not 1.
#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/error.h"

namespace plumb::cpu {

void CpuOps::do_embedding(const Tensor& out, const Tensor& ids, const Tensor& weight,
                          double scale) {
  const Format storage = format("embedding", weight);
  const RowOffsets id_at(ids, 0), to(out);
  const int64_t rows = weight.dim(0), channels = weight.dim(1);
  for (int64_t i = 0; i < id_at.count(); ++i) {
    const int64_t id = ids.data<int64_t>()[id_at[i]];
    require(id >= 0 && id < rows, "embedding", "id ", id, " at index ", i, " is outside [0, ", rows,
            "), the rows of weight");
  }
  if (out.numel() == 0) return;
  const float factor = static_cast<float>(scale);
  pool_.for_each(id_at.count(), 0.5 * static_cast<double>(channels), [&](int64_t i, int) {
    const int64_t id = ids.data<int64_t>()[id_at[i]];
    const char* source = storage.at(weight, id * weight.stride(0));
    char* target = storage.at(static_cast<char*>(out.raw()), to[i]);
    if (scale == 1) {
      std::memcpy(target, source, static_cast<size_t>(channels * storage.size()));
      return;
    }
    storage.rows().scale(target, source, factor, channels);
  });
}

}  // namespace plumb::cpu
