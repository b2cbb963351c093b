// The AVX-512 kernels of the float formats.
#pragma once

#include "avx512_common.h"

namespace forerun::cpu {
namespace {

// Op: load(line) and multiply_add<T, index>(sum, weight, x), with x[index] in all lanes.
template <class Op>
struct Avx512Float {
  static constexpr int kMaxTokens = 24;

  template <int T>
  FORERUN_FLATTEN static void run(const TileArgs& a) {
    __m512 sum[T];
    unroll<T>([&](auto t) {
      sum[t] = a.resume ? _mm512_maskz_loadu_ps(row_mask(a), a.out + t * a.out_stride)
                        : _mm512_setzero_ps();
    });
    const std::uint8_t* w = a.weights;
    const std::uint8_t* end = w + a.lines * kLine;
    const auto* x = static_cast<const std::uint32_t*>(a.panel);
    const std::uint8_t* ahead = a.ahead.first;
    const std::uint8_t* part_end = w + a.ahead.switch_line * kLine;
    for (int part = 0; part < 2; ++part) {
      for (; w != part_end; w += kLine, x += T, ahead += a.ahead.step) {
        prefetch(ahead);
        const auto weight = Op::load(w);
        unroll<T>([&](auto t) { sum[t] = Op::template multiply_add<T, t>(sum[t], weight, x); });
      }
      ahead = a.ahead.second;
      part_end = end;
    }
    unroll<T>([&](auto t) { store_rows(a, t, sum[t]); });
  }
};

}  // namespace
}  // namespace forerun::cpu
