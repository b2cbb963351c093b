// How a cache of codes is written, read and compacted; kv_cache.h says where what lies.
#include <cstring>

#include "coded_head.h"
#include "forerun/kv_cache.h"
#include "kernels/kernels.h"
#include "numbers.h"
#include "vector/vector_set.h"

namespace forerun::cpu {
namespace {

constexpr auto kLine = static_cast<std::int64_t>(kLineBytes);
constexpr std::int64_t kHalf = kCodesOfLine / 2;

std::uint8_t nibble(std::uint8_t byte, bool upper) {
  return static_cast<std::uint8_t>(upper ? byte >> 4 : byte & 15);
}

void set_nibble(std::uint8_t& byte, bool upper, int code) {
  byte = static_cast<std::uint8_t>(upper ? (byte & 15) | code << 4 : (byte & 0xf0) | code);
}

// Where a code lies in the keys or values of a tile: of dimension d of a slot, keys and values
// being turned. Its byte in the upper plane, that in the lower one, and which half of both.
struct Place {
  std::int64_t byte;
  std::int64_t lower;
  bool upper;
};

Place key_place(const KvCache& cache, std::int64_t slot, std::int64_t d) {
  const std::int64_t plane = cache.key_plane_bytes();
  const std::int64_t byte = slot / kBlockRows * cache.planes() * plane + d / kCodesOfLine * kLine +
                            slot % kBlockRows * 4 + d % kHalf;
  return {byte, byte + plane, d % kCodesOfLine >= kHalf};
}

Place value_place(const KvCache& cache, std::int64_t slot, std::int64_t d) {
  const std::int64_t plane = cache.value_plane_bytes();
  const std::int64_t byte = d / kBlockRows * cache.planes() * plane + slot / kCodesOfLine * kLine +
                            d % kBlockRows * 4 + slot % kHalf;
  return {byte, byte + plane, slot % kCodesOfLine >= kHalf};
}

}  // namespace

std::int64_t coded_group(std::int64_t head_dim) {
  std::int64_t group = 64;
  while (head_dim % group != 0) group /= 2;
  return group < 16 ? 0 : group;
}

void KvCache::write_codes(std::int64_t layer, std::int64_t row, std::int64_t head,
                          std::int64_t slot, const float* key, const float* value) {
  const std::int64_t within = slot % kTileSlots;
  std::uint8_t* memory = tile(layer, row, head, slot);
  std::uint8_t* keys = memory + scale_bytes();
  const Place of_value = value_place(*this, within, 0);
  CodedSlot to;
  to.keys = keys + key_place(*this, within, 0).byte;
  // A lane has the slots of a line in its four bytes.
  to.values = keys + code_bytes() + of_value.byte - within % kHalf;
  to.value_step = planes() * value_plane_bytes();
  to.shift = static_cast<int>(within % kHalf * 8 + (of_value.upper ? 4 : 0));
  to.group = group_;
  to.scales = reinterpret_cast<std::uint16_t*>(memory) + within;
  to.scale_step = kTileSlots;
  to.lower_key = planes() == 2 ? key_plane_bytes() : 0;
  to.lower_value = value_plane_bytes();
  vector_set(best_level()).write_codes(key, value, shape_.head_dim, to);
}

void KvCache::read_codes(std::int64_t layer, std::int64_t row, std::int64_t head, std::int64_t slot,
                         float* key, float* value) const {
  const std::int64_t size = shape_.head_dim;
  const std::int64_t within = slot % kTileSlots;
  const std::uint8_t* memory = tile(layer, row, head, slot);
  const auto* scales = reinterpret_cast<const std::uint16_t*>(memory) + within;
  const std::uint8_t* stored = memory + scale_bytes();
  for (const bool keys : {true, false}) {
    float* out = keys ? key : value;
    for (std::int64_t d = 0; d < size && out != nullptr; ++d) {
      const Place at = keys ? key_place(*this, within, d) : value_place(*this, within, d);
      std::int32_t code = nibble(stored[at.byte], at.upper) - kZeroOfNibble;
      if (planes() == 2) code = 16 * code + nibble(stored[at.lower], at.upper) - kZeroOfNibble;
      out[d] = static_cast<float>(code) * bf16_to_float(scales[d / group_ * kTileSlots]);
    }
    stored += code_bytes();
    scales += size / group_ * kTileSlots;
  }
}

void KvCache::turn_back(float* key) const {
  for (std::int64_t d = 0; d < shape_.head_dim; d += group_) {
    vector_ops().turn(key + d, group_);
    for (std::int64_t i = d; i < d + group_; ++i) key[i] /= static_cast<float>(group_);
  }
}

void KvCache::copy_coded_slot(const std::uint8_t* source, std::int64_t from, std::uint8_t* target,
                              std::int64_t to) const {
  const std::int64_t size = shape_.head_dim;
  for (std::int64_t i = 0; i < scale_bytes(); i += 2 * kTileSlots)
    std::memcpy(target + i + to * 2, source + i + from * 2, 2);
  for (std::int64_t p = 0; p < planes(); ++p) {
    const std::int64_t keys = scale_bytes() + p * key_plane_bytes();
    const std::int64_t values = scale_bytes() + code_bytes() + p * value_plane_bytes();
    for (std::int64_t d = 0; d < size; d += kCodesOfLine)
      std::memcpy(target + keys + key_place(*this, to, d).byte,
                  source + keys + key_place(*this, from, d).byte, 4);
    for (std::int64_t d = 0; d < size; ++d) {
      const Place a = value_place(*this, from, d);
      const Place b = value_place(*this, to, d);
      set_nibble(target[values + b.byte], b.upper, nibble(source[values + a.byte], a.upper));
    }
  }
}

}  // namespace forerun::cpu
