// What kernels of a cache of codes share on AVX-512.
#pragma once

#include "avx512_common.h"

namespace forerun::cpu {
namespace {

// The codes of a line as bytes: those in the lower halves of its bytes, and those in the upper.
template <int kPlanes>
FORERUN_INLINE void load_codes(const std::uint8_t* upper, std::ptrdiff_t lower, __m512i (&w)[2]) {
  const __m512i first = _mm512_loadu_si512(upper);
  if constexpr (kPlanes == 1) {
    w[0] = _mm512_and_si512(first, _mm512_set1_epi8(15));
    w[1] = _mm512_and_si512(_mm512_srli_epi16(first, 4), _mm512_set1_epi8(15));
  } else {
    constexpr int kChoose = 0xca;  // bits of the second where the first has ones, else of the third
    const __m512i second = _mm512_loadu_si512(upper + lower);
    const __m512i high = _mm512_set1_epi8(static_cast<char>(0xf0));
    w[0] = _mm512_ternarylogic_epi32(high, _mm512_slli_epi16(first, 4), second, kChoose);
    w[1] = _mm512_ternarylogic_epi32(high, first, _mm512_srli_epi16(second, 4), kChoose);
  }
}

FORERUN_INLINE __m512 scales_of(const std::uint16_t* bf16) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bf16));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

}  // namespace
}  // namespace forerun::cpu
