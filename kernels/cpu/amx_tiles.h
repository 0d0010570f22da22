// The instructions of Intel's AMX, for amx_kernels.h only: eight tiles of 16 rows of 64 bytes.
//
// With PLUMB_AMX_MODEL they are plain loops that compute what the instructions do, down to the
// order of the sums, so that tests run what is built of them on any processor with avx512_bf16.
#pragma once

#include <stdint.h>

namespace plumb::cpu {
namespace {

constexpr int kTileSide = 16;   // rows; also 32-bit words of a row
constexpr int kTileBytes = 64;  // of a row
constexpr int kTileRegisters = 8;

#ifdef PLUMB_AMX_MODEL

struct TileModel {
  bool configured;  // without it the instructions are illegal
  uint32_t words[kTileRegisters][kTileSide][kTileSide];
};
thread_local TileModel tile_model;

inline TileModel& configured_tiles() {
  if (!tile_model.configured) __builtin_trap();
  return tile_model;
}

inline float as_float(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
// Subnormal operands and results count as zero.
inline float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? 0 * x : x; }
inline float even_of(uint32_t pair) { return flushed(as_float(pair << 16)); }
inline float odd_of(uint32_t pair) { return flushed(as_float(pair & 0xffff0000u)); }

inline void begin_tiles() {
  __builtin_memset(&tile_model, 0, sizeof tile_model);
  tile_model.configured = true;
}
inline void end_tiles() { tile_model.configured = false; }

template <int Tile>
inline void zero_tile() {
  __builtin_memset(configured_tiles().words[Tile], 0, sizeof tile_model.words[Tile]);
}
template <int Tile>
inline void load_tile(const void* from, int64_t stride) {
  for (int i = 0; i < kTileSide; ++i) {
    __builtin_memcpy(configured_tiles().words[Tile][i], static_cast<const char*>(from) + i * stride,
                     kTileBytes);
  }
}
template <int Tile>
inline void store_tile(void* to, int64_t stride) {
  for (int i = 0; i < kTileSide; ++i) {
    __builtin_memcpy(static_cast<char*>(to) + i * stride, configured_tiles().words[Tile][i],
                     kTileBytes);
  }
}

// Sums[i, j] += sum over the pairs p of a[i, p] b[p, j]: even and odd products apart, then added.
template <int Sums, int A, int B>
inline void multiply_tiles() {
  TileModel& tiles = configured_tiles();
  for (int i = 0; i < kTileSide; ++i) {
    float even[kTileSide] = {}, odd[kTileSide] = {};
    for (int p = 0; p < kTileSide; ++p) {
      const uint32_t a = tiles.words[A][i][p];
      for (int j = 0; j < kTileSide; ++j) {
        const uint32_t b = tiles.words[B][p][j];
        even[j] = flushed(__builtin_fmaf(even_of(a), even_of(b), even[j]));
        odd[j] = flushed(__builtin_fmaf(odd_of(a), odd_of(b), odd[j]));
      }
    }
    for (int j = 0; j < kTileSide; ++j) {
      const float before = flushed(as_float(tiles.words[Sums][i][j]));
      const float sum = flushed(before + flushed(even[j] + odd[j]));
      __builtin_memcpy(&tiles.words[Sums][i][j], &sum, sizeof sum);
    }
  }
}

#else

// The compiler's own intrinsics do not tell it that tiles are loaded from memory, so that it may
// delay what was stored there; hence "memory" here.

struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
constexpr TileConfig kTileConfig = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

inline void begin_tiles() { asm volatile("ldtilecfg %0" ::"m"(kTileConfig)); }
inline void end_tiles() { asm volatile("tilerelease"); }

template <int Tile>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
}
template <int Tile>
inline void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile>
inline void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(Tile) : "memory");
}
template <int Sums, int A, int B>
inline void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(A), "i"(B));
}

#endif

}  // namespace
}  // namespace plumb::cpu
