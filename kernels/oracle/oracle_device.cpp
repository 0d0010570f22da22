#include "kernels/oracle/oracle_device.h"

#include <cstring>

#include "kernels/error.h"
#include "kernels/oracle/oracle_ops.h"

namespace plumb {
namespace {

class OracleDevice final : public Device {
 public:
  OracleDevice() : ops_(*this) {}
  std::string name() const override { return "oracle"; }
  std::string describe() const override {
    return "float64 in plain loops, one thread: the referee";
  }
  Tensor allocate(DType dtype, const Shape& shape) override {
    int64_t bytes = 0;
    require(!__builtin_mul_overflow(shape.numel(), size_of(dtype), &bytes), "allocate", shape,
            " is larger than 2^63 bytes");
    return Tensor(host_storage(bytes, this), dtype, shape);
  }
  void upload(const Tensor& to, const void* from) override {
    if (to.bytes() > 0) std::memcpy(to.raw(), from, static_cast<size_t>(to.bytes()));
  }
  void download(void* to, const Tensor& from) override {
    if (from.bytes() > 0) std::memcpy(to, from.raw(), static_cast<size_t>(from.bytes()));
  }
  void fill(const Tensor& t, uint8_t byte) override {
    if (t.bytes() > 0) std::memset(t.raw(), byte, static_cast<size_t>(t.bytes()));
  }
  void synchronize() override {}
  Ops& ops() override { return ops_; }

 private:
  OracleOps ops_;
};

}  // namespace

std::unique_ptr<Device> open_oracle_device() { return std::make_unique<OracleDevice>(); }

Contract OracleOps::contract(OpId op, DType storage) const {
  const bool single_rounding = is_fused(op) && overrides(op);
  return {storage,
          DType::f64,
          {53, SumRounding::nearest, 1},
          single_rounding ? RoundingPoints::fused : RoundingPoints::eager};
}

bool OracleOps::overrides(OpId op) const {
  return op == OpId::gated_activation || op == OpId::softcap || op == OpId::sdpa;
}

std::vector<double> values_of(const Tensor& t) {
  std::vector<double> out(static_cast<size_t>(t.numel()));
  const int64_t width = t.rank() ? t.dim(-1) : 1;
  double* to = out.data();
  for_each_row(t, [&](int64_t offset) {
    load_all(t.dtype(), t.data<char>() + offset * size_of(t.dtype()), width, to);
    to += width;
  });
  return out;
}

void put(const Tensor& t, const std::vector<double>& values) {
  const int64_t width = t.rank() ? t.dim(-1) : 1;
  const double* from = values.data();
  for_each_row(t, [&](int64_t offset) {
    store_all(t.dtype(), t.data<char>() + offset * size_of(t.dtype()), width, from);
    from += width;
  });
}

}  // namespace plumb
