// fp32 by FMA.
#include "avx512_float.h"

namespace forerun::cpu {
namespace {

struct Fp32 {
  static constexpr int kTileUnits = kTileSlots;
  static FORERUN_INLINE __m512 load(const std::uint8_t* line) { return _mm512_loadu_ps(line); }

  template <int kSize, int kIndex>
  static FORERUN_INLINE __m512 multiply_add(__m512 sum, __m512 weight, const std::uint32_t* x) {
    FORERUN_BROADCAST_STEP("vfmadd231ps", sum, weight, x, kSize, kIndex);
    return sum;
  }
};

}  // namespace

const KernelSet& avx512_fp32_set() {
  static const KernelSet set = make_float_set<Avx512Float<Fp32>>(Level::avx512, Precision::fp32);
  return set;
}

}  // namespace forerun::cpu
