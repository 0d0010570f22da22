// What the ops require of their arguments; every failure is a UsageError that names op and tensor.
#pragma once

#include <string_view>

#include "kernels/core/error.h"
#include "kernels/ops/ops.h"

namespace plumb {

inline void require_dtype(const char* op, std::string_view name, const Tensor& t, DType expected) {
  require(t.dtype() == expected, op, name, " is ", name_of(t.dtype()), ", expected ",
          name_of(expected));
}

inline void require_shape(const char* op, std::string_view name, const Tensor& t,
                          const Shape& expected) {
  require(t.shape() == expected, op, name, " has shape ", t.shape(), ", expected ", expected);
}

inline void require_rank(const char* op, std::string_view name, const Tensor& t, int rank) {
  require(t.defined(), op, name, " is missing");
  require(t.rank() == rank, op, name, " has shape ", t.shape(), ", expected rank ", rank);
}

// All defined tensors are floats of one dtype, on this device, with a contiguous last axis.
struct Named {
  std::string_view name;
  const Tensor& tensor;
};

inline void require_placed(const char* op, const Device& device,
                           std::initializer_list<Named> tensors) {
  for (const auto& [name, t] : tensors) {
    if (!t.defined()) continue;
    require(t.storage().owner == &device, op, name, " is not on device ", device.name());
    require(t.rank() >= 1 && (t.dim(-1) <= 1 || t.stride(-1) == 1), op, name,
            ": the last axis must be contiguous, shape ", t.shape());
  }
}

inline DType require_floats(const char* op, const Device& device,
                            std::initializer_list<Named> tensors) {
  require_placed(op, device, tensors);
  const DType storage = tensors.begin()->tensor.dtype();
  require(is_floating(storage), op, tensors.begin()->name, " is ", name_of(storage),
          ", expected a float dtype");
  for (const auto& [name, t] : tensors) {
    if (t.defined()) require_dtype(op, name, t, storage);
  }
  return storage;
}

inline void require_broadcast(const char* op, std::string_view name, int axis, int64_t extent,
                              int64_t full) {
  require(extent == full || extent == 1, op, name, " axis ", axis, " has extent ", extent,
          ", expected ", full, " or 1");
}

inline void require_mask(const char* op, const Device& device, const AttentionMask& mask,
                         int64_t batch, int64_t keys) {
  require(!mask.window || *mask.window > 0, op, "window is ", mask.window.value_or(0),
          ", must be positive");
  if (!mask.key_valid.defined()) return;
  require_placed(op, device, {{"key_valid", mask.key_valid}});
  require_dtype(op, "key_valid", mask.key_valid, DType::boolean);
  require_shape(op, "key_valid", mask.key_valid, {batch, keys});
}

inline void require_position(const char* op, const Device& device, const Position& position) {
  require(position.stored.defined() && position.now >= 0, op, "position ", position.now,
          " without its tensor");
  require_placed(op, device, {{"position", position.stored}});
  require_dtype(op, "position", position.stored, DType::i64);
  require_shape(op, "position", position.stored, {1});
}

inline void require_step(const char* op, const SsdInputs& in, const SsdParams& params) {
  require(in.x.dim(1) == 1, op, "the step form takes one token, x has ", in.x.dim(1));
  require(in.state.defined(), op, "the step form needs a state");
  require(!params.dt_min && !params.dt_max, op, "dt_min and dt_max are ", params.dt_min.value_or(0),
          " and ", params.dt_max.value_or(0), ", but only the chunk form clamps: leave them out");
}

// Room for `tokens` more; a window has twice its slots, and room for any number.
inline void require_slots(const char* op, int64_t slots, std::optional<int64_t> window,
                          int64_t past, int64_t tokens) {
  if (window) {
    require(*window > 0 && slots == 2 * *window, op, slots, " slots for a window of ", *window,
            ", expected twice as many");
  } else {
    require(past + tokens <= slots, op, "has room for ", slots, " tokens, ", past,
            " are stored and ", tokens, " more are to come");
  }
}

}  // namespace plumb
