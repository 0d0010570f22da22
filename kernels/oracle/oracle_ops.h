// What the ops of the oracle device share: elements as doubles, and scalar functions.
#pragma once

#include <limits>
#include <memory>
#include <vector>

#include "kernels/core/thread_pool.h"
#include "kernels/ops/device_ops.h"
#include "kernels/oracle/arithmetic.h"
#include "kernels/oracle/float64_gemm.h"

namespace plumb {

// The elements of a tensor in row-major order, as doubles: as they were kept, where a rounding was
// left out.
std::vector<double> values_of(const Tensor& t);
// Whether some may be kept, so that not all are what the tensor has.
bool has_kept(const Tensor& t);
inline size_t extent(const Tensor& t, int axis) { return static_cast<size_t>(t.dim(axis)); }
// Writes values in row-major order, each rounded to the tensor's dtype: a rounding point named as
// the op. Where the run leaves it out, later ops see the values as they are.
void put(const Tensor& t, const std::vector<double>& values, std::string_view name = "value");
// Writes values that are another tensor's: no rounding point.
void move(const Tensor& t, const std::vector<double>& values);

// f(x) as ops.h says.
double activate(double x, Activation function);
// The same composed of operations that are each rounded to storage, as some programs do.
double activate_in_parts(double x, Activation function, DType storage, bool rounds_exponential);
// What the error of f(x) in float32 is measured in: GELU's textbook form cancels, others do not.
double error_scale(double x, double y, Activation function);

// "Not allowed" in additive masks of the oracle.
inline constexpr double kLowest = std::numeric_limits<double>::lowest();
// The additive mask of one batch row and head in float64: 0, kLowest where not allowed, or an
// explicit mask's own value (whose lowest finite number means "not allowed" as well).
std::vector<double> additive_mask(const AttentionMask& mask, int64_t b, int64_t h, int64_t queries,
                                  int64_t keys);

class Float64Products;
struct SharedPool;

class OracleOps final : public DeviceOps {
 public:
  // products: of the largest; null: the CPU does all of them.
  OracleOps(Device& device, int threads, std::shared_ptr<Float64Products> products)
      : DeviceOps(device), threads_(threads), products_(std::move(products)) {}
  Contract contract(OpId op, DType storage) const override;
  bool overrides(OpId op) const override;
  bool takes_narrow_weights() const override { return true; }

 protected:
  PLUMB_DEVICE_OPS(, override)
  void do_sdpa(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
               const AttentionMask& mask, const SdpaParams& params) override;

 private:
  // The right operand of a product: [k, n] or, transposed, [n, k], in place or as a copy.
  struct Right {
    explicit Right(const Tensor& t);
    DType dtype;
    const void* data;
    std::vector<double> copy;
  };
  // The product, and of simulated kernels its errors.
  std::vector<double> product(int64_t m, int64_t n, int64_t k, const std::vector<double>& a,
                              const Right& b, bool transposed, const Noise& noise);
  void compute_here(const Float64Gemm& gemm);
  bool computed_elsewhere(const Float64Gemm& gemm);

  int threads_;
  std::shared_ptr<Float64Products> products_;
  std::shared_ptr<SharedPool> pool_;  // got for the first product that is worth it
};

}  // namespace plumb
