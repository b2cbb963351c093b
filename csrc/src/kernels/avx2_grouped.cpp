// int8 and int4. With bytes vpmaddubsw would saturate (2 * 255 * 127), so they are widened to 16
// bits, the even and the odd ones apart, and multiplied by vpmaddwd: exact. Nibbles are multiplied
// as bytes, and summed up in 16 bits for as many lines as have room there.
#include "avx2_common.h"

namespace forerun::cpu {
namespace {

// acc += products of as many as kLines lines, with x [kPanelRows of each line, T].
struct Bytes {
  static constexpr bool kOffset = false;
  static constexpr int kPanelRows = 1;
  static constexpr std::int64_t kLines = 1;

  template <int T>
  static FORERUN_INLINE void multiply(__m256i (&acc)[kHalves][T], const std::uint8_t* w,
                                      const std::uint32_t* x, std::int64_t) {
    unroll<2>([&](auto odd) {
      __m256i weight[kHalves];
      unroll<kHalves>([&](auto h) { weight[h] = widen_unsigned(load_half(w, h), odd); });
      unroll<T>([&](auto t) {
        const __m256i value = widen_signed(_mm256_set1_epi32(static_cast<int>(x[t])), odd);
        unroll<kHalves>([&](auto h) {
          acc[h][t] = _mm256_add_epi32(acc[h][t], _mm256_madd_epi16(weight[h], value));
          end_addition(acc[h][t]);
        });
      });
    });
  }
};

struct Nibbles {
  static constexpr bool kOffset = false;
  static constexpr int kPanelRows = 2;
  static constexpr std::int64_t kLines = 4;
  static_assert(has_room(2 * kLines, 15));

  template <int T>
  static FORERUN_INLINE void multiply_line(__m256i (&sums)[kHalves][T], const std::uint8_t* w,
                                           const std::uint32_t* x) {
    unroll<kPanelRows>([&](auto p) {
      __m256i weight[kHalves];
      unroll<kHalves>([&](auto h) { weight[h] = nibbles(load_half(w, h), p); });
      unroll<T>([&](auto t) {
        const __m256i value = _mm256_set1_epi32(static_cast<int>(x[p * T + t]));
        unroll<kHalves>([&](auto h) { add_products(sums[h][t], weight[h], value); });
      });
    });
  }

  template <int T>
  static FORERUN_INLINE void multiply(__m256i (&acc)[kHalves][T], const std::uint8_t* w,
                                      const std::uint32_t* x, std::int64_t lines) {
    __m256i sums[kHalves][T];
    unroll_halves<T>([&](auto h, auto t) { sums[h][t] = _mm256_setzero_si256(); });
    const auto line = [&](std::int64_t i) {
      multiply_line<T>(sums, w + i * kLine, x + i * kPanelRows * T);
    };
    if (lines == kLines) {
      unroll<kLines>(line);
    } else {
      for (std::int64_t i = 0; i < lines; ++i) line(i);
    }
    unroll_halves<T>([&](auto h, auto t) {
      acc[h][t] = _mm256_add_epi32(acc[h][t], sums_of_quads(sums[h][t]));
    });
  }
};

FORERUN_INLINE __m256 load_scales(const std::uint8_t* scales, int eight) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales) + eight));
}

FORERUN_INLINE __m256 in_all_lanes(std::uint32_t bits) {
  return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(bits)));
}

template <class Format>
struct Avx2Grouped {
  static constexpr int kMaxTokens = kTokensAvx2;

