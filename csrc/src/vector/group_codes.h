// Groups of a token as integers, eight scales at a time: what a group waits for (its largest value,
// a quotient, its sum) eight wait for together.
#pragma once

#if defined(__AVX512BW__)
#include <immintrin.h>
#endif

#include "../unroll.h"
#include "lanes.h"
#include "vector_set.h"

namespace forerun::cpu {
namespace {

constexpr std::uint32_t kInfinity = 0x7f800000u;  // as bits; and the least that is no number
constexpr std::uint32_t kNan = 0x7fc00000u;
constexpr float kLeastPeak = 0x1p-100f;  // below it a reciprocal need not exist

#if defined(__AVX512BW__)
// The largest in each lane.
template <int kGroup>
inline __m512i magnitudes(const float* x) {
  __m512i largest = _mm512_setzero_si512();
  for (int i = 0; i < kGroup; i += kLanes) {
    const __m512i bits = _mm512_loadu_si512(x + i);
    largest = _mm512_max_epu32(largest, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
  }
  return largest;
}
#endif

// As bits, because so a NaN outranks every number.
template <int kGroup>
inline std::uint32_t largest_magnitude(const float* x) {
#if defined(__AVX512BW__)
  return _mm512_reduce_max_epu32(magnitudes<kGroup>(x));
#else
  std::uint32_t largest = 0;
  for (int i = 0; i < kGroup; ++i) {
    const std::uint32_t magnitude = bits_of(x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
#endif
}

// Codes, value * factor, of which the largest magnitude has `most`.
struct GroupScale {
  float factor;
  float scale;  // value = code * scale
};

// Of a group that holds a NaN or infinity only the scale counts, a NaN.
inline GroupScale scale_for(std::uint32_t largest, float most) {
  if (largest >= kInfinity) return {0.0f, float_of(kNan)};
  const float peak = float_of(largest);
  if (peak < kLeastPeak) return {0.0f, 0.0f};
  return {most / peak, peak / most};
}

constexpr float kMostCode = 127.0f;

// Of kShare values that have a scale, one group or several: as scale_for says; where it is a NaN,
// codes and sums are anything.
template <int kShare, int kGroup>
struct GroupCodes {
  static constexpr int kValues = kPackedScales * kShare;

  alignas(64) std::int8_t codes[kValues];
  alignas(64) float scales[kPackedScales];  // value = code * scale
  alignas(64) std::int32_t sums[kValues / kGroup];

  void round(const float* x);  // kValues of them
};

#if defined(__AVX512BW__)

// One value for each of eight vectors: its lanes, put together by `op`.
template <class Op>
inline __m256i across_lanes(const __m512i (&v)[8], Op op) {
  __m512i twos[4];
  for (int i = 0; i < 4; ++i) {
    twos[i] = op(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
                 _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
  }
  __m512i fours[2];
  for (int i = 0; i < 2; ++i) {
    fours[i] = op(_mm512_unpacklo_epi64(twos[2 * i], twos[2 * i + 1]),
                  _mm512_unpackhi_epi64(twos[2 * i], twos[2 * i + 1]));
  }
  // Quarters: of fours[0] the first two, of fours[1] the others.
  const __m512i halves = op(_mm512_shuffle_i64x2(fours[0], fours[1], 0x44),
                            _mm512_shuffle_i64x2(fours[0], fours[1], 0xEE));
  const __m512i all = op(halves, _mm512_shuffle_i64x2(halves, halves, 0xB1));
  return _mm512_castsi512_si256(_mm512_shuffle_i64x2(all, all, 0x08));
}

// Sixty-four words, as packing left them in two vectors, as bytes in their order.
inline __m512i in_order(__m512i first, __m512i second) {
  const __m512i fours = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(fours, _mm512_packs_epi16(first, second));
}

template <int kShare, int kGroup>
void GroupCodes<kShare, kGroup>::round(const float* x) {
  constexpr int kStored = 4 * kLanes;
  __m512i largest[kPackedScales];
  for (int s = 0; s < kPackedScales; ++s) largest[s] = magnitudes<kShare>(x + s * kShare);
  // From here to the factors: scale_for, of all.
  const __m256i peaks =
      across_lanes(largest, [](__m512i a, __m512i b) { return _mm512_max_epu32(a, b); });
  const __m256 peak = _mm256_castsi256_ps(peaks);
  const __mmask8 broken = _mm256_cmpge_epu32_mask(peaks, _mm256_set1_epi32(kInfinity));
  const __mmask8 counts = _mm256_cmp_ps_mask(peak, _mm256_set1_ps(kLeastPeak), _CMP_GE_OQ);
  const __m256 most = _mm256_set1_ps(kMostCode);
  const __m256 scale = _mm256_maskz_div_ps(counts, peak, most);
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(kNan));
  _mm256_store_ps(scales, _mm256_mask_mov_ps(scale, broken, nan));
  alignas(64) float factors[kPackedScales];
  _mm256_store_ps(factors, _mm256_maskz_div_ps(counts, most, peak));

  __m512i sum[8];
  unroll<kValues / kStored>([&](auto part) FORERUN_INLINE_BODY {
    __m512i rounded[4];
    unroll<4>([&](auto i) FORERUN_INLINE_BODY {
      constexpr int kFirst = part * kStored + i * kLanes;
      const __m512 factor = _mm512_set1_ps(factors[kFirst / kShare]);
      rounded[i] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + kFirst), factor));
      __m512i& of_group = sum[kFirst / kGroup % 8];
      of_group = kFirst % kGroup == 0 ? rounded[i] : _mm512_add_epi32(of_group, rounded[i]);
    });
    _mm512_store_si512(codes + part * kStored,
                       in_order(_mm512_packs_epi32(rounded[0], rounded[1]),
                                _mm512_packs_epi32(rounded[2], rounded[3])));
    constexpr int kDone = (part + 1) * kStored;
    if constexpr (kDone % (8 * kGroup) == 0) {
      const __m256i of_groups =
          across_lanes(sum, [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); });
      _mm256_store_si256(reinterpret_cast<__m256i*>(sums + kDone / kGroup - 8), of_groups);
    }
  });
}

#else

template <int kShare, int kGroup>
void GroupCodes<kShare, kGroup>::round(const float* x) {
  for (int s = 0; s < kPackedScales; ++s) {
    const GroupScale g = scale_for(largest_magnitude<kShare>(x + s * kShare), kMostCode);
    scales[s] = g.scale;
    for (int i = s * kShare; i < (s + 1) * kShare; ++i)
      codes[i] = static_cast<std::int8_t>(round_to_int(x[i] * g.factor));
  }
  for (int g = 0; g < kValues / kGroup; ++g) {
    sums[g] = 0;
    for (int i = 0; i < kGroup; ++i) sums[g] += codes[g * kGroup + i];
  }
}

#endif

}  // namespace
}  // namespace forerun::cpu
