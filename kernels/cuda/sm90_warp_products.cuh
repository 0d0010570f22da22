// Matrix products of one warp on tensor cores (mma.sync): d [16, 8] += a [16, 16] b [16, 8],
// float32 sums.
//
// Lane L holds rows L / 4 and L / 4 + 8 of d, columns 2 (L % 4) and the next: d[2 i + e] is row
// L / 4 + 8 i. a is in the layout of load_block. b[i] has inner elements 8 i + 2 (L % 4) and the
// next, of column L / 4.
#pragma once

#include <cstdint>

namespace plumb::cuda::sm90 {

// Of bf16.
__device__ __forceinline__ void multiply_in_warp(float (&d)[4], const uint32_t (&a)[4],
                                                 const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace plumb::cuda::sm90
