#include "amx_grouped.h"

namespace forerun::cpu {

const KernelSet& amx_int4_set() {
  static const KernelSet set = make_tile_set<Nibbles>(Precision::int4);
  return set;
}

const KernelSet& amx_int4_offset_set() {
  static const KernelSet set = make_tile_set<WithOffset<Nibbles>>(Precision::int4_offset);
  return set;
}

}  // namespace forerun::cpu
