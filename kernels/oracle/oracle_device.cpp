#include "kernels/oracle/oracle_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/core/error.h"
#include "kernels/oracle/oracle_ops.h"

namespace plumb {
namespace {

// Host memory that also has, where a rounding was left out, what the value was before.
class OracleStorage final : public Storage {
 public:
  OracleStorage(std::shared_ptr<Storage> memory, const void* owner)
      : Storage(memory->data, memory->bytes, owner), memory_(std::move(memory)) {}

  bool keeps() const { return !kept_.empty(); }
  // Of the 16-bit element at this address; NaN where it is the element itself. Needs keeps().
  double kept(const void* element) const { return kept_[slot(element)]; }
  void keep(const void* element, double value) {
    if (kept_.empty()) kept_.assign(static_cast<size_t>((bytes + 1) / 2), std::nan(""));
    kept_[slot(element)] = value;
  }
  void forget(const void* from, int64_t size) {
    if (kept_.empty() || size == 0) return;
    const auto begin = kept_.begin() + static_cast<std::ptrdiff_t>(slot(from));
    std::fill(begin, begin + (size + 1) / 2, std::nan(""));
  }

 private:
  size_t slot(const void* element) const {
    return static_cast<size_t>(static_cast<const char*>(element) - static_cast<char*>(data)) / 2;
  }

  const std::shared_ptr<Storage> memory_;
  std::vector<double> kept_;
};

// Null for a tensor that another device or the host holds.
OracleStorage* storage_of(const Tensor& t) {
  return const_cast<OracleStorage*>(dynamic_cast<const OracleStorage*>(&t.storage()));
}

class OracleDevice final : public Device {
 public:
  OracleDevice(int threads, std::shared_ptr<Float64Products> products)
      : ops_(*this, threads, std::move(products)) {}
  std::string name() const override { return "oracle"; }
  std::string describe() const override { return "float64, large products in tiles: the referee"; }
  Tensor allocate(DType dtype, const Shape& shape) override {
    int64_t bytes = 0;
    require(!__builtin_mul_overflow(shape.numel(), size_of(dtype), &bytes), "allocate", shape,
            " is larger than 2^63 bytes");
    return Tensor(std::make_shared<OracleStorage>(host_storage(bytes), this), dtype, shape);
  }
  void upload(const Tensor& to, const void* from) override {
    if (to.bytes() > 0) std::memcpy(to.raw(), from, static_cast<size_t>(to.bytes()));
    if (OracleStorage* storage = storage_of(to)) storage->forget(to.raw(), to.bytes());
  }
  void download(void* to, const Tensor& from) override {
    if (from.bytes() > 0) std::memcpy(to, from.raw(), static_cast<size_t>(from.bytes()));
  }
  void fill(const Tensor& t, uint8_t byte) override {
    if (t.bytes() > 0) std::memset(t.raw(), byte, static_cast<size_t>(t.bytes()));
    if (OracleStorage* storage = storage_of(t)) storage->forget(t.raw(), t.bytes());
  }
  void synchronize() override {}
  Ops& ops() override { return ops_; }
  const void* host_owner() const override { return this; }

 private:
  OracleOps ops_;
};

}  // namespace

std::unique_ptr<Device> open_oracle_device(int threads) {
  return open_oracle_device(threads, nullptr);
}

std::unique_ptr<Device> open_oracle_device(int threads, std::shared_ptr<Float64Products> products) {
  return std::make_unique<OracleDevice>(threads, std::move(products));
}

Contract OracleOps::contract(OpId op, DType storage) const {
  const bool single_rounding = is_fused(op) && overrides(op);
  return {storage,
          DType::f64,
          {53, SumRounding::nearest, 1},
          single_rounding ? RoundingPoints::fused : RoundingPoints::eager,
          true};
}

bool OracleOps::overrides(OpId op) const {
  return op == OpId::gated_activation || op == OpId::softcap || op == OpId::sdpa;
}

bool has_kept(const Tensor& t) {
  const OracleStorage* storage = storage_of(t);
  return storage && storage->keeps();
}

std::vector<double> values_of(const Tensor& t) {
  std::vector<double> out(static_cast<size_t>(t.numel()));
  const int64_t width = t.rank() ? t.dim(-1) : 1;
  const bool repeats = width > 1 && t.stride(-1) == 0;  // a broadcast axis
  const auto size = size_of(t.dtype());
  const OracleStorage* storage = size == 2 ? storage_of(t) : nullptr;
  double* to = out.data();
  for_each_row(t, [&](int64_t offset) {
    const char* row = t.data<char>() + offset * size;
    const int64_t stored = repeats ? 1 : width;
    load_all(t.dtype(), row, stored, to);
    if (storage && storage->keeps()) {
      for (int64_t i = 0; i < stored; ++i) {
        const double kept = storage->kept(row + i * size);
        if (!std::isnan(kept)) to[i] = kept;
      }
    }
    std::fill(to + stored, to + width, *to);
    to += width;
  });
  return out;
}

namespace {

void write(const Tensor& t, const std::vector<double>& values, bool rounds) {
  const int64_t width = t.rank() ? t.dim(-1) : 1;
  const auto size = size_of(t.dtype());
  OracleStorage* storage = storage_of(t);
  const bool keeps = !rounds && storage && size == 2 && is_floating(t.dtype());
  const double* from = values.data();
  for_each_row(t, [&](int64_t offset) {
    char* row = t.data<char>() + offset * size;
    if (storage) storage->forget(row, width * size);
    store_all(t.dtype(), row, width, from);
    for (int64_t i = 0; keeps && i < width; ++i) storage->keep(row + i * size, from[i]);
    from += width;
  });
}

}  // namespace

void put(const Tensor& t, const std::vector<double>& values, std::string_view name) {
  const bool rounds = !is_floating(t.dtype()) || rounds_here(t.dtype(), name);
  ArithmeticScope* scope = ArithmeticScope::current();
  if (!rounds || !scope || !scope->arithmetic().random_rounding || !is_floating(t.dtype())) {
    return write(t, values, rounds);
  }
  std::vector<double> rounded = values;
  for (double& value : rounded) value = round_in_run(t.dtype(), value);
  write(t, rounded, rounds);
}

void move(const Tensor& t, const std::vector<double>& values) {
  write(t, values, ArithmeticScope::current() == nullptr);
}

}  // namespace plumb
