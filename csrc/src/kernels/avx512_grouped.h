// The AVX-512 kernels of the groupwise integer formats, by vpdpbusd.
//
// Weights are the unsigned operand, so each dot product carries a surplus of zero point * sum(x)
// over the group. The panel holds its negative, and the integer accumulators start from there.
#pragma once

#include "avx512_common.h"

namespace forerun::cpu {
namespace {

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
  // Of three registers each: sums of a group, of what shares a scale of the activations, and of
  // all. Wider tiles keep some in memory and take longer than reading the weights, by then in the
  // first-level cache, once more.
  static constexpr int kMaxTokens = 8;

  // The group is the first or last, or both, of those that share a scale of the activations.
  template <int T, bool kFirst, bool kLast>
  static FORERUN_INLINE void add_group(const __m512i (&acc)[T], const std::uint8_t* scales,
                                       const std::uint32_t* x_head, __m512 (&parts)[T],
                                       __m512 (&sums)[T]) {
    const __m512 w_scale = load_scales(scales);
    const __m512 w_offset = Format::kOffset ? load_scales(scales + kLine / 2) : w_scale;
    unroll<T>([&](auto t) {
      const __m512 d = _mm512_cvtepi32_ps(acc[t]);
      __m512 part = kFirst ? _mm512_mul_ps(d, w_scale) : _mm512_fmadd_ps(d, w_scale, parts[t]);
      if (Format::kOffset) part = _mm512_fmadd_ps(in_all_lanes(x_head[t]), w_offset, part);
      if (kLast) {
        sums[t] = _mm512_fmadd_ps(part, in_all_lanes(x_head[T + t]), sums[t]);
      } else {
        parts[t] = part;
      }
    });
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
  static FORERUN_INLINE void multiply(Position& at, std::int64_t lines, std::ptrdiff_t step,
                                      __m512i (&acc)[T]) {
    unroll<T>([&](auto t) {
      acc[t] = _mm512_set1_epi32(Format::kOffset ? 0 : static_cast<int>(at.x[t]));
    });
    at.x += 2 * T;
    const std::uint8_t* end = at.w + lines * kLine;
    do {
      prefetch(at.ahead);
      add_line<T>(acc, at.w, at.x);
      at.w += kLine;
      at.x += Format::kPanelRows * T;
      at.ahead += step;
    } while (at.w != end);
  }

  template <int T>
  FORERUN_FLATTEN static void run(const TileArgs& a) {
    __m512 sums[T];
    __m512 parts[T];
    unroll<T>([&](auto t) { sums[t] = parts[t] = _mm512_setzero_ps(); });
    const std::uint8_t* turn = a.weights + a.ahead.switch_line * kLine;
    const std::ptrdiff_t step = a.ahead.step;
    Position at = {a.weights, static_cast<const std::uint32_t*>(a.panel), a.ahead.first};
    const std::uint8_t* scales = nullptr;
    bool first = true;
    std::int64_t left = a.lines;
    for (std::int64_t group = 0; left > 0; ++group) {
      if (Format::kOffset || group % 2 == 0) {
        if (at.w == turn) at.ahead = a.ahead.second;
        scales = at.w;
        prefetch(at.ahead);
        at.w += kLine;
        at.ahead += step;
      } else {
        scales += kLine / 2;
      }
      const std::int64_t lines = left < a.group_lines ? left : a.group_lines;
      left -= lines;
      const std::uint32_t* x_head = at.x;
      __m512i acc[T];
      multiply<T>(at, lines, step, acc);
      const bool last = left == 0 || a.ends_scale(group);
      if (!last) {
        add_group<T, true, false>(acc, scales, x_head, parts, sums);
      } else if (first) {
        add_group<T, true, true>(acc, scales, x_head, parts, sums);
      } else {
        add_group<T, false, true>(acc, scales, x_head, parts, sums);
      }
      first = last;
    }
    unroll<T>([&](auto t) { store_rows(a, t, sums[t]); });
  }
};

}  // namespace
}  // namespace forerun::cpu
