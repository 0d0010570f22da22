// What the ops of the oracle device share: elements as doubles, and scalar functions.
#pragma once

#include <limits>
#include <memory>
#include <vector>

#include "kernels/device_ops.h"
#include "kernels/oracle/arithmetic.h"
#include "kernels/thread_pool.h"

namespace plumb {

// The elements of a tensor in row-major order, as doubles: as they were kept, where a rounding was
// left out.
std::vector<double> values_of(const Tensor& t);
inline size_t extent(const Tensor& t, int axis) { return static_cast<size_t>(t.dim(axis)); }
// Writes values in row-major order, each rounded to the tensor's dtype: a rounding point named as
// the op. Where the run leaves it out, later ops see the values as they are.
void put(const Tensor& t, const std::vector<double>& values, std::string_view name = "value");
// Writes values that are another tensor's: no rounding point.
void move(const Tensor& t, const std::vector<double>& values);

// f(x) as ops.h says.
double activate(double x, Activation function);
// The same composed of operations that are each rounded to storage, as some programs do.
double activate_in_parts(double x, Activation function, DType storage);
// What the error of f(x) in float32 is measured in: GELU's textbook form cancels, others do not.
double error_scale(double x, double y, Activation function);

// What stands for "not allowed" in additive masks of the oracle.
inline constexpr double kLowest = std::numeric_limits<double>::lowest();
// The additive mask of one batch row and head in float64: 0, kLowest where not allowed, or an
// explicit mask's own value (whose lowest finite number means "not allowed" as well).
std::vector<double> additive_mask(const AttentionMask& mask, int64_t b, int64_t h, int64_t queries,
                                  int64_t keys);

struct SharedPool;

class OracleOps final : public DeviceOps {
 public:
  OracleOps(Device& device, int threads) : DeviceOps(device), threads_(threads) {}
  Contract contract(OpId op, DType storage) const override;
  bool overrides(OpId op) const override;

 protected:
  PLUMB_DEVICE_OPS(, override)
  void do_gated_activation(const Tensor& out, const Tensor& gate, const Tensor& up,
                           Activation function) override;
  void do_softcap(const Tensor& out, const Tensor& x, double cap) override;
  void do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
               const AttentionMask& mask, const SdpaParams& params) override;

 private:
  // The product, and of simulated kernels its errors.
  std::vector<double> product(int64_t m, int64_t n, int64_t k, const std::vector<double>& a,
                              const double* b, int64_t b_row, int64_t b_column, const Noise& noise);

  int threads_;
  std::shared_ptr<SharedPool> pool_;  // got for the first product that is worth it
};

}  // namespace plumb