  // The group is the first or last, or both, of those that share a scale of the activations.
  template <int T, bool kFirst, bool kLast>
  static FORERUN_INLINE void add_group(const __m256i (&acc)[kHalves][T], const std::uint8_t* scales,
                                       const std::uint32_t* x_head, __m256 (&parts)[kHalves][T],
                                       __m256 (&sums)[kHalves][T]) {
    unroll<kHalves>([&](auto h) {
      const __m256 w_scale = load_scales(scales, h);
      const __m256 w_offset = Format::kOffset ? load_scales(scales, kHalves + h) : w_scale;
      unroll<T>([&](auto t) {
        const __m256 d = _mm256_cvtepi32_ps(acc[h][t]);
        __m256 part = kFirst ? _mm256_mul_ps(d, w_scale) : _mm256_fmadd_ps(d, w_scale, parts[h][t]);
        if (Format::kOffset) part = _mm256_fmadd_ps(in_all_lanes(x_head[t]), w_offset, part);
        if (kLast) {
          sums[h][t] = _mm256_fmadd_ps(part, in_all_lanes(x_head[T + t]), sums[h][t]);
        } else {
          parts[h][t] = part;
        }
      });
    });
  }

  template <int T>
  FORERUN_FLATTEN static void run(const TileArgs& a) {
    __m256 sums[kHalves][T];
    __m256 parts[kHalves][T];
    unroll_halves<T>([&](auto h, auto t) { sums[h][t] = parts[h][t] = _mm256_setzero_ps(); });
    const auto* x = static_cast<const std::uint32_t*>(a.panel);
    const std::uint8_t* w = a.weights;
    const std::uint8_t* scales = nullptr;
    const std::uint8_t* turn = w + a.ahead.switch_line * kLine;
    const std::uint8_t* ahead = a.ahead.first;
    bool first = true;
    for (std::int64_t i = 0, group = 0; i < a.lines; ++group) {
      const bool second = !Format::kOffset && group % 2 == 1;
      if (!second) {
        if (w == turn) ahead = a.ahead.second;
        scales = w;
        w += kLine;
        ahead += a.ahead.step;
      }
      // The sums stay in memory during a group: registers are for the accumulators.
      asm volatile("" : : "r"(&sums), "r"(&parts) : "memory");
      __m256i acc[kHalves][T];
      unroll_halves<T>([&](auto h, auto t) {
        acc[h][t] = _mm256_set1_epi32(Format::kOffset ? 0 : static_cast<int>(x[t]));
      });
      const std::uint32_t* x_head = x;
      x += 2 * T;
      for (const std::int64_t end = i + a.group_lines; i < end && i < a.lines;) {
        const std::int64_t left = (end < a.lines ? end : a.lines) - i;
        const std::int64_t lines = left < Format::kLines ? left : Format::kLines;
        for (std::int64_t line = 0; line < lines; ++line, ahead += a.ahead.step)
          prefetch(ahead, w + line * kLine, a.ahead.near);
        Format::template multiply<T>(acc, w, x, lines);
        i += lines;
        w += lines * kLine;
        x += lines * Format::kPanelRows * T;
      }
      const std::uint8_t* own_scales = scales + (second ? kLine / 2 : 0);
      const bool last = i >= a.lines || a.ends_scale(group);
      if (!last) {
        add_group<T, true, false>(acc, own_scales, x_head, parts, sums);
      } else if (first) {
        add_group<T, true, true>(acc, own_scales, x_head, parts, sums);
      } else {
        add_group<T, false, true>(acc, own_scales, x_head, parts, sums);
      }
      first = last;
    }
    unroll_halves<T>([&](auto h, auto t) { store_half(a, h, t, sums[h][t]); });
  }
};

}  // namespace

const KernelSet& avx2_int8_set() {
  static const KernelSet set = make_set<Avx2Grouped<Bytes>>(Level::avx2, Precision::int8);
  return set;
}

const KernelSet& avx2_int4_set() {
  static const KernelSet set = make_set<Avx2Grouped<Nibbles>>(Level::avx2, Precision::int4);
  return set;
}

const KernelSet& avx2_int8_offset_set() {
  static const KernelSet set =
      make_set<Avx2Grouped<WithOffset<Bytes>>>(Level::avx2, Precision::int8_offset);
  return set;
}

const KernelSet& avx2_int4_offset_set() {
  static const KernelSet set =
      make_set<Avx2Grouped<WithOffset<Nibbles>>>(Level::avx2, Precision::int4_offset);
  return set;
}

}  // namespace forerun::cpu
