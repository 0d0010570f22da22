// What the CPU device promises beyond the ops: results that do not depend on threads, memory or
// instruction set, and the choice of the latter.
#include "kernels/cpu/cpu_device.h"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include "kernels/core/error.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/isa.h"
#include "tests/kernels/support.h"

namespace plumb {
namespace {

class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    const char* before = std::getenv(name);
    if (before) before_ = before;
    ::setenv(name, value, 1);
  }
  ~Environment() {
    if (before_) ::setenv(name_, before_->c_str(), 1);
    else ::unsetenv(name_);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// A bit of everything, large enough for several threads and every path; the outputs one after the
// other.
std::vector<Values> everything(Device& device, DType dtype, Layout layout) {
  Ops& ops = device.ops();
  constexpr int64_t rows = 300, channels = 384;
  Guarded x(device, dtype, {rows, channels}, layout), z(device, dtype, {rows, channels}, layout);
  Guarded weight(device, dtype, {500, channels}, layout), w(device, dtype, {channels});
  x.set(random_values(dtype, rows * channels, 1));
  z.set(random_values(dtype, rows * channels, 2));
  weight.set(random_values(dtype, 500 * channels, 3));
  w.set(random_values(dtype, channels, 4));
  Guarded row(device, dtype, {2, channels}, layout), one(device, dtype, {2, 500}, layout);
  row.set(random_values(dtype, 2 * channels, 5));
  Guarded y(device, dtype, {rows, channels}, layout), sum(device, dtype, {rows, channels}, layout);
  Guarded product(device, dtype, {rows, 500}, layout);
  std::vector<Values> out;
  const auto keep = [&](std::vector<Guarded*> outputs, const std::function<void()>& op) {
    for (Values& values : run(device, outputs, op)) out.push_back(std::move(values));
  };
  keep({&y}, [&] { ops.rms_norm(y, x, w, {1e-6}); });
  keep({&sum, &y}, [&] { ops.add_rms_norm(sum, y, x, z, w, {1e-6}); });
  keep({&y}, [&] { ops.layer_norm(y, x, w, Tensor(), 1e-5); });
  keep({&y}, [&] { ops.softmax(y, x); });
  keep({&y}, [&] { ops.gated_activation(y, x, z, Activation::gelu_tanh); });
  keep({&y}, [&] { ops.softcap(y, x, 2); });
  keep({&product}, [&] { ops.linear(product, x, weight); });
  keep({&one}, [&] { ops.linear(one, row, weight); });
  Guarded q(device, dtype, {1, 4, 100, 72}, layout), k(device, dtype, {1, 2, 400, 72}, layout);
  Guarded v(device, dtype, {1, 2, 400, 72}, layout),
      attended(device, dtype, {1, 100, 4, 72}, layout);
  Guarded scores(device, dtype, {1, 4, 100, 400}, layout);
  q.set(random_values(dtype, 4 * 100 * 72, 6));
  k.set(random_values(dtype, 2 * 400 * 72, 7));
  v.set(random_values(dtype, 2 * 400 * 72, 8));
  keep({&scores}, [&] { ops.matmul(scores, q, k, true); });
  AttentionMask mask;
  mask.causal = true;
  mask.query_offset = 300;
  mask.window = 200;
  keep({&attended}, [&] { ops.sdpa(attended, q, k, v, mask, {0.1, {}}); });
  return out;
}

// What runs by default and, for bf16, a model of what runs on processors with a matrix unit.
const cpu::Simd& any_simd(DType dtype) {
  const bool model = dtype == DType::bf16 && cpu::amx_model() && GENERATE(false, true);
  return model ? *cpu::amx_model() : cpu::choose_simd();
}

TEST_CASE("cpu: bits do not depend on the number of threads") {
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const cpu::Simd& simd = any_simd(dtype);
  const auto alone = everything(*open_cpu_device_of(simd, 1), dtype, Layout::contiguous);
  for (const int threads : {2, 3, 7}) {
    const auto device = open_cpu_device_of(simd, threads);
    for (int repeat = 0; repeat < 2; ++repeat) {
      REQUIRE(everything(*device, dtype, Layout::contiguous) == alone);
    }
  }
}

TEST_CASE("cpu: bits do not depend on alignment and strides") {
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const auto device = open_cpu_device_of(any_simd(dtype), 2);
  REQUIRE(everything(*device, dtype, Layout::padded) ==
          everything(*device, dtype, Layout::contiguous));
}

TEST_CASE("cpu: instruction sets agree within the limits of float32") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  std::vector<std::vector<Values>> results;
  for (const cpu::Simd* simd : cpu::usable_simds()) {
    const Environment forced("PLUMB_ISA", simd->name);
    const auto device = open_cpu_device(1);
    REQUIRE(device->describe().find(simd->name) != std::string::npos);
    results.push_back(everything(*device, dtype, Layout::contiguous));
  }
  for (const auto& other : results) {
    for (size_t i = 0; i < other.size(); ++i) {
      double scale = 0;
      for (const double value : results[0][i]) scale = std::fmax(scale, std::fabs(value));
      // Two results, each within its roundings and the sum of up to 400 products.
      const double allowed = 2 * scale * (4 * rounding_unit(dtype) + 400 * kU32);
      require_close(other[i], results[0][i], Values(other[i].size(), allowed));
    }
  }
}

TEST_CASE("cpu: PLUMB_ISA names an instruction set or is an error") {
  {
    const Environment unknown("PLUMB_ISA", "sse9");
    REQUIRE_THROWS_AS(open_cpu_device(1), UsageError);
    REQUIRE_THROWS_WITH(describe_cpu(), Catch::Contains("sse9") && Catch::Contains("baseline"));
  }
  const Environment empty("PLUMB_ISA", "");
  REQUIRE(&cpu::choose_simd() == cpu::usable_simds().back());
  REQUIRE_THROWS_AS(open_cpu_device(-1), UsageError);
  REQUIRE(open_cpu_device(3)->describe().find("3 threads") != std::string::npos);
}

TEST_CASE("cpu: records say which variant ran, and what it promises") {
  const auto device = open_cpu_device(1);
  std::vector<OpRecord> records;
  Ops& ops = device->ops();
  ops.observe(&records);
  Guarded x(*device, DType::bf16, {5, 8}), w(*device, DType::bf16, {8});
  x.set(Values(40, 1.0));
  w.set(Values(8, 1.0));
  ops.rms_norm(x, x, w, {1e-6});
  ops.add_rms_norm(x, x, x, x, w, {1e-6});
  ops.set_fused(OpSet());
  ops.add_rms_norm(x, x, x, x, w, {1e-6});
  ops.observe(nullptr);
  REQUIRE(records.size() == 4);
  REQUIRE(to_string(records[0].op, records[0].impl) == text("rms_norm/", cpu::choose_simd().name));
  REQUIRE(records[1].op == OpId::add_rms_norm);
  REQUIRE(records[2].op == OpId::add);
  REQUIRE(records[3].op == OpId::rms_norm);
  REQUIRE(records[0].contract.storage == DType::bf16);
  REQUIRE(records[0].contract.accumulator.bits == 24);
  REQUIRE(ops.contract(OpId::sdpa, DType::bf16).points == RoundingPoints::fused);
  REQUIRE(ops.contract(OpId::softcap, DType::bf16).points == RoundingPoints::eager);
}

TEST_CASE("thread pool: every index once, errors come back, many loops in a row") {
  const int threads = GENERATE(1, 2, 5);
  ThreadPool pool(threads);
  REQUIRE(pool.size() == threads);
  for (int64_t count : {0, 1, 2, 17, 1000}) {
    std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
    std::atomic<bool> in_range{true};
    pool.for_each(count, 1e9, [&](int64_t i, int worker) {
      ++calls[static_cast<size_t>(i)];
      if (worker < 0 || worker >= threads) in_range = false;
    });
    REQUIRE(in_range);
    for (const auto& n : calls) REQUIRE(n == 1);
  }
  std::atomic<int64_t> total{0};
  for (int loop = 0; loop < 500; ++loop) {
    pool.for_each(16, 1e9, [&](int64_t i, int) { total += i; });
  }
  REQUIRE(total == 500 * 120);
  REQUIRE_THROWS_AS(pool.for_each(100, 1e9,
                                  [](int64_t i, int) {
                                    if (i == 50) throw std::runtime_error("fifty");
                                  }),
                    std::runtime_error);
  std::atomic<int> after{0};
  pool.for_each(10, 1e9, [&](int64_t, int) { ++after; });
  REQUIRE(after == 10);
}

}  // namespace
}  // namespace plumb
