// The gradient of an embedding's table: every row is the sum of the gradients of its tokens, in
// their order.
//
// d_out [..., C], d_weight [V, C]. The tokens are sorted by id first, which keeps their order. One
// unit of work is a row of the table.
#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/ops/ids.h"

namespace plumb::cpu {

void CpuOps::do_embedding_backward(const Tensor& d_weight, const Tensor& d_out, const Tensor& ids,
                                   double scale, int64_t padding) {
  const Format storage = format("embedding_backward", d_weight);
  const int64_t rows = d_weight.dim(0), channels = d_weight.dim(1);
  require_ids(OpId::embedding_backward, ids, rows);
  if (d_weight.numel() == 0) return;
  const RowOffsets places(ids, 0), from(d_out);
  const int64_t tokens = ids.numel();
  Arena::Scope scope(arena());
  const Tensor begins = arena().take(DType::i64, {rows + 1});  // of each row's tokens
  const Tensor sorted = arena().take(DType::i64, {std::max<int64_t>(1, tokens)});
  auto* begin = begins.data<int64_t>();
  auto* token = sorted.data<int64_t>();
  std::fill_n(begin, rows + 1, int64_t{0});
  for (int64_t i = 0; i < tokens; ++i) ++begin[id_at(ids, places[i])];
  for (int64_t v = 1; v <= rows; ++v) begin[v] += begin[v - 1];
  for (int64_t i = tokens - 1; i >= 0; --i) token[--begin[id_at(ids, places[i])]] = i;
  const double cost = 0.3 * static_cast<double>(channels) *
                      (1 + static_cast<double>(tokens) / static_cast<double>(rows));
  const auto factor = static_cast<float>(scale);
  pool_.for_each(rows, cost, [&](int64_t v, int) {
    char* to = storage.at(d_weight.data<char>(), v * d_weight.stride(0));
    const int64_t first = begin[v], end = v == padding ? first : begin[v + 1];
    if (first == end) {
      std::memset(to, 0, static_cast<size_t>(channels * storage.size()));
      return;
    }
    for (int64_t at = 0; at < channels; at += kPiece) {
      const int64_t n = std::min(kPiece, channels - at);
      float sum[kPiece], buffer[kPiece];
      storage.widen(sum, storage.at(d_out, from[token[first]] + at), n);
      for (int64_t i = first + 1; i < end; ++i) {
        const float* next = storage.read(storage.at(d_out, from[token[i]] + at), buffer, n);
        simd_->floats().add(sum, sum, next, n);
      }
      if (scale != 1) simd_->floats().scale(sum, sum, factor, n);
      storage.rows().narrow(storage.at(to, at), sum, n);
    }
  });
}

}  // namespace plumb::cpu
