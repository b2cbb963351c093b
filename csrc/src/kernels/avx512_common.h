// What the AVX-512 kernels share.
#pragma once

#include <immintrin.h>

#include "fill_set.h"
#include "x86_prefetch.h"

namespace forerun::cpu {
namespace {

// `instruction` acc, weight, x[index] in all lanes, for T values of x. As assembly, because GCC 12
// has no embedded broadcast for the dot products and puts register copies between them; with the
// index as a displacement, because else the compiler keeps a pointer for each of the T. `acc` must
// be a variable of its own: elements of an array that assembly writes to stay in memory.
#define FORERUN_BROADCAST_STEP(instruction, acc, weight, x, T, index) \
  asm(instruction " %c3(%2)%{1to16%}, %1, %0"                         \
      : "+v"(acc)                                                     \
      : "v"(weight), "r"(x), "i"((index) * sizeof(*(x))),             \
        "m"(*reinterpret_cast<const std::uint32_t(*)[T]>(x)))

template <int kWidth, int kIndex>
FORERUN_INLINE __m512i dot(__m512i acc, __m512i weight, const std::uint32_t* x) {
  FORERUN_BROADCAST_STEP("vpdpbusd", acc, weight, x, kWidth, kIndex);
  return acc;
}

FORERUN_INLINE __m512i dot(__m512i acc, __m512i weight, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(weight), "v"(x));
  return acc;
}

FORERUN_INLINE __m512 in_all_lanes(std::uint32_t bits) {
  return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(bits)));
}

FORERUN_INLINE __mmask16 row_mask(std::int64_t rows) {
  return static_cast<__mmask16>((1u << (rows < kBlockRows ? rows : kBlockRows)) - 1u);
}

// Adds the bias and what is there, in this order, and stores the rows of a block that exist.
FORERUN_INLINE void store_rows(const TileArgs& a, int token, __m512 sum, int block = 0) {
  const __mmask16 mask = row_mask(a.rows - block * kBlockRows);
  float* out = a.out + token * a.out_stride + block * kBlockRows;
  if (a.bias != nullptr)
    sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, a.bias + block * kBlockRows));
  if (a.accumulate) sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), sum);
  _mm512_mask_storeu_ps(out, mask, sum);
}

}  // namespace
}  // namespace forerun::cpu
