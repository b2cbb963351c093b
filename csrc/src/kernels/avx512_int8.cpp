#include "avx512_grouped.h"

namespace forerun::cpu {

const KernelSet& avx512_int8_set() {
  static const KernelSet set = make_grouped_set<Bytes>(Precision::int8);
  return set;
}

const KernelSet& avx512_int8_offset_set() {
  static const KernelSet set = make_grouped_set<WithOffset<Bytes>>(Precision::int8_offset);
  return set;
}

}  // namespace forerun::cpu
