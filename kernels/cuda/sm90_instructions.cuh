// Instructions of Hopper GPUs that C++ has no words for (PTX ISA 8.0, target sm_90a): barriers in
// shared memory, the tensor copy engine (TMA), 16 x 16 matrix moves and fast functions.
//
// Barriers count phases: wait() for a parity returns once the phase of that parity has completed,
// so that a fresh barrier lets a wait for parity 1 pass at once.
#pragma once

#include <cuda.h>  // CUtensorMap

#include <cstdint>
#include <type_traits>

#include "kernels/core/dtype.h"

namespace plumb::cuda::sm90 {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// --- Barriers

__device__ __forceinline__ void initialise(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals));
}
// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Arrives, and lets the phase wait for that many bytes of copies too.
__device__ __forceinline__ void arrive_expecting(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN;\n}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
// The sixteen hardware barriers: id 0 is __syncthreads's.
__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// --- Copies between global and shared memory, along a map of [batch, head, token, column]

__device__ __forceinline__ void load_tile(void* to, const CUtensorMap* map, uint64_t* barrier,
                                          int column, int token, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(token), "r"(head), "r"(batch)
      : "memory");
}
// Along a map of whole rows (make_row_map): `token` and on. What is read once leaves the L2 cache
// first.
__device__ __forceinline__ void load_rows_once(void* to, const CUtensorMap* map, uint64_t* barrier,
                                               int token, int head, int batch) {
  constexpr uint64_t kEvictFirst = 0x12f0000000000000;
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %3, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(0), "r"(token), "r"(head), "r"(batch),
      "l"(kEvictFirst)
      : "memory");
}
__device__ __forceinline__ void store_tile(const CUtensorMap* map, const void* from, int column,
                                           int token, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          map),
      "r"(shared_address(from)), "r"(column), "r"(token), "r"(head), "r"(batch)
      : "memory");
}
__device__ __forceinline__ void end_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until the copy engine has read what this thread's stores take from shared memory.
__device__ __forceinline__ void wait_for_reads() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
// Orders this thread's plain writes to shared memory before later reads by the copy engine.
__device__ __forceinline__ void publish_shared_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- A 16 x 16 block of 16-bit elements between shared memory and the registers of a warp, in the
// layout of matrix products. Lane L gives the address of row L % 16, columns 8 (L / 16) and on.

__device__ __forceinline__ void load_block(uint32_t* to, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
// The block's transpose; lane L gives the address of row L % 8 + 8 (L / 16), columns 8 (L / 8 % 2)
// and on.
__device__ __forceinline__ void load_block_transposed(uint32_t* to, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
// 8 x 8 elements in registers: lane L has row L / 4, columns 2 (L % 4) and the next.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t pair) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}
__device__ __forceinline__ void store_block(uint32_t address, const uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

// --- Kernels that overlap: wait_for_previous_kernel() in two parts

__device__ __forceinline__ void let_next_kernel_begin() {
  asm volatile("griddepcontrol.launch_dependents;");
}
__device__ __forceinline__ void wait_for_kernels_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// --- The registers of a warpgroup, a multiple of 8

template <int Count>
__device__ __forceinline__ void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

// --- Functions of the special function unit

__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Relative error up to 1.1e-5 over [1e-4, 9], measured on an H200.
__device__ __forceinline__ float fast_tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float fast_reciprocal(float x) {  // within 1 ulp
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats rounded to nearest even, the first one in the low half.
template <class Element>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t pair;
  if constexpr (std::is_same_v<Element, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

}  // namespace plumb::cuda::sm90
