#include "amx_grouped.h"

namespace forerun::cpu {

const KernelSet& amx_int8_set() {
  static const KernelSet set = make_tile_set<Bytes>(Precision::int8);
  return set;
}

const KernelSet& amx_int8_offset_set() {
  static const KernelSet set = make_tile_set<WithOffset<Bytes>>(Precision::int8_offset);
  return set;
}

}  // namespace forerun::cpu
