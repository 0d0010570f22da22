// Reductions along any axes, out = R(finish(steps over x)), kernels/ops/reductions.h.
//
// Sums are in float32, of which ops.h says R() at the end alone. Along the last axis, a unit of
// work is a result's part of kPart elements: element i of each piece of kPiece goes to lane i %
// kLanes, lanes are combined in halves, and parts in their order. Along other axes alone, a unit is
// kPiece neighbouring results, each of which takes its elements in their order. So no result
// depends on the number of threads, or on other results.
#include "kernels/ops/reductions.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/core/error.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/plain_loops.h"
#include "kernels/ops/map_call.h"
#include "kernels/ops/reduce_call.h"

namespace plumb::cpu {
namespace {

constexpr int64_t kPart = 1 << 16;

// The elements of a call as float32.
class Elements {
 public:
  Elements(const Simd& simd, const Tensor& x)
      : base_(static_cast<const char*>(x.raw())),
        size_(size_of(x.dtype())),
        of_bools_(x.dtype() == DType::boolean),
        format_(simd, of_bools_ ? DType::f32 : x.dtype()) {}

  // n <= kPiece of them, maybe in `line`.
  const float* read(int64_t offset, float* line, int64_t n) const {
    const char* from = base_ + offset * size_;
    if (!of_bools_) return format_.read(from, line, n);
    for (int64_t i = 0; i < n; ++i) line[i] = from[i] != 0;
    return line;
  }

 private:
  const char* base_;
  int64_t size_;
  bool of_bools_;
  Format format_;
};

struct Line {
  alignas(kTensorAlignment) std::array<float, kPiece> at;
};

// n results from their states.
void finish(const ReductionRow& f, const ReduceCall& call, const Simd& simd, int64_t to,
            float* values, const float* beside, int64_t n) {
  char* out = static_cast<char*>(call.out.raw()) + to * size_of(call.out.dtype());
  if (call.out.dtype() == DType::i64) {
    for (int64_t i = 0; i < n; ++i) {
      int32_t index = 0;
      std::memcpy(&index, &beside[i], sizeof index);
      reinterpret_cast<int64_t*>(out)[i] = index;
    }
    return;
  }
  f.finish(values, beside, static_cast<float>(call.count), n);
  if (call.out.dtype() == DType::boolean) {
    for (int64_t i = 0; i < n; ++i) out[i] = values[i] != 0;
  } else {
    Format(simd, call.out.dtype()).rows().narrow(out, values, n);
  }
}

}  // namespace

void CpuOps::reduce_columns(const ReduceCall& call, const ReductionRow& f) {
  const Elements x(*simd_, call.x);
  const Tensor kept = call.kept();
  const RowOffsets from(kept), to(call.out), elements(call.reduced());
  const int64_t width = call.out.dim(-1), pieces = (width + kPiece - 1) / kPiece;
  const double cost = 0.5 * static_cast<double>(call.count * std::min(width, kPiece));
  pool_.for_each(from.count() * pieces, cost, [&](int64_t unit, int) {
    const int64_t row = unit / pieces, begin = unit % pieces * kPiece;
    const int64_t n = std::min(kPiece, width - begin);
    Line line, values, beside;
    std::fill_n(values.at.begin(), n, f.start);
    std::fill_n(beside.at.begin(), n, 0.0f);
    for (int64_t i = 0; i < call.count; ++i) {
      const float* in = x.read(from[row] + begin + elements[i], line.at.data(), n);
      f.columns(values.at.data(), beside.at.data(), in, n, static_cast<int32_t>(i));
    }
    finish(f, call, *simd_, to[row] + begin, values.at.data(), beside.at.data(), n);
  });
}

void CpuOps::reduce_rows(const ReduceCall& call, const ReductionRow& f) {
  const Elements x(*simd_, call.x);
  const Tensor kept = call.kept(), reduced = call.reduced();
  const Block block = common_block(std::array{&reduced});
  const RowOffsets from(kept), to(call.out), rows(reduced, block.axes);
  const int64_t results = from.count(),
                parts = std::max<int64_t>(1, (call.count + kPart - 1) / kPart);
  struct Lanes {
    std::array<float, kLanes> values, beside;
  };
  const auto sum = [&](int64_t result, int64_t part, Lanes& lanes) {
    Line line, part_of_line;
    lanes.values.fill(f.start);
    lanes.beside.fill(0);
    // Of elements [i, i + n) those that are neighbours in memory; pieces do not end with them, for
    // else lanes would depend on how x is stored.
    const auto read = [&](int64_t i, int64_t n, float* to_line) {
      const int64_t column = i % block.length;
      n = std::min(n, block.length - column);
      return std::pair{x.read(from[result] + rows[i / block.length] + column, to_line, n), n};
    };
    const int64_t end = std::min(call.count, (part + 1) * kPart);
    for (int64_t i = part * kPart; i < end; i += kPiece) {
      const int64_t n = std::min(kPiece, end - i);
      auto [in, got] = read(i, n, part_of_line.at.data());
      if (got < n) {
        std::copy_n(in, got, line.at.begin());
        for (in = line.at.data(); got < n;) {
          const auto [more, count] = read(i + got, n - got, part_of_line.at.data());
          std::copy_n(more, count, line.at.begin() + got);
          got += count;
        }
      }
      f.row(lanes.values.data(), lanes.beside.data(), in, n, static_cast<int32_t>(i));
    }
    for (size_t half = kLanes / 2; half > 0; half /= 2) {
      f.combine(lanes.values.data(), lanes.beside.data(), &lanes.values[half], &lanes.beside[half],
                static_cast<int64_t>(half));
    }
  };
  const double cost = 0.5 * static_cast<double>(std::min(call.count, kPart));
  if (parts == 1) {
    return pool_.for_each(results, cost, [&](int64_t result, int) {
      Lanes lanes;
      sum(result, 0, lanes);
      finish(f, call, *simd_, to[result], lanes.values.data(), lanes.beside.data(), 1);
    });
  }
  Arena::Scope scope(arena());
  auto* states = arena().take(DType::f32, {results, parts, 2}).data<float>();
  pool_.for_each(results * parts, cost, [&](int64_t unit, int) {
    Lanes lanes;
    sum(unit / parts, unit % parts, lanes);
    states[2 * unit] = lanes.values[0];
    states[2 * unit + 1] = lanes.beside[0];
  });
  for (int64_t result = 0; result < results; ++result) {
    float* first = states + 2 * result * parts;
    for (int64_t part = 1; part < parts; ++part) {
      f.combine(first, first + 1, first + 2 * part, first + 2 * part + 1, 1);
    }
    finish(f, call, *simd_, to[result], first, first + 1, 1);
  }
}

void CpuOps::do_reduce(const ReduceCall& call) {
  const bool of_bools = call.x.dtype() == DType::boolean && takes_bools(call.row.id);
  if (plain::has(call.x.dtype()) && !of_bools) {
    settle_for_simd();
    return plain::reduce(pool_, call);
  }
  if (call.x.dtype() != DType::boolean) require_storage(call.row.name, call.x);
  settle_for_simd();
  if (call.out.numel() == 0) return;
  require<Unsupported>(call.count <= INT32_MAX, call.row.name, call.count,
                       " elements of one result, at most 2^31 - 1 are implemented");
  const ReductionRow& f = simd_->reductions[static_cast<size_t>(call.reduction())];
  if (call.axes.has(call.x.rank() - 1)) reduce_rows(call, f);
  else reduce_columns(call, f);
}

}  // namespace plumb::cpu
