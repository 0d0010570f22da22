// Matrix products. Formulas and roundings: ops.h.
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "kernels/oracle/float64_gemm.h"
#include "kernels/oracle/oracle_ops.h"

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

std::vector<double> OracleOps::product(int64_t m, int64_t n, int64_t k,
                                       const std::vector<double>& a, const double* b, int64_t b_row,
                                       int64_t b_column, const Noise& noise) {
  std::vector<double> out(static_cast<size_t>(m * n)), magnitudes(noise.on() ? out.size() : 0);
  const bool large = static_cast<double>(m * n) * static_cast<double>(k) >= kSharedProducts;
  if (large && !pool_) pool_ = shared_pool(threads_);
  std::unique_lock<std::mutex> mine;
  if (large) mine = std::unique_lock(pool_->taken, std::try_to_lock);
  float64_gemm(
      {m, n, k, a.data(), b, b_row, b_column, out.data(), noise.on() ? magnitudes.data() : nullptr},
      mine ? &pool_->pool : nullptr);
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
  const bool plain = weight.dtype() == DType::f64 && weight.contiguous();
  const std::vector<double> copy = plain ? std::vector<double>() : values_of(weight);
  const double* w = plain ? weight.data<double>() : copy.data();
  const int64_t inner = weight.dim(1), columns = weight.dim(0);
  const int64_t rows = out.numel() / std::max<int64_t>(columns, 1);
  // Some programs round the product before they add the bias.
  const bool apart = bias.defined() && rounds_here(x.dtype(), "linear.product", false);
  const Noise noise(x.dtype());
  std::vector<double> values = product(rows, columns, inner, a, w, 1, inner, noise);
  if (bias.defined()) {
    const std::vector<double> b = values_of(bias);
    for (size_t i = 0; i < values.size(); ++i) {
      if (apart) values[i] = round_to(x.dtype(), values[i]);
      values[i] += b[i % b.size()];
    }
  }
  put(out, values, "linear");
}

void OracleOps::do_matmul(const Tensor& out, const Tensor& a, const Tensor& b, bool transpose_b) {
  const int64_t rows = a.dim(2), inner = a.dim(3), columns = out.dim(3);
  const int64_t group = a.dim(1) / b.dim(1);
  const Rounding rounding(out.dtype(), "matmul");
  const Noise noise(a.dtype());
  for (int64_t n = 0; n < a.dim(0); ++n) {
    for (int64_t h = 0; h < a.dim(1); ++h) {
      const auto at = [&](const Tensor& t, int64_t head) {
        return t.slice(0, n, n + 1).slice(1, head, head + 1);
      };
      const std::vector<double> left = values_of(at(a, h)), right = values_of(at(b, h / group));
      std::vector<double> values =
          product(rows, columns, inner, left, right.data(), transpose_b ? 1 : columns,
                  transpose_b ? inner : 1, noise);
      for (double& value : values) value = rounding(value);
      move(at(out, h), values);
    }
  }
}

}  // namespace plumb
