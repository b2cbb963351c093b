#include "avx512_grouped.h"

namespace forerun::cpu {

const KernelSet& avx512_int4_set() {
  static const KernelSet set = make_set<Avx512Grouped<Nibbles>>(Level::avx512, Precision::int4);
  return set;
}

}  // namespace forerun::cpu
