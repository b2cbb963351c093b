// A cache of codes by vpdpbusd.
#include "avx512_coded.h"

namespace forerun::cpu {
namespace {

struct Avx512Coded {
  static constexpr int kMaxColumns = 12;

  // Fetches from `ahead` on as many lines as it reads, in the order in which they lie rather than
  // in that of the planes: only with one stream does the processor's own prefetching join in.
  template <int kPlanes, int T>
  static FORERUN_INLINE void sum_up(const CodedTile& c, const std::uint8_t* at,
                                    const std::uint8_t* ahead, std::int64_t first,
                                    __m512i (&sum)[T]) {
    __m512i low[T];
    unroll<T>([&](auto t) {
      sum[t] = _mm512_setzero_si512();
      low[t] = _mm512_set1_epi32(c.terms[first + t].start);
    });
    const auto* x = reinterpret_cast<const std::uint32_t*>(c.digits + first);
    const std::uint8_t* end = at + c.lines * kLine;
    for (; at != end; at += kLine, ahead += kPlanes * kLine, x += kCodesOfLine / 4) {
      unroll<kPlanes>([&](auto plane) {
        const std::uint8_t* line = ahead + plane * kLine;
        prefetch(line, line - c.ahead, c.near);
      });
      __m512i w[2];
      load_codes<kPlanes>(at, c.lower, w);
      constexpr int kColumn = sizeof(ColumnDigits) / sizeof *x;
      constexpr int kLow = offsetof(ColumnDigits, low) / sizeof *x;
      unroll<2>([&](auto half) {
        unroll<T>([&](auto t) {
          constexpr int at = t * kColumn + half;
          sum[t] = dot<T * kColumn, at>(sum[t], w[half], x);
          low[t] = dot<T * kColumn, at + kLow>(low[t], w[half], x);
        });
      });
    }
    unroll<T>([&](auto t) { sum[t] = _mm512_add_epi32(_mm512_slli_epi32(sum[t], 7), low[t]); });
  }

  template <int kPlanes, int T>
  FORERUN_FLATTEN static void scores(const CodedTile& c) {
    for (std::int64_t b = 0; b < c.blocks; ++b) {
      const std::uint8_t* block = c.upper + b * c.block_bytes;
      float* out = c.out + b * kBlockRows;
      for (std::int64_t g = 0; g < c.groups; ++g) {
        __m512i sum[T];
        const std::int64_t group = g * c.lines * kLine;
        sum_up<kPlanes, T>(c, block + group, block + c.ahead + kPlanes * group, g * T, sum);
        const __m512 scale = scales_of(c.scales + g * kTileSlots + b * kBlockRows);
        unroll<T>([&](auto t) {
          float* to = out + t * c.out_stride;
          const __m512 before = g == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(to);
          const __m512 product =
              _mm512_mul_ps(_mm512_cvtepi32_ps(sum[t]), _mm512_set1_ps(c.terms[g * T + t].scale));
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
      sum_up<kPlanes, T>(c, block, block + c.ahead, 0, sum);
      unroll<T>([&](auto t) {
        const std::int64_t at = t * c.out_stride + b * kBlockRows;
        if (c.resume) sum[t] = _mm512_add_epi32(sum[t], _mm512_loadu_si512(c.sums + at));
        if (c.keep) {
          _mm512_storeu_si512(c.sums + at, sum[t]);
          return;
        }
        const __m512 scale = _mm512_set1_ps(c.terms[t].scale);
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
