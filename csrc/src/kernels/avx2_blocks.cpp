// The AVX2 kernels of llama.cpp's blocks; multiplied like the nibbles of avx2_grouped.cpp. Of
// listed values vpmaddubsw takes the magnitude, and the activation their sign; one pair of products
// fills 16 bits.
#include "avx2_common.h"

namespace forerun::cpu {
namespace {

FORERUN_INLINE __m256 in_all_lanes(std::uint32_t bits) {
  return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(bits)));
}

// Byte `index` of each lane, as a float.
FORERUN_INLINE __m256 byte_of(__m256i line, bool is_signed, int index) {
  const __m256i top = _mm256_slli_epi32(line, 24 - 8 * index);
  return _mm256_cvtepi32_ps(is_signed ? _mm256_srai_epi32(top, 24) : _mm256_srli_epi32(top, 24));
}

FORERUN_INLINE __m256 half_of(__m256i line, int high) {
  const __m256i halves =
      high ? _mm256_srli_epi32(line, 16) : _mm256_and_si256(line, _mm256_set1_epi32(0xffff));
  return _mm256_cvtph_ps(
      _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
}

template <class Format>
struct Avx2Blocks {
  static constexpr int kMaxTokens = kTokensAvx2;
  // Weights are multiplied as they are: there is no surplus of a zero point.
  static constexpr bool kIsSigned = Format::kOffset || Format::kIsListed;

  struct Position {
    const std::uint8_t* w;
    const std::uint32_t* x;
    const std::uint8_t* ahead;
  };

  static FORERUN_INLINE const std::uint8_t* next_line(const TileArgs& a, Position& at) {
    const std::uint8_t* line = at.w;
    prefetch(at.ahead, line, a.ahead.near);
    at.w += kLine;
    at.ahead += a.ahead.step;
    return line;
  }

  // The values of codes, in each 128 bits.
  static FORERUN_INLINE __m256i listed() {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kListed)));
  }

  static FORERUN_INLINE __m256i codes(__m256i line, const std::uint8_t* upper, int half, int quad) {
    const __m256i lower = nibbles(line, quad % 2);
    if (Format::kIsListed) return _mm256_shuffle_epi8(listed(), lower);
    if (Format::kUpper == 0) return lower;
    const int left = Format::to_left(quad);
    const __m256i bits = load_half(upper, half);
    const __m256i moved =
        left >= 0 ? _mm256_slli_epi16(bits, left) : _mm256_srli_epi16(bits, -left);
    return _mm256_or_si256(lower, _mm256_and_si256(moved, _mm256_set1_epi8(Format::kMask)));
  }

  template <int T>
  static FORERUN_INLINE void multiply(const TileArgs& a, Position& at, __m256i (&acc)[kHalves][T]) {
    unroll_halves<T>([&](auto h, auto t) FORERUN_INLINE_BODY {
      acc[h][t] = _mm256_set1_epi32(kIsSigned ? 0 : static_cast<int>(at.x[t]));
    });
    at.x += 2 * T;
    if constexpr (Format::kIsListed) {
      multiply_listed<T>(a, at, acc);
    } else {
      multiply_codes<T>(a, at, acc);
    }
    at.x += Format::kQuads * T;
  }

  template <int T>
  static FORERUN_INLINE void multiply_listed(const TileArgs& a, Position& at,
                                             __m256i (&acc)[kHalves][T]) {
    static_assert(has_room(1, -kListed[0]));
    unroll<Format::kLines>([&](auto i) FORERUN_INLINE_BODY {
      const std::uint8_t* line = next_line(a, at);
      unroll<2>([&](auto high) FORERUN_INLINE_BODY {
        __m256i weight[kHalves];
        __m256i magnitude[kHalves];
        unroll<kHalves>([&](auto h) FORERUN_INLINE_BODY {
          weight[h] = codes(load_half(line, h), nullptr, h, high);
          magnitude[h] = _mm256_abs_epi8(weight[h]);
        });
        unroll<T>([&](auto t) FORERUN_INLINE_BODY {
          const __m256i value = _mm256_set1_epi32(static_cast<int>(at.x[(2 * i + high) * T + t]));
          unroll<kHalves>([&](auto h) FORERUN_INLINE_BODY {
            const __m256i signed_value = _mm256_sign_epi8(value, weight[h]);
            acc[h][t] = _mm256_add_epi32(
                acc[h][t], sums_of_quads(_mm256_maddubs_epi16(magnitude[h], signed_value)));
            end_addition(acc[h][t]);
          });
        });
      });
    });
  }

  template <int T>
  static FORERUN_INLINE void multiply_codes(const TileArgs& a, Position& at,
                                            __m256i (&acc)[kHalves][T]) {
    const std::uint8_t* upper = Format::kUpper > 0 ? next_line(a, at) : nullptr;
    constexpr int kTogether = 4 >> Format::kUpper;  // lines
    static_assert(has_room(2 * kTogether, (16 << Format::kUpper) - 1));
    unroll<Format::kLines / kTogether>([&](auto part) FORERUN_INLINE_BODY {
      __m256i sums[kHalves][T];
      unroll_halves<T>([&](auto h, auto t)
                           FORERUN_INLINE_BODY { sums[h][t] = _mm256_setzero_si256(); });
      unroll<kTogether>([&](auto i) FORERUN_INLINE_BODY {
        const std::uint8_t* line = next_line(a, at);
        unroll<2>([&](auto high) FORERUN_INLINE_BODY {
          constexpr int kQuad = 2 * (part * kTogether + i) + high;
          __m256i weight[kHalves];
          unroll<kHalves>([&](auto h) FORERUN_INLINE_BODY {
            weight[h] = codes(load_half(line, h), upper, h, kQuad);
          });
          unroll<T>([&](auto t) FORERUN_INLINE_BODY {
            const __m256i value = _mm256_set1_epi32(static_cast<int>(at.x[kQuad * T + t]));
            unroll<kHalves>(
                [&](auto h) FORERUN_INLINE_BODY { add_products(sums[h][t], weight[h], value); });
          });
        });
      });
      unroll_halves<T>([&](auto h, auto t) FORERUN_INLINE_BODY {
        acc[h][t] = _mm256_add_epi32(acc[h][t], sums_of_quads(sums[h][t]));
      });
    });
  }

  template <int T>
  static FORERUN_INLINE void add_group(const __m256i (&acc)[kHalves][T], const std::uint8_t* head,
                                       const std::uint8_t* scales, int group,
                                       const std::uint32_t* x_head, __m256 (&sums)[kHalves][T]) {
    constexpr int kBytes = Format::kOffset ? 2 : 1;
    unroll<kHalves>([&](auto h) FORERUN_INLINE_BODY {
      const __m256i factors = load_half(head, h);
      const __m256i steps = load_half(scales, h);
      const __m256 w_scale =
          Format::kFactors
              ? _mm256_mul_ps(byte_of(steps, !Format::kOffset, kBytes * group), half_of(factors, 0))
              : half_of(steps, group);
      const __m256 w_offset =
          Format::kOffset
              ? _mm256_mul_ps(byte_of(steps, false, kBytes * group + 1), half_of(factors, 1))
              : w_scale;
      unroll<T>([&](auto t) FORERUN_INLINE_BODY {
        __m256 part = _mm256_mul_ps(_mm256_cvtepi32_ps(acc[h][t]), w_scale);
        if (Format::kOffset) part = _mm256_fmadd_ps(in_all_lanes(x_head[t]), w_offset, part);
        sums[h][t] = _mm256_fmadd_ps(part, in_all_lanes(x_head[T + t]), sums[h][t]);
      });
    });
  }

  template <int T>
  FORERUN_FLATTEN static void run(const TileArgs& a) {
    __m256 sums[kHalves][T];
    unroll_halves<T>([&](auto h, auto t) FORERUN_INLINE_BODY { sums[h][t] = _mm256_setzero_ps(); });
    const std::uint8_t* turn = a.weights + a.ahead.switch_line * kLine;
    Position at = {a.weights, static_cast<const std::uint32_t*>(a.panel), a.ahead.first};
    for (std::int64_t left = a.lines; left > 0; left -= Format::kValueLines) {
      if (at.w == turn) at.ahead = a.ahead.second;
      const std::uint8_t* head = Format::kFactors ? next_line(a, at) : at.w;
      for (int part = 0; part < Format::kParts; ++part) {
        const std::uint8_t* scales = next_line(a, at);
        unroll<Format::kGroups>([&](auto g) FORERUN_INLINE_BODY {
          const std::uint32_t* x_head = at.x;
          // The sums stay in memory during a group: registers are for the accumulators.
          asm volatile("" : : "r"(&sums) : "memory");
          __m256i acc[kHalves][T];
          multiply<T>(a, at, acc);
          add_group<T>(acc, head, scales, g, x_head, sums);
        });
      }
    }
    unroll_halves<T>([&](auto h, auto t) FORERUN_INLINE_BODY { store_half(a, h, t, sums[h][t]); });
  }
};

}  // namespace

const KernelSet& avx2_blocks_set(Precision precision) {
  static const KernelSet sets[] = {make_set<Avx2Blocks<Q4K>>(Level::avx2, Precision::q4_k),
                                   make_set<Avx2Blocks<Q5K>>(Level::avx2, Precision::q5_k),
                                   make_set<Avx2Blocks<Q6K>>(Level::avx2, Precision::q6_k),
                                   make_set<Avx2Blocks<Q50>>(Level::avx2, Precision::q5_0),
                                   make_set<Avx2Blocks<Iq4Nl>>(Level::avx2, Precision::iq4_nl),
                                   make_set<Avx2Blocks<Iq4Xs>>(Level::avx2, Precision::iq4_xs)};
  return sets[static_cast<int>(precision) - static_cast<int>(Precision::q4_k)];
}

}  // namespace forerun::cpu
