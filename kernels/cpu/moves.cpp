// Lookups, moves, sums by ids and generated elements. A unit of work is a row, or a piece of
// columns of sums.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/core/error.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/plain_loops.h"
#include "kernels/ops/casts.h"

namespace plumb::cpu {
namespace {

// Calls f with a number as wide as the elements: their bits are moved, not computed with.
template <class F>
void with_width(DType dtype, F f) {
  switch (size_of(dtype)) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    default: return f(uint64_t{});
  }
}

Shape strides_of(const Tensor& t) {
  Shape out = t.shape();
  for (int i = 0; i < t.rank(); ++i) out.set(i, t.stride(i));
  return out;
}

}  // namespace

void CpuOps::do_move(const MoveCall& call) {
  if (call.id_axis >= 0) require_ids(call.row.id, call.given, call.x.dim(call.id_axis));
  if (call.out.numel() == 0) return;
  settle_for("scalars");
  const Moved moved(call, strides_of(call.x));
  const RowOffsets to(call.out);
  const int64_t width = call.out.dim(-1);
  with_width(call.out.dtype(), [&]<class T>(T) {
    T outside{};
    store_number(call.out.dtype(), &outside, {false, 0, call.value});
    const T* x = call.x.data<T>();
    T* out = call.out.data<T>();
    if (call.moves_rows()) {
      const double cost = 0.1 * static_cast<double>(width) * sizeof(T);
      return pool_.for_each(to.count(), cost, [&](int64_t row, int) {
        const int64_t from = moved.start(row);
        if (from < 0) std::fill_n(out + to[row], width, outside);
        else std::memcpy(out + to[row], x + from, static_cast<size_t>(width) * sizeof(T));
      });
    }
    pool_.for_each(to.count(), 2 * static_cast<double>(width), [&](int64_t row, int) {
      T* line = out + to[row];
      moved.row(row, [&](int64_t c, int64_t from) { line[c] = from < 0 ? outside : x[from]; });
    });
  });
}

// Sums of a piece of columns, for all places along the axis, are kept as float32 while ids are gone
// through in order.
void CpuOps::do_index_add(const IndexAddCall& call) {
  if (plain::has(call.x.dtype())) {
    settle_for_simd();
    require_ids(call.op(), call.given, call.x.dim(call.axis));
    return plain::index_add(call);
  }
  const Format storage = format(call.row.name, call.x);
  const int64_t places = call.x.dim(call.axis), terms = call.source.dim(call.axis);
  require_ids(call.op(), call.given, places);
  if (call.out.raw() != call.x.raw()) {  // what has no ids, too
    const RowOffsets to(call.out), from(call.x);
    const auto bytes = static_cast<size_t>(call.x.dim(-1) * storage.size());
    pool_.for_each(call.x.numel() > 0 ? from.count() : 0, 0.1 * static_cast<double>(bytes),
                   [&](int64_t row, int) {
                     std::memcpy(storage.at(static_cast<char*>(call.out.raw()), to[row]),
                                 storage.at(call.x, from[row]), bytes);
                   });
  }
  if (call.source.numel() == 0) return;
  constexpr int64_t kMostSums = 1 << 20;
  const bool along_rows = call.axis == call.x.rank() - 1;
  const Tensor source = call.source.slice(call.axis, 0, 1), ids = call.ids.slice(call.axis, 0, 1);
  Tensor out = call.out.slice(call.axis, 0, 1);
  for (int i = 0; i < out.rank(); ++i) out = out.slice(i, 0, source.dim(i));
  const int64_t width = source.dim(-1);
  const int64_t piece = std::clamp<int64_t>(kMostSums / places, 1, std::min(width, kPiece));
  const int64_t pieces = (width + piece - 1) / piece;
  const RowOffsets from(source), id_row(ids), to(out);
  const int64_t out_step = call.out.stride(call.axis), id_step = call.ids.stride(call.axis),
                source_step = call.source.stride(call.axis), id_column = call.ids.stride(-1);
  Arena::Scope scope(arena());
  const Tensor all = arena().take(DType::f32, {pool_.size(), places * piece});
  const auto add = [&](int64_t unit, int worker) {
    const int64_t row = unit / pieces, begin = unit % pieces * piece;
    const int64_t n = std::min(piece, width - begin);
    float* sums = all.data<float>() + worker * places * piece;
    char* target = storage.at(static_cast<char*>(call.out.raw()), to[row] + begin);
    const char* added = storage.at(call.source, from[row] + begin);
    const int64_t first_id = id_row[row] + begin * (along_rows ? 0 : id_column);
    float line[kPiece];
    if (along_rows) {
      for (int64_t i = 0; i < places; i += kPiece) {
        storage.widen(sums + i, storage.at(target, i), std::min(kPiece, places - i));
      }
      for (int64_t i = 0; i < terms; i += kPiece) {
        const int64_t count = std::min(kPiece, terms - i);
        storage.widen(line, storage.at(added, i), count);
        for (int64_t j = 0; j < count; ++j) {
          sums[id_at(call.ids, first_id + (i + j) * id_step)] += line[j];
        }
      }
      for (int64_t i = 0; i < places; i += kPiece) {
        storage.write(storage.at(target, i), sums + i, std::min(kPiece, places - i));
      }
      return;
    }
    for (int64_t i = 0; i < places; ++i) {
      storage.widen(sums + i * n, storage.at(target, i * out_step), n);
    }
    for (int64_t i = 0; i < terms; ++i) {
      storage.widen(line, storage.at(added, i * source_step), n);
      for (int64_t c = 0; c < n; ++c) {
        sums[id_at(call.ids, first_id + i * id_step + c * id_column) * n + c] += line[c];
      }
    }
    for (int64_t i = 0; i < places; ++i) {
      storage.write(storage.at(target, i * out_step), sums + i * n, n);
    }
  };
  pool_.for_each(from.count() * pieces, static_cast<double>((places + terms) * piece), add);
}

void CpuOps::do_generate(const GenerateCall& call) {
  if (call.out.numel() == 0) return;
  settle_for("scalars");
  const Generated generated(call);
  const DType dtype = call.out.dtype();
  const int64_t width = call.out.dim(-1), size = size_of(dtype);
  const RowOffsets to(call.out);
  pool_.for_each(to.count(), 20 * static_cast<double>(width), [&](int64_t row, int) {
    char* line = call.out.data<char>() + to[row] * size;
    for (int64_t c = 0; c < width; ++c) {
      const double x =
          generated.at(row * width + c, [](double square) { return std::sqrt(square); });
      store_number(dtype, line + c * size, {false, 0, x});
    }
  });
}

}  // namespace plumb::cpu
