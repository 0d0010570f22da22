// One call of an op that makes elements of their places.
#pragma once

#include "kernels/ops/counter.h"
#include "kernels/ops/op_params.h"
#include "kernels/ops/table.h"

namespace plumb {

enum class Generator { line, uniform, normal };

struct GenerateCall {
  const OpRow& row;
  Tensor out;
  Generator generator = Generator::line;
  double start = 0, step = 0;
  RandomStream random = {};
};

// What a kernel needs of it.
struct Generated {
  Generator generator;
  double start, step;
  int64_t seed, offset;
  int bits;  // of a uniform number

  explicit Generated(const GenerateCall& call)
      : generator(call.generator),
        start(call.start),
        step(call.step),
        seed(call.random.seed),
        offset(call.random.offset),
        bits(info(call.out.dtype()).significand_bits) {}

  // Element i, before it is rounded.
  template <class Root>
  constexpr double at(int64_t i, Root root) const {
    switch (generator) {
      case Generator::uniform: return counter::uniform(seed, offset + i, bits);
      case Generator::normal: return counter::normal(seed, offset + i, root);
      default: return step == 0 ? start : start + static_cast<double>(i) * step;
    }
  }
};

}  // namespace plumb
