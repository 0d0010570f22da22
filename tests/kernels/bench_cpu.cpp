// Ratios between the ways in which the CPU device could do the same thing, measured in one run:
// bench_cpu [threads]. Not a test; PLUMB_ISA chooses the instruction set.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>

#include "kernels/core/thread_pool.h"
#include "kernels/cpu/blocked_gemm.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/onednn.h"
#include "kernels/ops/ops.h"

namespace {

using namespace plumb;
using namespace plumb::cpu;

// The fastest of several runs, in seconds.
double seconds(const std::function<void()>& f) {
  using Clock = std::chrono::steady_clock;
  double best = 1e30, total = 0;
  for (int i = 0; i < 3 || (total < 0.3 && i < 1000); ++i) {
    const auto start = Clock::now();
    f();
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, elapsed);
    total += elapsed;
  }
  return best;
}

Tensor random_tensor(Device& device, DType dtype, const Shape& shape) {
  static std::mt19937 generator(1);
  std::normal_distribution<double> normal;
  const Tensor t = device.allocate(dtype, shape);
  for (int64_t i = 0; i < t.numel(); ++i) {
    store(dtype, t.data<char>() + i * size_of(dtype), normal(generator));
  }
  return t;
}

// One thread, [m, k] x [n, k]^T: our product against oneDNN on float32 or on what it takes.
void compare_products(Device& device, DType dtype, int64_t m, int64_t n, int64_t k) {
  const Simd& simd = choose_simd();
  const Tensor a = random_tensor(device, dtype, {m, k}), b = random_tensor(device, dtype, {n, k});
  const Tensor out = device.allocate(dtype, {m, n}), sums = device.allocate(DType::f32, {m, n});
  const Tensor wide_a = device.allocate(DType::f32, {m, k}),
               wide_b = device.allocate(DType::f32, {n, k});
  const Format format(simd, dtype);
  const BlockedGemm blocked(simd, format, m, n, k);
  const RowOffsets a_rows(a), out_rows(out);
  const Gemm gemm{m, n,    k,       a.data<char>(),   &a_rows,  b.data<char>(),
                  k, true, nullptr, out.data<char>(), &out_rows};
  std::vector<float> scratch(static_cast<size_t>(blocked.scratch_floats()));
  const double own = seconds([&] {
    for (int64_t i = 0; i < blocked.blocks(); ++i) blocked.compute(gemm, i, scratch.data());
  });
  std::vector<float> wide(static_cast<size_t>(m * k));
  const double rows = m > kGemvRows ? 0 : seconds([&] {
    format.widen(wide.data(), a.raw(), m * k);
    multiply_rows(simd, format, gemm, wide.data(), 0, n);
  });
  std::printf("%-5s m %4ld n %5ld k %5ld  own %7.2f GFLOP/s", std::string(name_of(dtype)).c_str(),
              m, n, k, 2e-9 * static_cast<double>(m * n * k) / own);
  if (rows > 0) std::printf("  rows %.2fx", own / rows);
  if (onednn::prepare(simd.name)) {
    const double library = seconds([&] {
      const bool direct = onednn::multiplies(dtype);
      if (!direct) {
        format.widen(wide_a.data<float>(), a.raw(), m * k);
        format.widen(wide_b.data<float>(), b.raw(), n * k);
      }
      onednn::gemm(direct ? dtype : DType::f32, m, n, k, direct ? a.raw() : wide_a.raw(), k,
                   direct ? b.raw() : wide_b.raw(), k, sums.data<float>(), n);
      format.write(out.raw(), sums.data<float>(), m * n);
    });
    std::printf("  oneDNN %.2fx", own / library);
  }
  std::printf("\n");
}

struct AttentionCase {
  const char* text;
  int64_t heads, kv_heads, queries, keys, width;
  bool softcap;
};

