// Embedding lookup: out[..., :] = weight[ids[...], :], or R(weight * scale) where scale is not 1.
#include <cstring>

#include "kernels/cpu/cpu_ops.h"

namespace plumb::cpu {

void CpuOps::do_embedding(const Tensor& out, const Tensor& ids, const Tensor& weight,
                          double scale) {
  const Format storage = format("embedding", weight);
  const RowOffsets places(ids, 0), to(out);
  const int64_t rows = weight.dim(0), channels = weight.dim(1);
  require_ids(OpId::embedding, ids, rows);
  if (out.numel() == 0) return;
  const float factor = static_cast<float>(scale);
  const auto source_of = [&](int64_t i) {
    return storage.at(weight, id_at(ids, places[i]) * weight.stride(0));
  };
  pool_.for_each(places.count(), 0.5 * static_cast<double>(channels), [&](int64_t i, int) {
    const char* source = source_of(i);
    // Rows are scattered: the next one's first lines are prefetched while this one is copied.
    if (i + 1 < places.count()) {
      for (int line = 0; line < 8; ++line) __builtin_prefetch(source_of(i + 1) + 64 * line);
    }
    char* target = storage.at(static_cast<char*>(out.raw()), to[i]);
    if (scale == 1) {
      std::memcpy(target, source, static_cast<size_t>(channels * storage.size()));
      return;
    }
    storage.rows().scale(target, source, factor, channels);
  });
}

}  // namespace plumb::cpu
