// The greedy choice: the first place of the largest, whatever the size, and the position of a NaN.
#include <cmath>
#include <limits>
#include <random>

#include "kernels/core/error.h"
#include "kernels/ops/ops.h"
#include "tests/kernels/test_devices.h"

namespace plumb {
namespace {

using Catch::Contains;

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::nan("");

struct Chosen {
  std::vector<int64_t> ids, log;
  bool operator==(const Chosen&) const = default;
};

Tensor placed(Device& device, DType dtype, const Shape& shape, const std::vector<double>& values) {
  const Tensor host = host_tensor(dtype, shape), out = device.allocate(dtype, shape);
  for (int64_t i = 0; i < host.numel(); ++i) {
    store(dtype, host.data<char>() + i * size_of(dtype), values[static_cast<size_t>(i)]);
  }
  device.upload(out, host.raw());
  return out;
}

std::vector<int64_t> numbers(Device& device, const Tensor& t) {
  std::vector<int64_t> out(static_cast<size_t>(t.numel()));
  device.download(out.data(), t);
  device.synchronize();
  return out;
}

// Of rows of equal lengths; a log of three rows that had -7 everywhere.
Chosen chosen(Device& device, DType dtype, const std::vector<std::vector<double>>& rows,
              int64_t past = 4) {
  const auto batch = static_cast<int64_t>(rows.size());
  std::vector<double> all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  const auto count = static_cast<int64_t>(rows[0].size());
  const Tensor logits = placed(device, dtype, {batch, 1, count}, all);
  const Tensor ids = device.allocate(DType::i64, {batch, 1});
  const Tensor log = device.allocate(DType::i64, {3, batch});
  const std::vector<int64_t> before(static_cast<size_t>(3 * batch), -7);
  device.upload(log, before.data());
  const Tensor stored = device.allocate(DType::i64, {1});
  device.upload(stored, &past);
  device.ops().choose_greedily(ids, log, logits, {past, stored});
  return {numbers(device, ids), numbers(device, log)};
}

std::vector<DType> dtypes_of(const std::string& device) {
  return device == "oracle" ? std::vector<DType>{DType::f64, DType::f32}
                            : std::vector<DType>{DType::f32, DType::f16, DType::bf16};
}

TEST_CASE("the first of the largest logits is chosen") {
  for (const std::string& name : test_devices()) {
    const auto device = open_test_device(name);
    for (const DType dtype : dtypes_of(name)) {
      INFO(name << ' ' << name_of(dtype));
      const auto of = [&](const std::vector<double>& row) {
        return chosen(*device, dtype, {row}).ids[0];
      };
      CHECK(of({3}) == 0);
      CHECK(of({-3, -2, -2, -5}) == 1);
      CHECK(of({-0.0, 0.0}) == 0);
      CHECK(of({0.0, -0.0}) == 0);
      CHECK(of({-1, kInf, 4, kInf}) == 1);
      CHECK(of({-kInf, -kInf, -kInf}) == 0);
      CHECK(of({-kInf, -60000, -kInf}) == 1);
      CHECK(of({-5, -4, -3, -2, -1, -0.5, -0.25, -0.125, -0.0625}) == 8);
    }
  }
}

TEST_CASE("rows of any length, with the largest at any place, and of few distinct values") {
  for (const std::string& name : test_devices()) {
    const auto device = open_test_device(name);
    const DType dtype = dtypes_of(name).back();
    std::mt19937_64 random(5);
    for (const int64_t count : {2, 7, 255, 256, 257, 4095, 4096, 4097, 32003, 70000}) {
      for (int repeat = 0; repeat < 3; ++repeat) {
        std::vector<std::vector<double>> rows(3);
        std::vector<int64_t> expected;
        for (auto& row : rows) {
          for (int64_t i = 0; i < count; ++i)
            row.push_back(static_cast<double>(random() % 50) - 60);
          const auto largest = std::max_element(row.begin(), row.end());
          if (repeat == 1) *largest = -61;
          if (repeat == 1) row[random() % row.size()] = 9;
          if (repeat == 2) row.back() = 9;
          expected.push_back(std::max_element(row.begin(), row.end()) - row.begin());
        }
        INFO(name << ' ' << count << " logits, " << repeat);
        CHECK(chosen(*device, dtype, rows).ids == expected);
      }
    }
  }
}

TEST_CASE("the choice is kept in the log's row of that position, and no other") {
  for (const std::string& name : test_devices()) {
    const auto device = open_test_device(name);
    for (const int64_t past : {0, 1, 2, 3, 1000001}) {
      INFO(name << ' ' << past);
      std::vector<int64_t> log(6, -7);
      log[static_cast<size_t>(past % 3 * 2)] = 1;
      log[static_cast<size_t>(past % 3 * 2 + 1)] = 2;
      const Chosen expected{{1, 2}, log};
      CHECK(chosen(*device, DType::f32, {{1, 5, 2}, {0, 1, 2}}, past) == expected);
    }
  }
}

TEST_CASE("the log says where the first NaN is, the id is one that exists") {
  for (const std::string& name : test_devices()) {
    const auto device = open_test_device(name);
    for (const int64_t count : {3, 300, 20000}) {
      std::vector<double> row(static_cast<size_t>(count), 1), other = row;
      row[static_cast<size_t>(count / 2)] = kInf;
      row[static_cast<size_t>(count - 1)] = kNan;
      row[static_cast<size_t>(count - 2)] = -kNan;
      other[1] = 2;
      INFO(name << ' ' << count);
      const Chosen found = chosen(*device, DType::f32, {row, other}, 1);
      CHECK(found.ids == std::vector<int64_t>{0, 1});
      CHECK(found.log == std::vector<int64_t>{-7, -7, -1 - (count - 2), 1, -7, -7});
    }
  }
}

TEST_CASE("argmax says what is wrong with its operands") {
  for (const std::string& name : test_devices()) {
    const auto device = open_test_device(name);
    const auto make = [&](DType dtype, const Shape& shape) {
      return device->allocate(dtype, shape);
    };
    const Tensor ids = make(DType::i64, {2, 1}), log = make(DType::i64, {4, 2}),
                 logits = make(DType::f32, {2, 1, 9});
    const Position past{0, make(DType::i64, {1})};
    const auto refused = [&](const Tensor& i, const Tensor& l, const Tensor& x,
                             const std::string& words) {
      CHECK_THROWS_WITH(device->ops().choose_greedily(i, l, x, past), Contains(words));
    };
    refused(make(DType::f32, {2, 1}), log, logits, "ids is f32, expected i64");
    refused(make(DType::i64, {3, 1}), log, logits, "ids has shape [3, 1], expected [2, 1]");
    refused(ids, make(DType::i64, {4, 3}), logits, "log has shape [4, 3], expected [N, 2]");
    refused(ids, make(DType::i64, {0, 2}), logits, "log has shape [0, 2], expected [N, 2]");
    refused(ids, log, make(DType::f32, {2, 2, 9}), "logits have shape [2, 2, 9]");
    refused(ids, log, make(DType::f32, {2, 1, 9}).slice(2, 0, 5), "must be dense");
    refused(ids, log, make(DType::i64, {2, 1, 9}), "logits is i64, expected a float dtype");
  }
}

}  // namespace
}  // namespace plumb
