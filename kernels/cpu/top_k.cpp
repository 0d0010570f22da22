// top_k: a row's elements as numbers in their order, and their places below them, partly sorted.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "kernels/core/error.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/plain_loops.h"
#include "kernels/ops/order.h"

namespace plumb::cpu {

void CpuOps::do_top_k(const Tensor& values, const Tensor& ids, const Tensor& x, bool largest) {
  if (plain::has(x.dtype())) {
    settle_for_simd();
    return plain::top_k(pool_, values, ids, x, largest);
  }
  const Format storage = format("top_k", x);
  const int64_t k = values.dim(-1), width = x.dim(-1);
  if (values.numel() == 0) return;
  require<Unsupported>(width <= INT32_MAX, "top_k", width,
                       " elements of a row, at most 2^31 - 1 are implemented");
  const RowOffsets from(x), to(values), places(ids);
  const auto size = static_cast<size_t>(storage.size());
  Arena::Scope scope(arena());
  const Tensor all = arena().take(DType::i64, {pool_.size(), width});
  pool_.for_each(from.count(), 4 * static_cast<double>(width), [&](int64_t row, int worker) {
    auto* ranks = all.data<uint64_t>() + worker * width;
    const char* in = storage.at(x, from[row]);
    for (int64_t i = 0; i < width; i += kPiece) {
      float line[kPiece];
      const int64_t n = std::min(kPiece, width - i);
      storage.widen(line, storage.at(in, i), n);
      for (int64_t j = 0; j < n; ++j) ranks[i + j] = order::rank(line[j], i + j, largest);
    }
    if (k < width) std::nth_element(ranks, ranks + k, ranks + width, std::greater<>());
    std::sort(ranks, ranks + k, std::greater<>());
    for (int64_t i = 0; i < k; ++i) {
      const int64_t place = order::place(ranks[i]);
      ids.data<int64_t>()[places[row] + i] = place;
      std::memcpy(storage.at(static_cast<char*>(values.raw()), to[row] + i), storage.at(in, place),
                  size);
    }
  });
}

}  // namespace plumb::cpu
