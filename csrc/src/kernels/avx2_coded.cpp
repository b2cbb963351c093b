// A cache of codes by vpmaddwd, like the bytes of avx2_grouped.cpp.
#include <cstring>

#include "avx2_common.h"

namespace forerun::cpu {
namespace {

// The codes of half a line as bytes, those in the lower or the upper halves of its bytes.
template <int kPlanes>
FORERUN_INLINE __m256i load_codes(const std::uint8_t* line, std::ptrdiff_t lower, int half,
                                  int upper) {
  const __m256i first = nibbles(load_half(line, half), upper);
  if constexpr (kPlanes == 1) return first;
  return _mm256_or_si256(_mm256_slli_epi16(first, 4),
                         nibbles(load_half(line + lower, half), upper));
}

struct Avx2Coded {
  static constexpr int kMaxColumns = 2;

  // Fetches as avx512_coded.cpp does.
  template <int kPlanes, int T>
  static FORERUN_INLINE void sum_up(const CodedTile& c, const std::uint8_t* at,
                                    const std::uint8_t* ahead, std::int64_t first,
                                    __m256i (&sum)[kHalves][T]) {
    __m256i low[kHalves][T];
    unroll_halves<T>([&](auto h, auto t) {
      sum[h][t] = _mm256_setzero_si256();
      low[h][t] = _mm256_set1_epi32(c.terms[first + t].start);
    });
    for (std::int64_t i = 0; i < c.lines; ++i, at += kLine, ahead += kPlanes * kLine) {
      unroll<kPlanes>([&](auto plane) {
        const std::uint8_t* line = ahead + plane * kLine;
        prefetch(line, line - c.ahead, c.near);
      });
      unroll<2>([&](auto upper) {
        unroll<2>([&](auto odd) {
          __m256i w[kHalves];
          unroll<kHalves>([&](auto h) {
            w[h] = widen_unsigned(load_codes<kPlanes>(at, c.lower, h, upper), odd);
          });
          unroll<T>([&](auto t) {
            const auto digits = [&](const std::int8_t* of_column) {
              std::int32_t four;
              std::memcpy(&four, of_column + i * kCodesOfLine + 4 * upper, sizeof four);
              return widen_signed(_mm256_set1_epi32(four), odd);
            };
            const __m256i high_digits = digits(c.digits[first + t].high);
            const __m256i low_digits = digits(c.digits[first + t].low);
            unroll<kHalves>([&](auto h) {
              sum[h][t] = _mm256_add_epi32(sum[h][t], _mm256_madd_epi16(w[h], high_digits));
              low[h][t] = _mm256_add_epi32(low[h][t], _mm256_madd_epi16(w[h], low_digits));
              end_addition(sum[h][t]);
              end_addition(low[h][t]);
            });
          });
        });
      });
    }
    unroll_halves<T>([&](auto h, auto t) {
      sum[h][t] = _mm256_add_epi32(_mm256_slli_epi32(sum[h][t], 7), low[h][t]);
    });
  }

  static FORERUN_INLINE __m256 scales(const std::uint16_t* bf16) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bf16));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }

  template <int kPlanes, int T>
  FORERUN_FLATTEN static void scores(const CodedTile& c) {
    for (std::int64_t b = 0; b < c.blocks; ++b) {
      for (std::int64_t g = 0; g < c.groups; ++g) {
        __m256i sum[kHalves][T];
        const std::uint8_t* block = c.upper + b * c.block_bytes;
        const std::int64_t group = g * c.lines * kLine;
        sum_up<kPlanes, T>(c, block + group, block + c.ahead + kPlanes * group, g * T, sum);
        unroll_halves<T>([&](auto h, auto t) {
          float* to = c.out + t * c.out_stride + b * kBlockRows + h * kHalfRows;
          const __m256 before = g == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(to);
          const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[h][t]),
                                               _mm256_set1_ps(c.terms[g * T + t].scale));
          const __m256 scale = scales(c.scales + g * kTileSlots + b * kBlockRows + h * kHalfRows);
          _mm256_storeu_ps(to, _mm256_fmadd_ps(product, scale, before));
        });
      }
    }
  }

  template <int kPlanes, int T>
  FORERUN_FLATTEN static void values(const CodedTile& c) {
    for (std::int64_t b = 0; b < c.blocks; ++b) {
      __m256i sum[kHalves][T];
      const std::uint8_t* block = c.upper + b * c.block_bytes;
      sum_up<kPlanes, T>(c, block, block + c.ahead, 0, sum);
      unroll_halves<T>([&](auto h, auto t) {
        const std::int64_t at = t * c.out_stride + b * kBlockRows + h * kHalfRows;
        auto* held = reinterpret_cast<__m256i*>(c.sums + at);
        if (c.resume) sum[h][t] = _mm256_add_epi32(sum[h][t], _mm256_loadu_si256(held));
        if (c.keep) {
          _mm256_storeu_si256(held, sum[h][t]);
          return;
        }
        const __m256 scale = _mm256_set1_ps(c.terms[t].scale);
        float* to = c.out + at;
        _mm256_storeu_ps(
            to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[h][t]), scale, _mm256_loadu_ps(to)));
      });
    }
  }
};

}  // namespace

const CodedSet& avx2_coded_set() {
  static const CodedSet set = make_coded_set<Avx2Coded>();
  return set;
}

}  // namespace forerun::cpu
