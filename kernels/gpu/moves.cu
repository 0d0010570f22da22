// Lookups, moves and generated elements: a thread per element of the output, neighbours along its
// rows; or per 16 bytes, where rows of the output are rows of x and alignment allows it.
#include "kernels/gpu/gpu_ops.h"
#include "kernels/gpu/ids.h"
#include "kernels/gpu/numbers.h"
#include "kernels/gpu/rows.h"

namespace plumb::PLUMB_GPU_VENDOR {
namespace {

constexpr int kThreads = 256;
using Block16 = Vector<uint32_t, 4>;

struct MoveAxis {
  int64_t stride, first, extent;  // of x
  int step;
  bool wraps;
};

template <class T>
struct MoveOperands {
  T* out;
  const T* x;
  Axes8 extents;
  Strides to;
  MoveAxis axes[kMaxRank];
  int id_axis;  // -1: no ids
  bool id_for_each;
  Ids ids;
  Strides id_strides;
  T outside;
  int64_t total;
  OpId op;
  IdError* error;
};

template <class T>
__global__ void __launch_bounds__(kThreads) move_elements(MoveOperands<T> p) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  int64_t to = 0, from = 0, id_at = 0, place = i;
  bool inside = true;
  p.extents.each(i, [&](int axis, int64_t c) {
    to += c * p.to.at[axis];
    id_at += c * p.id_strides.at[axis];
    if (axis == p.id_axis) {
      if (!p.id_for_each) place = c;
      return;
    }
    const MoveAxis& of = p.axes[axis];
    int64_t at = of.first + of.step * c;
    if (of.wraps) at = at < 0 ? at + of.extent : at >= of.extent ? at - of.extent : at;
    inside = inside && at >= 0 && at < of.extent;
    from += at * of.stride;
  });
  if (p.id_axis >= 0) {
    const int64_t id = p.ids.at(id_at), extent = p.axes[p.id_axis].extent;
    inside = id >= 0 && id < extent;
    if (!inside) note_unknown(p.error, p.op, id, place, extent);
    from += id * p.axes[p.id_axis].stride;
  }
  p.out[to] = inside ? p.x[from] : p.outside;
}

// An element as so many of T are: a view whose rows are shorter.
template <class T>
void move_as(GpuOps& ops, const MoveCall& call, const T& outside, int64_t elements,
             IdError* error) {
  const int last = call.out.rank() - 1;
  Shape shape = call.out.shape();
  shape.set(last, shape[last] / elements);
  MoveOperands<T> p{call.out.data<T>(),
                    call.x.data<T>(),
                    Axes8(shape),
                    Strides(call.out),
                    {},
                    call.id_axis,
                    call.has_id_for_each(),
                    {},
                    Strides(call.out),
                    outside,
                    divisible(call.row.name, shape.numel()),
                    call.row.id,
                    error};
  for (int i = 0; i <= last; ++i) {
    const MoveCall::Axis& axis = call.axis(i);
    const bool shorter = axis.of == last;
    p.axes[i] = {call.x.stride(axis.of) / (shorter ? 1 : elements), axis.first,
                 call.x.dim(axis.of) / (shorter ? elements : 1), axis.step, axis.wraps};
    if (i < last) p.to.at[i] /= elements;
    p.id_strides.at[i] = call.id_axis >= 0 ? call.ids.stride(i) : 0;
  }
  if (call.id_axis >= 0) p.ids = Ids(call.ids);
  launch_overlapped<move_elements<T>>(call.row.name, {grid_for(p.total, kThreads)}, {kThreads}, 0,
                                      ops.stream(), p);
}

struct GenerateOperands {
  Generated generated;
  void* out;
  DType dtype;
  Rows rows;
  Divisor width;
  int64_t total;
};

__global__ void __launch_bounds__(kThreads) generate_elements(GenerateOperands p) {
  wait_for_previous_kernel();
  const int64_t i = int64_t{kThreads} * block_index().x + thread_index().x;
  if (i >= p.total) return;
  const Division at = divide(i, p.width);
  const double x = p.generated.at(i, [](double square) { return sqrt(square); });
  store_number(p.dtype, p.out, p.rows.offset(at.quotient) + at.remainder, {false, 0, x});
}

}  // namespace

void GpuOps::do_move(const MoveCall& call) {
  if (call.out.numel() == 0) return;
  const auto go = [&]<class T>(T) {
    T outside{};
    plumb::store_number(call.out.dtype(), &outside, {false, 0, call.value});
    constexpr auto kElements = static_cast<int64_t>(sizeof(Block16) / sizeof(T));
    const bool aligned = rows_are_vectors(call.out) && rows_are_vectors(call.x);
    if (call.moves_rows() && aligned && choose("vectors")) {
      Block16 repeated;
      for (int64_t i = 0; i < kElements; ++i) {
        std::memcpy(reinterpret_cast<char*>(&repeated) + i * static_cast<int64_t>(sizeof(T)),
                    &outside, sizeof(T));
      }
      return move_as<Block16>(*this, call, repeated, kElements, id_error());
    }
    settle_for("scalars");
    move_as<T>(*this, call, outside, 1, id_error());
  };
  switch (size_of(call.out.dtype())) {
    case 1: return go(uint8_t{});
    case 2: return go(uint16_t{});
    case 4: return go(uint32_t{});
    default: return go(uint64_t{});
  }
}

void GpuOps::do_generate(const GenerateCall& call) {
  if (call.out.numel() == 0) return;
  const char* op = call.row.name;
  const GenerateOperands p{Generated(call),           call.out.raw(),
                           call.out.dtype(),          rows_of(op, call.out),
                           Divisor(call.out.dim(-1)), divisible(op, call.out.numel())};
  launch_overlapped<generate_elements>(op, {grid_for(p.total, kThreads)}, {kThreads}, 0, stream(),
                                       p);
}

}  // namespace plumb::PLUMB_GPU_VENDOR
