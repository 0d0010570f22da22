// Context: what a block needs besides its operands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/ops/ops.h"

namespace plumb::blocks {

// Sees what the parts of a model or block compute while they do, by the names that recordings give
// them.
class Observer {
 public:
  virtual ~Observer() = default;
  // Output `output` of `checkpoint`, a checkpoint's id without its call:
  // "model.layers.2.self_attn:kv_cache", "keys_after". Ops queued so far have the value in `value`,
  // later ones may overwrite it. It may be strided.
  virtual void probe(const std::string& checkpoint, std::string_view output,
                     const Tensor& value) = 0;
};

struct Context {
  Ops& ops;
  Observer* observer = nullptr;
  std::string path = {};  // of the part that runs; kept only for an observer

  Tensor take(DType dtype, const Shape& shape) { return ops.arena().take(dtype, shape); }

  // Shows an output of a part of the running one: "q_proj", ":sdpa", or "" for itself. Free where
  // there is no observer.
  void probe(std::string_view part, std::string_view output, const Tensor& value) const {
    if (observer) observer->probe(below(part), output, value);
  }
  std::string below(std::string_view part) const;
};

// As long as it lives, what runs is a part of what ran: Part(ctx, "self_attn").
class Part {
 public:
  Part(Context& ctx, std::string_view name, std::optional<int64_t> index = std::nullopt);
  ~Part() { ctx_.path.resize(outer_); }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

 private:
  Context& ctx_;
  const size_t outer_;
};

}  // namespace plumb::blocks
