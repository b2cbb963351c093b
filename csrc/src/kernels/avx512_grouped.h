// The AVX-512 kernels of the groupwise integer formats, by vpdpbusd.
//
// Weights are the unsigned operand, so each dot product carries a surplus of zero point * sum(x)
// over the group. The panel holds its negative, and the integer accumulators start from there.
#pragma once

#include "avx512_common.h"

namespace forerun::cpu {
namespace {

// With two accumulators for each token, more than this do not fit beside the operands: the float
// sums then live in memory, in the first-level cache, and are touched once a group.
constexpr int kSumsInRegisters = 12;

// In assembly to add in the sum's own register: GCC 12 would use d's, and copy.
FORERUN_INLINE __m512 multiply_add(__m512 sum, __m512 d, __m512 scale) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(d), "v"(scale));
  return sum;
}

FORERUN_INLINE __m512 load_scales(const std::uint8_t* scales) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales)));
}

struct Bytes {
  static constexpr bool kOffset = false;
  static constexpr int kPanelRows = 1;  // of T quads for each line of weights
  static FORERUN_INLINE __m512i part(__m512i line, int) { return line; }
};

struct Nibbles {
  static constexpr bool kOffset = false;
  static constexpr int kPanelRows = 2;
  static FORERUN_INLINE __m512i part(__m512i line, int high) {
    const __m512i shifted = high ? _mm512_srli_epi16(line, 4) : line;
    return _mm512_and_si512(shifted, _mm512_set1_epi8(15));
  }
};

template <class Format>
struct Avx512Grouped {
  static constexpr int kMaxTokens = 24;

  template <int T>
  static FORERUN_INLINE void add_group(const __m512i (&acc)[T], const std::uint8_t* scales,
                                       const std::uint32_t* x_head, __m512* sums) {
    const auto add = [&](auto t, __m512 d, __m512 scale) {
      if constexpr (T > kSumsInRegisters) {
        sums[t] = _mm512_fmadd_ps(d, scale, sums[t]);
      } else {
        sums[t] = multiply_add(sums[t], d, scale);
      }
    };
    const __m512 w_scale = load_scales(scales);
    unroll<T>([&](auto t) {
      add(t, _mm512_mul_ps(_mm512_cvtepi32_ps(acc[t]), in_all_lanes(x_head[T + t])), w_scale);
    });
    if constexpr (Format::kOffset) {
      const __m512 w_offset = load_scales(scales + kLine / 2);
      unroll<T>([&](auto t) { add(t, in_all_lanes(x_head[t]), w_offset); });
    }
  }

  template <int T>
  static FORERUN_INLINE void add_line(__m512i (&acc)[T], const std::uint8_t* w,
                                      const std::uint32_t* x) {
    const __m512i line = _mm512_loadu_si512(w);
    unroll<Format::kPanelRows>([&](auto p) {
      const __m512i weight = Format::part(line, p);
      unroll<T>(
          [&](auto t) { acc[t] = dot<Format::kPanelRows * T, p * T + t>(acc[t], weight, x); });
    });
  }

  struct Position {
    const std::uint8_t* w;
    const std::uint32_t* x;
    const std::uint8_t* ahead;
  };

  // One group of at least one line.
  template <int T>
  static FORERUN_INLINE void group(Position& at, std::int64_t lines, std::ptrdiff_t step,
                                   const std::uint8_t* scales, __m512* sums) {
    __m512i acc[T];
    unroll<T>([&](auto t) {
      acc[t] = _mm512_set1_epi32(Format::kOffset ? 0 : static_cast<int>(at.x[t]));
    });
    const std::uint32_t* x_head = at.x;
    at.x += 2 * T;
    const std::uint8_t* end = at.w + lines * kLine;
    do {
      prefetch(at.ahead);
      add_line<T>(acc, at.w, at.x);
      at.w += kLine;
      at.x += Format::kPanelRows * T;
      at.ahead += step;
    } while (at.w != end);
    add_group<T>(acc, scales, x_head, sums);
  }

  template <int T>
  FORERUN_FLATTEN static void run(const TileArgs& a) {
    __m512 memory[T];
    __m512* sums = memory;
    if constexpr (T > kSumsInRegisters) asm("" : "+r"(sums));
    unroll<T>([&](auto t) { sums[t] = _mm512_setzero_ps(); });
    const std::uint8_t* turn = a.weights + a.ahead.switch_line * kLine;
    const std::ptrdiff_t step = a.ahead.step;
    Position at = {a.weights, static_cast<const std::uint32_t*>(a.panel), a.ahead.first};
    for (std::int64_t left = a.lines; left > 0;) {
      if (at.w == turn) at.ahead = a.ahead.second;
      const std::uint8_t* scales = at.w;
      prefetch(at.ahead);
      at.w += kLine;
      at.ahead += step;
      constexpr int kGroups = Format::kOffset ? 1 : 2;
      for (int half = 0; half < kGroups && left > 0; ++half) {
        const std::int64_t lines = left < a.group_lines ? left : a.group_lines;
        // Makes every group load and store the sums that live in memory: the compiler would
        // otherwise keep some in registers as well, and push out accumulators.
        if constexpr (T > kSumsInRegisters) asm volatile("" : : : "memory");
        group<T>(at, lines, step, scales, sums);
        scales += kLine / 2;
        left -= lines;
      }
    }
    unroll<T>([&](auto t) { store_rows(a, t, sums[t]); });
  }
};

}  // namespace
}  // namespace forerun::cpu
