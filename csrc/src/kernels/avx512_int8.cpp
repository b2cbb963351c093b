#include "avx512_grouped.h"

namespace forerun::cpu {

const KernelSet& avx512_int8_set() {
  static const KernelSet set = make_set<Avx512Grouped<Bytes>>(Level::avx512, Precision::int8);
  return set;
}

const KernelSet& avx512_int8_offset_set() {
  static const KernelSet set =
      make_set<Avx512Grouped<WithOffset<Bytes>>>(Level::avx512, Precision::int8_offset);
  return set;
}

}  // namespace forerun::cpu
