// A cache of codes by vpdpbusd.
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

struct Avx512Coded {
  static constexpr int kMaxTokens = 12;

  // Fetches from `ahead` on as many lines as it reads, in the order in which they lie rather than
  // in that of the planes: only with one stream does the processor's own prefetching join in.
  template <int kPlanes, int T>
  static FORERUN_INLINE void sum_up(const CodedTile& c, const std::uint8_t* at,
                                    const std::uint8_t* ahead, const std::uint32_t* x,
                                    __m512i (&sum)[T]) {
    __m512i low[T];
    unroll<T>([&](auto t) {
      sum[t] = _mm512_set1_epi32(static_cast<int>(x[t]));
      low[t] = _mm512_set1_epi32(static_cast<int>(x[T + t]));
    });
    x += kPanelHeads * T;
    const std::uint8_t* end = at + c.lines * kLine;
    for (; at != end; at += kLine, ahead += kPlanes * kLine, x += kPanelRowsOfLine * T) {
      unroll<kPlanes>([&](auto plane) {
        const std::uint8_t* line = ahead + plane * kLine;
        prefetch(line, line - c.ahead, c.near);
      });
      __m512i w[2];
      load_codes<kPlanes>(at, c.lower, w);
      constexpr int kSize = kPanelRowsOfLine * T;
      unroll<2>([&](auto half) {
        unroll<T>([&](auto t) {
          sum[t] = dot<kSize, half * T + t>(sum[t], w[half], x);
          low[t] = dot<kSize, (half + 2) * T + t>(low[t], w[half], x);
        });
      });
    }
    unroll<T>([&](auto t) { sum[t] = _mm512_add_epi32(_mm512_slli_epi32(sum[t], 7), low[t]); });
  }

  template <int kPlanes, int T>
  FORERUN_FLATTEN static void scores(const CodedTile& c) {
    const std::int64_t panel_units = (kPanelHeads + kPanelRowsOfLine * c.lines) * T;
    for (std::int64_t b = 0; b < c.blocks; ++b) {
      const std::uint32_t* x = c.panel;
      const std::uint8_t* block = c.upper + b * c.block_bytes;
      float* out = c.out + b * kBlockRows;
      for (std::int64_t g = 0; g < c.groups; ++g, x += panel_units) {
        __m512i sum[T];
        const std::int64_t group = g * c.lines * kLine;
        sum_up<kPlanes, T>(c, block + group, block + c.ahead + kPlanes * group, x, sum);
        const void* from = c.scales + g * kTileSlots + b * kBlockRows;
        const __m512i bits =
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
        const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
        unroll<T>([&](auto t) {
          float* to = out + t * c.out_stride;
          const __m512 before = g == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(to);
          const __m512 product =
              _mm512_mul_ps(_mm512_cvtepi32_ps(sum[t]), in_all_lanes(x[2 * T + t]));
          _mm512_storeu_ps(to, _mm512_fmadd_ps(product, scale, before));
        });
      }
    }
  }

  template <int kPlanes, int T>
  FORERUN_FLATTEN static void values(const CodedTile& c) {
    for (std::int64_t b = 0; b < c.blocks; ++b) {
      __m512i sum[T];
      const std::uint8_t* block = c.upper + b * c.block_bytes;
      sum_up<kPlanes, T>(c, block, block + c.ahead, c.panel, sum);
      unroll<T>([&](auto t) {
        const std::int64_t at = t * c.out_stride + b * kBlockRows;
        if (c.resume) sum[t] = _mm512_add_epi32(sum[t], _mm512_loadu_si512(c.sums + at));
        if (c.keep) {
          _mm512_storeu_si512(c.sums + at, sum[t]);
          return;
        }
        const __m512 scale = in_all_lanes(c.panel[2 * T + t]);
        float* to = c.out + at;
        _mm512_storeu_ps(to,
                         _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[t]), scale, _mm512_loadu_ps(to)));
      });
    }
  }
};

}  // namespace

const CodedSet& avx512_coded_set() {
  static const CodedSet set = make_coded_set<Avx512Coded>();
  return set;
}

}  // namespace forerun::cpu
