// What the AVX2 kernels share: a block of 16 rows is two registers.
#pragma once

#include <immintrin.h>

#include "fill_set.h"
#include "x86_prefetch.h"

namespace forerun::cpu {
namespace {

constexpr int kHalves = 2;
constexpr int kHalfRows = 8;

// Eight accumulators; the rest of the sixteen registers are operands.
constexpr int kTokensAvx2 = 4;

FORERUN_INLINE __m256i load_half(const std::uint8_t* line, int half) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line) + half);
}

// Lanes below `count`, which may be larger than there are lanes.
FORERUN_INLINE __m256i first_lanes(std::int64_t count) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), index);
}

FORERUN_INLINE __m256 load_out(const TileArgs& a, int half, int token) {
  const std::int64_t row = half * kHalfRows;
  const float* out = a.out + token * a.out_stride + row;
  return row >= a.rows ? _mm256_setzero_ps() : _mm256_maskload_ps(out, first_lanes(a.rows - row));
}

// Adds the bias and what is there, in this order, and stores the rows that exist.
FORERUN_INLINE void store_half(const TileArgs& a, int half, int token, __m256 sum) {
  const std::int64_t row = half * kHalfRows;
  if (row >= a.rows) return;
  const __m256i mask = first_lanes(a.rows - row);
  float* out = a.out + token * a.out_stride + row;
  if (a.bias != nullptr) sum = _mm256_add_ps(sum, _mm256_maskload_ps(a.bias + row, mask));
  if (a.accumulate) sum = _mm256_add_ps(_mm256_maskload_ps(out, mask), sum);
  _mm256_maskstore_ps(out, mask, sum);
}

// Bytes 0 and 2 of each quad (even) or 1 and 3 (odd), as 16 bits.
FORERUN_INLINE __m256i widen_unsigned(__m256i bytes, int odd) {
  return odd ? _mm256_srli_epi16(bytes, 8) : _mm256_and_si256(bytes, _mm256_set1_epi16(0xff));
}

FORERUN_INLINE __m256i widen_signed(__m256i bytes, int odd) {
  return _mm256_srai_epi16(odd ? bytes : _mm256_slli_epi16(bytes, 8), 8);
}

// The lower or upper nibble of each byte.
FORERUN_INLINE __m256i nibbles(__m256i bytes, int upper) {
  const __m256i shifted = upper ? _mm256_srli_epi16(bytes, 4) : bytes;
  return _mm256_and_si256(shifted, _mm256_set1_epi8(15));
}

// Ends an addition here: else GCC makes the products of many lines first, and keeps them in memory.
FORERUN_INLINE void end_addition(__m256i& sum) { asm("" : "+x"(sum)); }

// Whether 16 bits have room for the products of so many quads of columns: in each lane two of a
// weight up to `largest` and an activation.
constexpr bool has_room(std::int64_t quads, int largest) {
  constexpr int kLargestActivation = 128;
  return quads * 2 * largest * kLargestActivation < 1 << 15;
}

// sum += weight * value, both bytes of a pair together: exact while the sum has room.
FORERUN_INLINE void add_products(__m256i& sum, __m256i weight, __m256i value) {
  sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(weight, value));
  end_addition(sum);
}

// 32-bit sums of each quad's two 16-bit sums.
FORERUN_INLINE __m256i sums_of_quads(__m256i sums) {
  return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
}

// body(half, token), constants both, for T tokens
template <int T, class Body>
FORERUN_INLINE void unroll_halves(Body&& body) {
  unroll<kHalves>([&](auto h) FORERUN_INLINE_BODY {
    unroll<T>([&](auto t) FORERUN_INLINE_BODY { body(h, t); });
  });
}

}  // namespace
}  // namespace forerun::cpu
