// bf16 by vdpbf16ps.
#include "avx512_float.h"

namespace forerun::cpu {
namespace {

struct Bf16 {
  static constexpr int kTileUnits = kTileSlots / 2;
  static FORERUN_INLINE __m512i load(const std::uint8_t* line) { return _mm512_loadu_si512(line); }

  template <int kSize, int kIndex>
  static FORERUN_INLINE __m512 multiply_add(__m512 sum, __m512i weight, const std::uint32_t* x) {
    FORERUN_BROADCAST_STEP("vdpbf16ps", sum, weight, x, kSize, kIndex);
    return sum;
  }
};

}  // namespace

const KernelSet& avx512_bf16_set() {
  static const KernelSet set = make_float_set<Avx512Float<Bf16>>(Level::avx512, Precision::bf16);
  return set;
}

}  // namespace forerun::cpu
