#include "harness/bench/operands.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr int64_t kMostSets = 4096;
constexpr int64_t kPool = 1048573;  // a prime: no row or column length divides it

const std::vector<double>& normal_pool() {
  static const std::vector<double> pool = [] {
    std::mt19937_64 generator(1);
    std::normal_distribution<double> normal;
    std::vector<double> out(kPool);
    for (double& x : out) x = normal(generator);
    return out;
  }();
  return pool;
}

// The pool as elements of one operand; all that such an operand ever holds.
Tensor pool_of(const BenchOperand& operand, int64_t elements) {
  const Tensor out = host_tensor(operand.dtype, {std::min(kPool, elements)});
  for (int64_t i = 0; i < out.numel(); ++i) {
    store(operand.dtype, out.data<char>() + i * size_of(operand.dtype),
          operand.fill.mean + operand.fill.deviation * normal_pool()[static_cast<size_t>(i)]);
  }
  return out;
}

// The pool from `start` on, again and again.
void fill_normal(const Tensor& host, const Tensor& pool, int64_t start) {
  const int64_t size = size_of(host.dtype()), n = host.numel(), period = pool.numel();
  for (int64_t done = 0, at = start % period; done < n; at = 0) {
    const int64_t more = std::min(period - at, n - done);
    std::memcpy(host.data<char>() + done * size, pool.data<char>() + at * size,
                static_cast<size_t>(more * size));
    done += more;
  }
}

void fill_integers(const Tensor& host, const Fill& fill, int64_t start) {
  std::mt19937_64 generator(static_cast<uint64_t>(start));
  for (int64_t i = 0; i < host.numel(); ++i) {
    host.data<int64_t>()[i] =
        fill.kind == Fill::positions
            ? i
            : static_cast<int64_t>(generator() % static_cast<uint64_t>(fill.limit));
  }
}

// True or false, each as often.
void fill_flags(const Tensor& host, int64_t start) {
  std::mt19937_64 generator(static_cast<uint64_t>(start));
  for (int64_t i = 0; i < host.numel(); ++i) host.data<bool>()[i] = generator() % 2 == 0;
}

// theta^(-i/n), theta 10000
void fill_frequencies(const Tensor& host) {
  const auto n = static_cast<double>(host.numel());
  for (int64_t i = 0; i < host.numel(); ++i) {
    host.data<float>()[i] = static_cast<float>(std::pow(1e4, -static_cast<double>(i) / n));
  }
}

Shape with_sets(int64_t count, const Shape& shape) {
  std::vector<int64_t> extents = {count};
  for (int axis = 0; axis < shape.rank(); ++axis) extents.push_back(shape[axis]);
  return Shape(extents);
}

}  // namespace

OperandSets::OperandSets(Device& device, const std::vector<BenchOperand>& operands, double bytes)
    : operands_(operands) {
  double one = 0;
  for (const BenchOperand& operand : operands) {
    if (!operand.shared) one += static_cast<double>(operand.shape.numel() * size_of(operand.dtype));
  }
  count_ = std::clamp(static_cast<int64_t>(std::ceil(bytes / std::max(one, 1.0))), int64_t{1},
                      kMostSets);
  int64_t start = 0;
  for (const BenchOperand& operand : operands) {
    const int64_t copies = operand.shared ? 1 : count_;
    const Shape shape = with_sets(copies, operand.shape);
    if (operand.fill.kind == Fill::output) {
      Guarded& output =
          outputs_.emplace_back(operand.name, Guarded(device, operand.dtype, shape)).second;
      output.poison(0xff);  // NaN: what a kernel leaves out shows
      slabs_.push_back(output.tensor());
      continue;
    }
    slabs_.push_back(device.allocate(operand.dtype, shape));
    const bool normal = operand.fill.kind == Fill::normal;
    const Tensor host = host_tensor(operand.dtype, operand.shape);
    const Tensor pool = normal ? pool_of(operand, copies * host.numel()) : Tensor();
    for (int64_t i = 0; i < copies; ++i) {
      start += 7919;
      if (normal) fill_normal(host, pool, start);
      else if (operand.fill.kind == Fill::frequencies) fill_frequencies(host);
      else if (operand.fill.kind == Fill::flags) fill_flags(host, start);
      else fill_integers(host, operand.fill, start);
      device.upload(slabs_.back().slice(0, i, i + 1), host.raw());
    }
  }
}

std::string OperandSets::damage() const {
  for (const auto& [name, output] : outputs_) {
    const std::string where = output.damage();
    if (!where.empty()) return text("wrote out of bounds: ", where, " of output \"", name, '"');
  }
  return {};
}

BenchOperands OperandSets::set(int64_t index) const {
  BenchOperands out;
  for (size_t i = 0; i < operands_.size(); ++i) {
    const int64_t at = operands_[i].shared ? 0 : index;
    out[operands_[i].name] = slabs_[i].slice(0, at, at + 1).view(operands_[i].shape);
  }
  return out;
}

}  // namespace plumb::harness
