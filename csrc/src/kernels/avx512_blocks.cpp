// The AVX-512 kernels of llama.cpp's blocks.
#include "avx512_grouped.h"

namespace forerun::cpu {
namespace {

// Byte `index` of each lane, as a float.
template <bool kSigned, int kIndex>
FORERUN_INLINE __m512 byte_of(__m512i line) {
  const __m512i top = _mm512_slli_epi32(line, 24 - 8 * kIndex);
  return _mm512_cvtepi32_ps(kSigned ? _mm512_srai_epi32(top, 24) : _mm512_srli_epi32(top, 24));
}

template <int kHigh>
FORERUN_INLINE __m512 half_of(__m512i line) {
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(kHigh ? _mm512_srli_epi32(line, 16) : line));
}

template <class Format>
struct Avx512Blocks {
  static constexpr int kMaxTokens = 8;
  static constexpr int kTileTokens = 4;
  static constexpr int kMaxBlocks = 3;

  struct Position {
    const std::uint8_t* w;
    const std::uint32_t* x;
    const std::uint8_t* ahead;
  };

  // The line at `at`, of all blocks, behind which `at` then is.
  template <int B>
  static FORERUN_INLINE void next_line(const TileArgs& a, Position& at, __m512i (&line)[B]) {
    prefetch(at.ahead, at.w, a.ahead.near);
    unroll<B>([&](auto b) { line[b] = _mm512_loadu_si512(at.w + b * a.block_bytes); });
    at.w += kLine;
    at.ahead += a.ahead.step;
  }

  template <int kQuad>
  static FORERUN_INLINE __m512i codes(__m512i line, __m512i upper) {
    const __m512i nibbles = Nibbles::part(line, kQuad % 2);
    if (Format::kUpper == 0) return nibbles;
    constexpr int kLeft = Format::to_left(kQuad);
    const __m512i moved = kLeft >= 0 ? _mm512_slli_epi16(upper, kLeft >= 0 ? kLeft : 0)
                                     : _mm512_srli_epi16(upper, kLeft >= 0 ? 0 : -kLeft);
    return _mm512_or_si512(nibbles, _mm512_and_si512(moved, _mm512_set1_epi8(Format::kMask)));
  }

  template <int B, int T>
  static FORERUN_INLINE void multiply(const TileArgs& a, Position& at, __m512i (&acc)[B * T]) {
    unroll<T>([&](auto t) {
      const auto surplus = _mm512_set1_epi32(Format::kOffset ? 0 : static_cast<int>(at.x[t]));
      unroll<B>([&](auto b) { acc[b * T + t] = surplus; });
    });
    at.x += 2 * T;
    __m512i upper[B] = {};
    if constexpr (Format::kUpper > 0) next_line<B>(a, at, upper);
    unroll<Format::kLines>([&](auto i) {
      __m512i line[B];
      next_line<B>(a, at, line);
      unroll<2>([&](auto high) {
        constexpr int kQuad = 2 * i + high;
        __m512i weight[B];
        unroll<B>([&](auto b) { weight[b] = codes<kQuad>(line[b], upper[b]); });
        unroll<T>([&](auto t) {
          if constexpr (B == 1) {
            acc[t] = dot<Format::kQuads * T, kQuad * T + t>(acc[t], weight[0], at.x);
          } else {
            const __m512i operand = _mm512_set1_epi32(static_cast<int>(at.x[kQuad * T + t]));
            unroll<B>([&](auto b) { acc[b * T + t] = dot(acc[b * T + t], weight[b], operand); });
          }
        });
      });
    });
    at.x += Format::kQuads * T;
  }

  template <int B, int T, int kGroup>
  static FORERUN_INLINE void add_group(const __m512i (&acc)[B * T], const __m512i (&scales)[B],
                                       const __m512 (&factor)[B], const __m512 (&factor2)[B],
                                       const std::uint32_t* x_head, __m512 (&sums)[B * T]) {
    constexpr int kBytes = Format::kOffset ? 2 : 1;
    unroll<B>([&](auto b) {
      __m512 w_scale;
      if constexpr (Format::kFactors) {
        w_scale = _mm512_mul_ps(byte_of<!Format::kOffset, kBytes * kGroup>(scales[b]), factor[b]);
      } else {
        w_scale = half_of<kGroup>(scales[b]);
      }
      __m512 w_offset = w_scale;
      if constexpr (Format::kOffset)
        w_offset = _mm512_mul_ps(byte_of<false, kBytes * kGroup + 1>(scales[b]), factor2[b]);
      unroll<T>([&](auto t) {
        constexpr int i = b * T + t;
        __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[i]), w_scale);
        if (Format::kOffset) part = _mm512_fmadd_ps(in_all_lanes(x_head[t]), w_offset, part);
        sums[i] = _mm512_fmadd_ps(part, in_all_lanes(x_head[T + t]), sums[i]);
      });
    });
  }

  template <int B, int T>
  static FORERUN_INLINE void run_blocks(const TileArgs& a) {
    __m512 sums[B * T];
    unroll<B * T>([&](auto i) { sums[i] = _mm512_setzero_ps(); });
    const std::uint8_t* turn = a.weights + a.ahead.switch_line * kLine;
    Position at = {a.weights, static_cast<const std::uint32_t*>(a.panel), a.ahead.first};
    for (std::int64_t left = a.lines; left > 0; left -= Format::kValueLines) {
      if (at.w == turn) at.ahead = a.ahead.second;
      __m512i head[B] = {};
      if constexpr (Format::kFactors) next_line<B>(a, at, head);
      __m512 factor[B];
      __m512 factor2[B];
      unroll<B>([&](auto b) {
        factor[b] = half_of<0>(head[b]);
        factor2[b] = half_of<1>(head[b]);
      });
      for (int part = 0; part < Format::kParts; ++part) {
        __m512i scales[B];
        next_line<B>(a, at, scales);
        unroll<Format::kGroups>([&](auto g) {
          const std::uint32_t* x_head = at.x;
          __m512i acc[B * T];
          multiply<B, T>(a, at, acc);
          add_group<B, T, g>(acc, scales, factor, factor2, x_head, sums);
        });
      }
    }
    unroll<B>([&](auto b) { unroll<T>([&](auto t) { store_rows(a, t, sums[b * T + t], b); }); });
  }

  template <int T>
  FORERUN_FLATTEN static void run(const TileArgs& a) {
    if constexpr (T <= kTileTokens) {
      if (a.blocks == 3) return run_blocks<3, T>(a);
      if (a.blocks == 2) return run_blocks<2, T>(a);
    }
    run_blocks<1, T>(a);
  }
};

template <class Format>
KernelSet make_blocks_set(Precision precision) {
  KernelSet set = make_set<Avx512Blocks<Format>>(Level::avx512, precision);
  set.tile_tokens = Avx512Blocks<Format>::kTileTokens;
  set.max_blocks = Avx512Blocks<Format>::kMaxBlocks;
  return set;
}

}  // namespace

const KernelSet& avx512_blocks_set(Precision precision) {
  static const KernelSet sets[] = {
      make_blocks_set<Q4K>(Precision::q4_k), make_blocks_set<Q5K>(Precision::q5_k),
      make_blocks_set<Q6K>(Precision::q6_k), make_blocks_set<Q50>(Precision::q5_0)};
  return sets[static_cast<int>(precision) - static_cast<int>(Precision::q4_k)];
}

}  // namespace forerun::cpu
