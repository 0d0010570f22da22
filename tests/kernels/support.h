// Tensors between guard bytes, runs that show reads of unwritten memory, and comparisons whose
// limits come from unit roundoffs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/ops/laid_out.h"
#include "kernels/ops/ops.h"
#include "tests/kernels/test_devices.h"

namespace plumb {

using Values = std::vector<double>;

// A tensor on a device, surrounded by (and, where strided, interleaved with) bytes of a known
// pattern.
class Guarded : public LaidOut {
 public:
  using LaidOut::LaidOut;

  void set(const Values& values);
  Values get() const;
  void require_guards() const;  // no byte outside the elements has changed
};

Guarded holding(Device& device, DType dtype, const Shape& shape, const Values& values,
                Layout layout = Layout::contiguous);

// The same sequence for the same seed everywhere: normal values, rounded to the dtype.
Values random_values(DType dtype, int64_t count, uint32_t seed, double sigma = 1);

// Calls `op` twice, with outputs and scratch full of 0xff (NaN) and full of 0, requires equal bits
// and intact guards, and returns the outputs' values. `op` sets inputs itself where it works in
// place.
std::vector<Values> run(Device& device, const std::vector<Guarded*>& outputs,
                        const std::function<void()>& op);

// |y - exact| <= bound element by element; NaN and infinities must agree exactly.
void require_close(const Values& y, const Values& exact, const Values& bound);

// For 16-bit dtypes: the share of elements that differ from the model, which is exact but for the
// roundings at a contract's rounding points, stays within 3 sigma of q = 0.003 + 3 F_acc / u
// (verdicts: conformance), F_acc = sum over stages of 0.3 sqrt(terms) 2^-24. Nothing is required of
// wider dtypes.
void require_conforms(DType dtype, const Values& y, const Values& model,
                      const std::vector<int64_t>& stages);

inline constexpr double kU32 = 0x1p-24;
// u of the dtype plus that of the float32 arithmetic before the rounding.
double rounding_unit(DType dtype);
// Half the distance of subnormal numbers.
double smallest_step(DType dtype);

}  // namespace plumb
