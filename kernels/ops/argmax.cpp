// argmax: checks, and how a device without its own way does it.
#include "kernels/ops/argmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/ops/device_ops.h"
#include "kernels/ops/op_checks.h"

namespace plumb {
namespace {

constexpr int64_t kMostPlaces = int64_t{1} << 31;

}  // namespace

int64_t argmax(DType dtype, const void* x, int64_t count) {
  int64_t best = 0;
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < count; ++i) {
    const double value = load(dtype, static_cast<const char*>(x) + i * size_of(dtype));
    if (std::isnan(value)) return -1 - i;
    if (value <= largest) continue;
    largest = value;
    best = i;
  }
  return best;
}

void Ops::choose_greedily(const Tensor& ids, const Tensor& log, const Tensor& logits,
                          const Position& past) {
  const char* op = "argmax";
  require_floats(op, device_, {{"logits", logits}});
  require_placed(op, device_, {{"ids", ids}, {"log", log}});
  require_rank(op, "logits", logits, 3);
  require_rank(op, "log", log, 2);
  const int64_t batch = logits.dim(0);
  require(logits.dim(1) == 1 && logits.dim(2) > 0 && logits.dim(2) < kMostPlaces, op,
          "logits have shape ", logits.shape(), ", expected [B, 1, V] with V from 1 to ",
          kMostPlaces - 1);
  require_dtype(op, "ids", ids, DType::i64);
  require_dtype(op, "log", log, DType::i64);
  require_shape(op, "ids", ids, {batch, 1});
  require(log.dim(0) > 0 && log.dim(1) == batch, op, "log has shape ", log.shape(),
          ", expected [N, ", batch, "]");
  require(logits.contiguous() && ids.contiguous() && log.contiguous(), op,
          "logits, ids and log must be dense");
  require_position(op, device_, past);
  if (DeviceOps* device = own()) return device->do_argmax(ids, log, logits, past);
  compose_argmax(ids, log, logits, past);
}

void Ops::compose_argmax(const Tensor& ids, const Tensor& log, const Tensor& logits,
                         const Position& past) {
  const Tensor host = host_tensor(logits.dtype(), logits.shape());
  device_.download(host.raw(), logits);
  device_.synchronize();
  const int64_t batch = logits.dim(0), count = logits.dim(2);
  std::vector<int64_t> chosen, logged;
  for (int64_t b = 0; b < batch; ++b) {
    const char* row = host.data<char>() + b * count * size_of(host.dtype());
    logged.push_back(plumb::argmax(host.dtype(), row, count));
    chosen.push_back(std::max<int64_t>(logged.back(), 0));
  }
  device_.upload(ids, chosen.data());
  const int64_t at = past.now % log.dim(0);
  device_.upload(log.slice(0, at, at + 1), logged.data());
}

}  // namespace plumb
