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
  // One block for eight tokens, which takes all registers: with several blocks and their factors
  // sums would go to memory, in twice to three times the time.
  static constexpr int kMaxTokens = 8;

  struct Position {
    const std::uint8_t* w;
    const std::uint32_t* x;
    const std::uint8_t* ahead;
  };

  // The line at `at`, behind which `at` then is.
  static FORERUN_INLINE __m512i next_line(const TileArgs& a, Position& at) {
    prefetch(at.ahead, at.w, a.ahead.near);
    const __m512i line = _mm512_loadu_si512(at.w);
    at.w += kLine;
    at.ahead += a.ahead.step;
    return line;
  }

  // In each 128 bits, the values of codes as unsigned bytes.
  static FORERUN_INLINE __m512i listed() {
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kListed));
    return _mm512_broadcast_i32x4(_mm_xor_si128(values, _mm_set1_epi8(kListedZero - 256)));
  }

  template <int kQuad>
  static FORERUN_INLINE __m512i codes(__m512i line, __m512i upper) {
    const __m512i nibbles = Nibbles::part(line, kQuad % 2);
    if (Format::kIsListed) return _mm512_shuffle_epi8(listed(), nibbles);
    if (Format::kUpper == 0) return nibbles;
    constexpr int kLeft = Format::to_left(kQuad);
    const __m512i moved = kLeft >= 0 ? _mm512_slli_epi16(upper, kLeft >= 0 ? kLeft : 0)
                                     : _mm512_srli_epi16(upper, kLeft >= 0 ? 0 : -kLeft);
    return _mm512_or_si512(nibbles, _mm512_and_si512(moved, _mm512_set1_epi8(Format::kMask)));
  }

  template <int T>
  static FORERUN_INLINE void multiply(const TileArgs& a, Position& at, __m512i (&acc)[T]) {
    unroll<T>([&](auto t) FORERUN_INLINE_BODY {
      const auto surplus = _mm512_set1_epi32(Format::kOffset ? 0 : static_cast<int>(at.x[t]));
      acc[t] = surplus;
    });
    at.x += 2 * T;
    __m512i upper = {};
    if constexpr (Format::kUpper > 0) upper = next_line(a, at);
    unroll<Format::kLines>([&](auto i) FORERUN_INLINE_BODY {
      const __m512i line = next_line(a, at);
      unroll<2>([&](auto high) FORERUN_INLINE_BODY {
        constexpr int kQuad = 2 * i + high;
        const __m512i weight = codes<kQuad>(line, upper);
        unroll<T>([&](auto t) FORERUN_INLINE_BODY {
          acc[t] = dot<Format::kQuads * T, kQuad * T + t>(acc[t], weight, at.x);
        });
      });
    });
    at.x += Format::kQuads * T;
  }

  template <int T, int kGroup>
  static FORERUN_INLINE void add_group(const __m512i (&acc)[T], __m512i scales, __m512 factor,
                                       __m512 factor2, const std::uint32_t* x_head,
                                       __m512 (&sums)[T]) {
    constexpr int kBytes = Format::kOffset ? 2 : 1;
    __m512 w_scale;
    if constexpr (Format::kFactors) {
      w_scale = _mm512_mul_ps(byte_of<!Format::kOffset, kBytes * kGroup>(scales), factor);
    } else {
      w_scale = half_of<kGroup>(scales);
    }
    __m512 w_offset = w_scale;
    if constexpr (Format::kOffset)
      w_offset = _mm512_mul_ps(byte_of<false, kBytes * kGroup + 1>(scales), factor2);
    unroll<T>([&](auto t) FORERUN_INLINE_BODY {
      __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(acc[t]), w_scale);
      if (Format::kOffset) part = _mm512_fmadd_ps(in_all_lanes(x_head[t]), w_offset, part);
      sums[t] = _mm512_fmadd_ps(part, in_all_lanes(x_head[T + t]), sums[t]);
    });
  }

  template <int T>
  FORERUN_FLATTEN static void run(const TileArgs& a) {
    __m512 sums[T];
    unroll<T>([&](auto i) FORERUN_INLINE_BODY { sums[i] = _mm512_setzero_ps(); });
    const std::uint8_t* turn = a.weights + a.ahead.switch_line * kLine;
    Position at = {a.weights, static_cast<const std::uint32_t*>(a.panel), a.ahead.first};
    for (std::int64_t left = a.lines; left > 0; left -= Format::kValueLines) {
      if (at.w == turn) at.ahead = a.ahead.second;
      __m512i head = {};
      if constexpr (Format::kFactors) head = next_line(a, at);
      const __m512 factor = half_of<0>(head);
      const __m512 factor2 = half_of<1>(head);
      for (int part = 0; part < Format::kParts; ++part) {
        const __m512i scales = next_line(a, at);
        unroll<Format::kGroups>([&](auto g) FORERUN_INLINE_BODY {
          const std::uint32_t* x_head = at.x;
          __m512i acc[T];
          multiply<T>(a, at, acc);
          add_group<T, g>(acc, scales, factor, factor2, x_head, sums);
        });
      }
    }
    unroll<T>([&](auto t) FORERUN_INLINE_BODY { store_rows(a, t, sums[t]); });
  }
};

template <class Format>
KernelSet make_blocks_set(Precision precision) {
  return make_set<Avx512Blocks<Format>>(Level::avx512, precision);
}

}  // namespace

const KernelSet& avx512_blocks_set(Precision precision) {
  static const KernelSet sets[] = {
      make_blocks_set<Q4K>(Precision::q4_k),     make_blocks_set<Q5K>(Precision::q5_k),
      make_blocks_set<Q6K>(Precision::q6_k),     make_blocks_set<Q50>(Precision::q5_0),
      make_blocks_set<Iq4Nl>(Precision::iq4_nl), make_blocks_set<Iq4Xs>(Precision::iq4_xs)};
  return sets[static_cast<int>(precision) - static_cast<int>(Precision::q4_k)];
}

}  // namespace forerun::cpu
