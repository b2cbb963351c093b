// fp32 and bf16 by FMA; bf16 is widened to fp32, and its pairs are added in vdpbf16ps's order.
#include "avx2_common.h"

namespace forerun::cpu {
namespace {

struct Fp32 {
  static constexpr int kTileUnits = kTileSlots;
  struct Operand {
    __m256 value;
  };
  static FORERUN_INLINE Operand widen(__m256i bits) { return {_mm256_castsi256_ps(bits)}; }
  static FORERUN_INLINE __m256 multiply_add(__m256 sum, Operand w, Operand x) {
    return _mm256_fmadd_ps(w.value, x.value, sum);
  }
};

struct Bf16 {
  static constexpr int kTileUnits = kTileSlots / 2;
  struct Operand {
    __m256 even;
    __m256 odd;
  };
  static FORERUN_INLINE Operand widen(__m256i bits) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)),
            _mm256_castsi256_ps(
                _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000))))};
  }
  static FORERUN_INLINE __m256 multiply_add(__m256 sum, Operand w, Operand x) {
    return _mm256_fmadd_ps(w.even, x.even, _mm256_fmadd_ps(w.odd, x.odd, sum));
  }
};

template <class Format>
struct Avx2Float {
  static constexpr int kMaxTokens = kTokensAvx2;
  static constexpr int kTileUnits = Format::kTileUnits;

  template <int T>
  FORERUN_FLATTEN static void run(const TileArgs& a) {
    multiply<T, SideBySide<T>>(a);
  }

  template <int T, class Panel>
  static FORERUN_INLINE void line(__m256 (&sum)[kHalves][T], const std::uint8_t* w,
                                  const std::uint32_t* x) {
    typename Format::Operand weight[kHalves];
    unroll<kHalves>([&](auto h) { weight[h] = Format::widen(load_half(w, h)); });
    unroll<T>([&](auto t) {
      const auto value = Format::widen(_mm256_set1_epi32(static_cast<int>(x[t * Panel::kToken])));
      unroll<kHalves>(
          [&](auto h) { sum[h][t] = Format::multiply_add(sum[h][t], weight[h], value); });
    });
  }

  template <int T, class Panel>
  static FORERUN_INLINE void multiply(const TileArgs& a) {
    __m256 sum[kHalves][T];
    unroll_halves<T>(
        [&](auto h, auto t) { sum[h][t] = a.resume ? load_out(a, h, t) : _mm256_setzero_ps(); });
    const std::uint8_t* w = a.weights;
    const auto* x = static_cast<const std::uint32_t*>(a.panel);
    const std::uint8_t* ahead = a.ahead.first;
    for (std::int64_t i = 0; i < a.lines;
         ++i, w += kLine, x += Panel::kLine, ahead += a.ahead.step) {
      if (i == a.ahead.switch_line) ahead = a.ahead.second;
      prefetch(ahead);
      line<T, Panel>(sum, w, x);
    }
    unroll_halves<T>([&](auto h, auto t) { store_half(a, h, t, sum[h][t]); });
  }
};

}  // namespace

const KernelSet& avx2_fp32_set() {
  static const KernelSet set = make_float_set<Avx2Float<Fp32>>(Level::avx2, Precision::fp32);
  return set;
}

const KernelSet& avx2_bf16_set() {
  static const KernelSet set = make_float_set<Avx2Float<Bf16>>(Level::avx2, Precision::bf16);
  return set;
}

}  // namespace forerun::cpu
