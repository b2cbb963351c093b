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
  static constexpr bool kShared = false;  // two groups may share a scale of the activations
  static constexpr int kPanelRows = 1;    // of T quads for each line of weights
  static FORERUN_INLINE __m512i part(__m512i line, int) { return line; }
};

struct Nibbles {
  static constexpr bool kOffset = false;
  static constexpr bool kShared = true;
  static constexpr int kPanelRows = 2;
  static FORERUN_INLINE __m512i part(__m512i line, int high) {
    const __m512i shifted = high ? _mm512_srli_epi16(line, 4) : line;
    return _mm512_and_si512(shifted, _mm512_set1_epi8(15));
  }
};

template <class Format>
struct Avx512Grouped {
  // A processor that starts two of these products in a cycle has eight under way, so it takes more
  // sums than eight to keep it busy where a group ends. Three blocks for four tokens have twelve,
  // and each operand that is read serves three products or four; but then weights come from three
  // places. So where one pass of one block suffices, that is what runs, its weights one stream: of
  // bytes for up to sixteen tokens, which takes all registers, of nibbles for up to eight, as each
  // token has a third register, the sum of groups that share a scale of the activations.
  static constexpr int kMaxTokens = Format::kPanelRows == 1 ? 16 : 8;
  static constexpr int kTileTokens = 4;
  static constexpr int kMaxBlocks = 3;
  static_assert(kMaxBlocks * kTileTokens <= kMaxTileTokens);

  // In the first of the blocks, in the panel, and in what follows.
  struct Position {
    const std::uint8_t* w;
    const std::uint32_t* x;
    const std::uint8_t* ahead;
  };

  // The group is the first or last, or both, of those that share a scale of the activations.
  template <int B, int T, bool kFirst, bool kLast>
  static FORERUN_INLINE void add_group(const TileArgs& a, const __m512i (&acc)[B * T],
                                       const std::uint8_t* scales, const std::uint32_t* x_head,
                                       __m512 (&parts)[B * T], __m512 (&sums)[B * T]) {
    unroll<B>([&](auto b) {
      const std::uint8_t* own = scales + b * a.block_bytes;
      const __m512 w_scale = load_scales(own);
      const __m512 w_offset = Format::kOffset ? load_scales(own + kLine / 2) : w_scale;
      unroll<T>([&](auto t) {
        constexpr int i = b * T + t;
        const __m512 d = _mm512_cvtepi32_ps(acc[i]);
        __m512 part = kFirst ? _mm512_mul_ps(d, w_scale) : _mm512_fmadd_ps(d, w_scale, parts[i]);
        if (Format::kOffset) part = _mm512_fmadd_ps(in_all_lanes(x_head[t]), w_offset, part);
        if (kLast) {
          sums[i] = _mm512_fmadd_ps(part, in_all_lanes(x_head[T + t]), sums[i]);
        } else {
          parts[i] = part;
        }
      });
    });
  }

  template <int B, int T>
  static FORERUN_INLINE void add_line(const TileArgs& a, __m512i (&acc)[B * T],
                                      const std::uint8_t* w, const std::uint32_t* x) {
    __m512i line[B];
    unroll<B>([&](auto b) { line[b] = _mm512_loadu_si512(w + b * a.block_bytes); });
    unroll<Format::kPanelRows>([&](auto p) {
      constexpr int kWidth = Format::kPanelRows * T;
      __m512i weight[B];
      unroll<B>([&](auto b) { weight[b] = Format::part(line[b], p); });
      unroll<T>([&](auto t) {
        if constexpr (B == 1) {
          acc[t] = dot<kWidth, p * T + t>(acc[t], weight[0], x);
        } else {
          const __m512i operand = _mm512_set1_epi32(static_cast<int>(x[p * T + t]));
          unroll<B>([&](auto b) { acc[b * T + t] = dot(acc[b * T + t], weight[b], operand); });
        }
      });
    });
  }

  // One group of at least one line.
  template <int B, int T>
  static FORERUN_INLINE void multiply(const TileArgs& a, Position& at, std::int64_t lines,
                                      __m512i (&acc)[B * T]) {
    unroll<T>([&](auto t) {
      const auto surplus = _mm512_set1_epi32(Format::kOffset ? 0 : static_cast<int>(at.x[t]));
      unroll<B>([&](auto b) { acc[b * T + t] = surplus; });
    });
    at.x += 2 * T;
    const std::uint8_t* end = at.w + lines * kLine;
    do {
      prefetch(at.ahead, at.w, a.ahead.near);
      add_line<B, T>(a, acc, at.w, at.x);
      at.w += kLine;
      at.x += Format::kPanelRows * T;
      at.ahead += a.ahead.step;
    } while (at.w != end);
  }

  template <int B, int T>
  static FORERUN_INLINE void run_blocks(const TileArgs& a) {
    __m512 sums[B * T];
    __m512 parts[B * T];
    unroll<B * T>([&](auto i) { sums[i] = parts[i] = _mm512_setzero_ps(); });
    unroll<B>([&](auto b) {
      unroll<T>([&](auto t) { prefetch_to_store(a.out + t * a.out_stride + b * kBlockRows); });
    });
    const std::uint8_t* turn = a.weights + a.ahead.switch_line * kLine;
    Position at = {a.weights, static_cast<const std::uint32_t*>(a.panel), a.ahead.first};
    const std::uint8_t* scales = nullptr;
    bool first = true;
    std::int64_t left = a.lines;
    for (std::int64_t group = 0; left > 0; ++group) {
      if (Format::kOffset || group % 2 == 0) {
        if (at.w == turn) at.ahead = a.ahead.second;
        scales = at.w;
        prefetch(at.ahead, at.w, a.ahead.near);
        at.w += kLine;
        at.ahead += a.ahead.step;
      } else {
        scales += kLine / 2;
      }
      const std::int64_t lines = left < a.group_lines ? left : a.group_lines;
      left -= lines;
      const std::uint32_t* x_head = at.x;
      __m512i acc[B * T];
      multiply<B, T>(a, at, lines, acc);
      const bool last = !Format::kShared || left == 0 || a.ends_scale(group);
      if (!last) {
        add_group<B, T, true, false>(a, acc, scales, x_head, parts, sums);
      } else if (!Format::kShared || first) {
        add_group<B, T, true, true>(a, acc, scales, x_head, parts, sums);
      } else {
        add_group<B, T, false, true>(a, acc, scales, x_head, parts, sums);
      }
      first = last;
    }
    unroll<B>([&](auto b) { unroll<T>([&](auto t) { store_rows(a, t, sums[b * T + t], b); }); });
  }

  template <int T>
  FORERUN_FLATTEN static void run(const TileArgs& a) {
    static_assert(kMaxBlocks == 3);
    if constexpr (T <= kTileTokens) {
      if (a.blocks == 3) return run_blocks<3, T>(a);
      if (a.blocks == 2) return run_blocks<2, T>(a);
    }
    run_blocks<1, T>(a);
  }
};

template <class Format>
KernelSet make_grouped_set(Precision precision) {
  KernelSet set = make_set<Avx512Grouped<Format>>(Level::avx512, precision);
  set.tile_tokens = Avx512Grouped<Format>::kTileTokens;
  set.max_blocks = Avx512Grouped<Format>::kMaxBlocks;
  return set;
}

}  // namespace
}  // namespace forerun::cpu
