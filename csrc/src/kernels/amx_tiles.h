// What the AMX kernels share.
#pragma once

#include <cstdint>

#include "fill_set.h"

namespace forerun::cpu {
namespace {

constexpr int kTileRows = 16;

// The memory operand of ldtilecfg.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  void describe(int tile, int count, std::int64_t bytes) {
    rows[tile] = static_cast<std::uint8_t>(count);
    row_bytes[tile] = static_cast<std::uint16_t>(bytes);
  }
  void load() const { asm volatile("ldtilecfg %0" : : "m"(*this)); }
};

void end() { asm volatile("tilerelease"); }

template <int kTile>
FORERUN_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// Rows `stride` bytes apart.
template <int kTile>
FORERUN_INLINE void load_tile(const void* rows, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
}

// Adds products of four signed bytes in each row of A with four unsigned ones in a column of B.
template <int kSums, int kA, int kB>
FORERUN_INLINE void multiply_tiles() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}

// The same with signed ones.
template <int kSums, int kA, int kB>
FORERUN_INLINE void multiply_signed_tiles() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}

// Adds products of two columns of bf16 in each row of A with two of a column of B.
template <int kSums, int kA, int kB>
FORERUN_INLINE void multiply_bf16_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}

// Rows `stride` bytes apart.
template <int kTile>
FORERUN_INLINE void store_tile(void* rows, std::int64_t stride = kLine) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(rows), "r"(stride) : "memory");
}

}  // namespace
}  // namespace forerun::cpu
