// Matrix products. Formulas and roundings: ops.h.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "kernels/core/error.h"
#include "kernels/core/shared_loop.h"
#include "kernels/oracle/float64_gemm.h"
#include "kernels/oracle/float64_products.h"
#include "kernels/oracle/oracle_ops.h"
#include "kernels/oracle/product_check.h"
#include "kernels/oracle/wider.h"

namespace plumb {

// Of all oracles of a process, which may work at once: who finds it taken computes alone.
struct SharedPool {
  explicit SharedPool(int threads) : pool(threads) {}
  const pid_t process = ::getpid();
  std::mutex taken;
  ThreadPool pool;
};

namespace {

constexpr double kSharedProducts = 1e6;  // fewer are not worth a thread
// A smaller product, or one of fewer rows, is computed sooner than its operands are copied to
// another device: each element of b is used once per row.
constexpr double kWorthMoving = 1e8;
constexpr int64_t kWorthRows = 64;

double products_of(const Float64Gemm& g) {
  return static_cast<double>(g.m * g.n) * static_cast<double>(g.k);
}

std::shared_ptr<SharedPool> shared_pool(int threads) {
  static std::mutex mutex;
  static std::weak_ptr<SharedPool> shared;
  const std::lock_guard lock(mutex);
  std::shared_ptr<SharedPool> out = shared.lock();
  if (!out || out->process != ::getpid()) {  // a fork has no threads
    shared = out = std::make_shared<SharedPool>(threads > 0 ? threads : usable_cores());
  }
  return out;
}

}  // namespace

void OracleOps::compute_here(const Float64Gemm& gemm) {
  const bool large = products_of(gemm) >= kSharedProducts;
  if (large && !pool_) pool_ = shared_pool(threads_);
  std::unique_lock<std::mutex> mine;
  if (large) mine = std::unique_lock(pool_->taken, std::try_to_lock);
  float64_gemm(gemm, mine ? &pool_->pool : nullptr);
}

OracleOps::Right::Right(const Tensor& t) : dtype(t.dtype()), data(t.raw()) {
  if (t.contiguous() && !has_kept(t)) return;
  copy = values_of(t);
  dtype = DType::f64;
  data = copy.data();
}

// Where the device lacks memory, or a kernel under test has broken it, the CPU computes the
// product: no verdict depends on which of them did. A wrong result is an error.
bool OracleOps::computed_elsewhere(const Float64Gemm& gemm) {
  if (!products_ || gemm.m < kWorthRows || products_of(gemm) < kWorthMoving) return false;
  if (products_->failed()) return false;
  try {
    products_->compute(gemm);
  } catch (const DeviceError& error) {
    products_->fail(error.what());
    return false;
  }
  return check_product(gemm, *products_);
}

std::vector<double> OracleOps::product(int64_t m, int64_t n, int64_t k,
                                       const std::vector<double>& a, const Right& b,
                                       bool transposed, const Noise& noise) {
  const auto elements = static_cast<size_t>(m * n);
  std::vector<double> out = shared_zeros<double>(elements);
  std::vector<double> magnitudes(noise.on() ? elements : 0);
  const Float64Gemm gemm{m,
                         n,
                         k,
                         a.data(),
                         b.data,
                         transposed ? 1 : n,
                         transposed ? k : 1,
                         out.data(),
                         noise.on() ? magnitudes.data() : nullptr,
                         b.dtype};
  if (!computed_elsewhere(gemm)) compute_here(gemm);
  if (noise.on()) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = noise.sum(out[i], magnitudes[i], static_cast<size_t>(k));
    }
  }
  return out;
}

void OracleOps::do_linear(const Tensor& out, const Tensor& x, const Tensor& weight,
                          const Tensor& bias) {
  const std::vector<double> a = values_of(x);
  const int64_t inner = weight.dim(1), columns = weight.dim(0);
  const int64_t rows = out.numel() / std::max<int64_t>(columns, 1);
  // Some programs round the product before they add the bias.
  const bool apart = bias.defined() && rounds_here(x.dtype(), "linear.product", false);
  const Noise noise(x.dtype());
  std::vector<double> values = product(rows, columns, inner, a, Right(weight), true, noise);
  if (bias.defined()) {
    const std::vector<double> b = values_of(bias);
    for (size_t i = 0; i < values.size(); ++i) {
      if (apart) values[i] = round_to(x.dtype(), values[i]);
      values[i] += b[i % b.size()];
    }
  }
  put(out, values, "linear");
}

namespace {

// What is behind the sums of one product.
void finish(const GemmCall& call, std::vector<double>& values, const std::vector<double>& c,
            const Noise& noise) {
  const GemmParams& p = call.params;
  const std::vector<double> bias =
      call.bias.defined() ? values_of(call.bias)
                          : std::vector<double>(static_cast<size_t>(call.columns()), 0.0);
  for (size_t i = 0; i < values.size(); ++i) {
    const double product = p.alpha * values[i], other = c.empty() ? 0 : p.beta * c[i];
    const double added = bias[i % bias.size()];
    double& y = values[i];
    y = noise.sum(product + other + added, std::fabs(product) + std::fabs(other) + std::fabs(added),
                  3);
    if (!p.function) continue;
    const double f = activate(y, *p.function);
    y = noise.function(f, error_scale(y, f, *p.function));
  }
}

// [columns, rows] as [rows, columns].
std::vector<double> transposed(const std::vector<double>& from, size_t rows, size_t columns) {
  std::vector<double> out(from.size());
  for (size_t i = 0; i < from.size(); ++i) out[i % rows * columns + i / rows] = from[i];
  return out;
}

}  // namespace

void OracleOps::do_gemm(const GemmCall& call) {
  if (wider::has(call.a.dtype())) return wider::gemm(call);
  const Rounding rounding(call.out.dtype(), call.row.name);
  const Noise noise(call.a.dtype());
  for (int64_t n = 0; n < call.a.dim(0); ++n) {
    for (int64_t h = 0; h < call.a.dim(1); ++h) {
      const auto at = [&](const Tensor& t, int64_t head) {
        return t.slice(0, n, n + 1).slice(1, head, head + 1);
      };
      std::vector<double> a = values_of(at(call.a, h));
      if (call.params.transpose_a) {
        a = transposed(a, static_cast<size_t>(call.rows()), static_cast<size_t>(call.inner()));
      }
      std::vector<double> values =
          product(call.rows(), call.columns(), call.inner(), a, Right(at(call.b, h / call.group())),
                  call.params.transpose_b, noise);
      const std::vector<double> c =
          call.c.defined() ? values_of(at(call.c, h)) : std::vector<double>();
      if (!call.is_plain()) finish(call, values, c, noise);
      for (double& value : values) value = rounding(value);
      move(at(call.out, h), values);
    }
  }
}

}  // namespace plumb