void compare_attention(Device& device, DType dtype, const AttentionCase& c) {
  const Tensor q = random_tensor(device, dtype, {1, c.heads, c.queries, c.width});
  const Tensor k = random_tensor(device, dtype, {1, c.kv_heads, c.keys, c.width});
  const Tensor v = random_tensor(device, dtype, {1, c.kv_heads, c.keys, c.width});
  const Tensor out = device.allocate(dtype, {1, c.queries, c.heads, c.width});
  AttentionMask mask;
  mask.causal = true;
  mask.query_offset = c.keys - c.queries;
  SdpaParams params;
  params.scale = 0.125;
  if (c.softcap) params.softcap = 50;
  Ops& ops = device.ops();
  ops.set_fused(OpSet().set());
  const double fused = seconds([&] { ops.sdpa(out, q, k, v, mask, params); });
  ops.set_fused(OpSet());
  const double composed = seconds([&] { ops.sdpa(out, q, k, v, mask, params); });
  ops.set_fused(OpSet().set());
  std::printf("sdpa %-5s %-34s fused %8.3f ms, composed / fused %.2f\n",
              std::string(name_of(dtype)).c_str(), c.text, 1e3 * fused, composed / fused);
}

void compare_fusion(Device& device, DType dtype, const char* text,
                    const std::function<void()>& call) {
  device.ops().set_fused(OpSet().set());
  const double fused = seconds(call);
  device.ops().set_fused(OpSet());
  const double composed = seconds(call);
  std::printf("%-16s %-5s fused %8.3f ms, composed / fused %.2f\n", text,
              std::string(name_of(dtype)).c_str(), 1e3 * fused, composed / fused);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 0;
  const auto device = open_cpu_device(threads);
  Ops& ops = device->ops();
  std::printf("%s\n", device->describe().c_str());
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const int64_t m : {1, 2, 4, 16, 64, 512}) compare_products(*device, dtype, m, 2048, 2048);
    compare_products(*device, dtype, 11, 64, 32);
    compare_products(*device, dtype, 11, 256, 64);
    compare_products(*device, dtype, 128, 512, 512);
    const Tensor x = random_tensor(*device, dtype, {512, 2048}),
                 w = random_tensor(*device, dtype, {2048, 2048});
    const Tensor y = device->allocate(dtype, {512, 2048});
    const double linear = seconds([&] { ops.linear(y, x, w); });
    std::printf("%-5s linear m 512 n 2048 k 2048 %.2f GFLOP/s\n",
                std::string(name_of(dtype)).c_str(), 2e-9 * 512 * 2048 * 2048 / linear);
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    compare_attention(*device, dtype,
                      {"prefill 8 heads 512 x 512 x 128", 8, 8, 512, 512, 128, false});
    compare_attention(*device, dtype, {"prefill 8/2 heads 512 softcap", 8, 2, 512, 512, 128, true});
    compare_attention(*device, dtype,
                      {"decode 8/2 heads 1 x 4096 x 128", 8, 2, 1, 4096, 128, false});
    compare_attention(*device, dtype,
                      {"decode 8/8 heads 1 x 4096 x 128", 8, 8, 1, 4096, 128, false});
    compare_attention(*device, dtype, {"tiny 4/2 heads 11 x 11 x 16", 4, 2, 11, 11, 16, false});
    const Tensor x = random_tensor(*device, dtype, {512, 2048}),
                 z = random_tensor(*device, dtype, {512, 2048});
    const Tensor y = device->allocate(dtype, {512, 2048}),
                 sum = device->allocate(dtype, {512, 2048});
    const Tensor w = random_tensor(*device, dtype, {2048});
    compare_fusion(*device, dtype, "silu * up",
                   [&] { ops.gated_activation(y, x, z, Activation::silu); });
    compare_fusion(*device, dtype, "gelu_tanh * up",
                   [&] { ops.gated_activation(y, x, z, Activation::gelu_tanh); });
    compare_fusion(*device, dtype, "softcap", [&] { ops.softcap(y, x, 30); });
    compare_fusion(*device, dtype, "add_rms_norm",
                   [&] { ops.add_rms_norm(sum, y, x, z, w, {1e-6}); });
  }
}
