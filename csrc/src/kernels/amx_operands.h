// Weights on their way into tiles of integers, and sums that come out of them.
//
// While tiles are at work, a processor multiplies, converts and shifts 512 bits on one port instead
// of two, and that port has most to do: what another can do is left to it. (Measured on Granite
// Rapids: 96 multiply-adds take 96 cycles then instead of 49, additions and permutations no
// longer.)
#pragma once

#include <immintrin.h>

#include "fill_set.h"

namespace forerun::cpu {
namespace {

// 16 * (n - 8) for the 16 nibbles n, as signed bytes, or 16 * n; four times, as the permutation of
// bytes looks at six bits.
template <class Format>
struct Nibble16 {
  static constexpr int kSign = Format::kOffset ? 0 : 0x80;
  alignas(64) std::uint8_t of[kLine];
  constexpr Nibble16() : of() {
    for (int i = 0; i < kLine; ++i) of[i] = static_cast<std::uint8_t>((i % 16 * 16) ^ kSign);
  }
};
template <class Format>
constexpr Nibble16<Format> kNibble16;

// 16 times the lower or upper nibbles of a line, one a byte, less their zero point where they have
// one: so the upper ones stay where they are. Neither takes the port that multiplies.
template <class Format>
FORERUN_INLINE __m512i nibbles16(__m512i line, int upper) {
  constexpr int kAndXor = 0x6A;
  if (upper) {
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(Nibble16<Format>::kSign));
    return _mm512_ternarylogic_epi32(line, _mm512_set1_epi8(static_cast<char>(0xF0)), sign,
                                     kAndXor);
  }
  return _mm512_permutexvar_epi8(line, _mm512_load_si512(kNibble16<Format>.of));
}

// float(d), by addition to a float whose last bit is worth 1.
FORERUN_INLINE __m512 to_floats(__m512i d) {
  static_assert(128 * 127 * 255 < 1 << 22);  // the most that |d| can be
  const __m512 middle = _mm512_set1_ps(0x1.8p23f);
  const __m512i sum = _mm512_add_epi32(d, _mm512_castps_si512(middle));
  return _mm512_sub_ps(_mm512_castsi512_ps(sum), middle);
}

}  // namespace
}  // namespace forerun::cpu
