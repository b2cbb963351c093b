// The AVX-512 kernels of the float formats.
#pragma once

#include "avx512_common.h"

namespace forerun::cpu {
namespace {

// Op: load(line), multiply_add<size, index>(sum, weight, x) with x[index] of `size` in all lanes,
// and kTileUnits, the 4-byte units of kTileSlots values.
template <class Op>
struct Avx512Float {
  static constexpr int kMaxTokens = 24;
  static constexpr int kTileUnits = Op::kTileUnits;

  template <int T>
  FORERUN_FLATTEN static void run(const TileArgs& a) {
    multiply<T, SideBySide<T>>(a);
  }

  template <int T, class Panel>
  static FORERUN_INLINE void multiply(const TileArgs& a) {
    constexpr int kSize = (T - 1) * Panel::kToken + 1;
    __m512 sum[T];
    unroll<T>([&](auto t) {
      sum[t] = a.resume ? _mm512_maskz_loadu_ps(row_mask(a.rows), a.out + t * a.out_stride)
                        : _mm512_setzero_ps();
    });
    const std::uint8_t* w = a.weights;
    const std::uint8_t* end = w + a.lines * kLine;
    const auto* x = static_cast<const std::uint32_t*>(a.panel);
    const std::uint8_t* ahead = a.ahead.first;
    const std::uint8_t* part_end = w + a.ahead.switch_line * kLine;
    for (int part = 0; part < 2; ++part) {
      for (; w != part_end; w += kLine, x += Panel::kLine, ahead += a.ahead.step) {
        prefetch(ahead);
        const auto weight = Op::load(w);
        unroll<T>([&](auto t) {
          sum[t] = Op::template multiply_add<kSize, t * Panel::kToken>(sum[t], weight, x);
        });
      }
      ahead = a.ahead.second;
      part_end = end;
    }
    unroll<T>([&](auto t) { store_rows(a, t, sum[t]); });
  }
};

}  // namespace
}  // namespace forerun::cpu
