#include "avx512_grouped.h"

namespace forerun::cpu {

const KernelSet& avx512_int4_set() {
  static const KernelSet set = make_grouped_set<Nibbles>(Precision::int4);
  return set;
}

const KernelSet& avx512_int4_offset_set() {
  static const KernelSet set = make_grouped_set<WithOffset<Nibbles>>(Precision::int4_offset);
  return set;
}

}  // namespace forerun::cpu
