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

template <int kWidth, int kIndex>
FORERUN_INLINE __m512i dot(__m512i acc, __m512i weight, const std::uint32_t* x) {
  FORERUN_BROADCAST_STEP("vpdpbusd", acc, weight, x, kWidth, kIndex);
  return acc;
}

// In assembly to add in the sum's own register: GCC 12 would use d's, and copy.
FORERUN_INLINE __m512 multiply_add(__m512 sum, __m512 d, __m512 scale) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(d), "v"(scale));
  return sum;
}

FORERUN_INLINE __m512 load_scales(const std::uint8_t* scales) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales)));
}

FORERUN_INLINE __m512 in_all_lanes(std::uint32_t bits) {
  return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(bits)));
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
  static constexpr int kTokensUnaided = kUnaided;
  static constexpr int kTokensInOneRow = 2;

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

  // Line `kIndex` behind w.
  template <int T, int kIndex>
  static FORERUN_INLINE void add_line(__m512i (&acc)[T], const std::uint8_t* w,
                                      const std::uint32_t* x) {
    constexpr int kWidth = Format::kPanelRows * T;
    const __m512i line = _mm512_loadu_si512(w + kIndex * kLine);
    unroll<Format::kPanelRows>([&](auto p) {
      const __m512i weight = Format::part(line, p);
      unroll<T>([&](auto t) {
        acc[t] = dot<(kIndex + 1) * kWidth, kIndex * kWidth + p * T + t>(acc[t], weight, x);
      });
    });
  }

  // All lines of a full group in one row, for up to kTokensInOneRow: a loop, and waiting for one
  // chain of dot products, would take longer than the lines. Sums of integers are exact in any
  // order.
  template <int T, int kLines>
  static FORERUN_INLINE void add_full_group(__m512i (&acc)[T], const std::uint8_t* w,
                                            const std::uint32_t* x) {
    __m512i second[T];
    unroll<T>([&](auto t) { second[t] = _mm512_setzero_si512(); });
    unroll<kLines / 2>([&](auto i) {
      // Keeps the loads in the order of the lines, by which the processor recognizes a stream.
      asm volatile("" : "+r"(w));
      add_line<T, 2 * i>(acc, w, x);
      asm volatile("" : "+r"(w));
      add_line<T, 2 * i + 1>(second, w, x);
    });
    unroll<T>([&](auto t) { acc[t] = _mm512_add_epi32(acc[t], second[t]); });
  }

  struct Position {
    const std::uint8_t* w;
    const std::uint32_t* x;
    const std::uint8_t* ahead;
  };

  // One group of at least one line; kLines: of a full group, or 0 for any number.
  template <int T, int kLines>
  static FORERUN_INLINE void group(Position& at, std::int64_t lines, std::ptrdiff_t step,
                                   const std::uint8_t* scales, __m512* sums) {
    constexpr int kWidth = Format::kPanelRows * T;
    __m512i acc[T];
    unroll<T>([&](auto t) {
      acc[t] = _mm512_set1_epi32(Format::kOffset ? 0 : static_cast<int>(at.x[t]));
    });
    const std::uint32_t* x = at.x + 2 * T;
    if (kLines > 0 && lines == kLines) {
      add_full_group<T, kLines>(acc, at.w, x);
    } else {
      const std::uint8_t* w = at.w;
      const std::uint8_t* end = w + lines * kLine;
      const std::uint8_t* ahead = at.ahead;
      do {
        if constexpr (T > kTokensUnaided) prefetch(ahead);
        add_line<T, 0>(acc, w, x);
        w += kLine;
        x += kWidth;
        ahead += step;
      } while (w != end);
    }
    add_group<T>(acc, scales, at.x, sums);
    at.w += lines * kLine;
    at.x += 2 * T + lines * kWidth;
    at.ahead += lines * step;
  }

  template <int T, int kLines>
  static FORERUN_INLINE void run_groups(const TileArgs& a) {
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
      if constexpr (T > kTokensUnaided) prefetch(at.ahead);
      at.w += kLine;
      at.ahead += step;
      constexpr int kGroups = Format::kOffset ? 1 : 2;
      for (int half = 0; half < kGroups && left > 0; ++half) {
        const std::int64_t lines = left < a.group_lines ? left : a.group_lines;
        // Makes every group load and store the sums that live in memory: the compiler would
        // otherwise keep some in registers as well, and push out accumulators.
        if constexpr (T > kSumsInRegisters) asm volatile("" : : : "memory");
        group<T, kLines>(at, lines, step, scales, sums);
        scales += kLine / 2;
        left -= lines;
      }
    }
    unroll<T>([&](auto t) { store_rows(a, t, sums[t]); });
  }

  template <int T>
  FORERUN_FLATTEN static void run(const TileArgs& a) {
    if constexpr (T <= kTokensInOneRow) {
      switch (a.group_lines) {
        case 8: return run_groups<T, 8>(a);
        case 16: return run_groups<T, 16>(a);
        case 32: return run_groups<T, 32>(a);
        default: break;
      }
    }
    run_groups<T, 0>(a);
  }
};

}  // namespace
}  // namespace forerun::cpu
