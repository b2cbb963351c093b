// How a cache of codes is written, read and compacted; kv_cache.h says where what lies.
#include <cstring>
#include <vector>

#include "coded_head.h"
#include "forerun/kv_cache.h"
#include "kernels/kernels.h"
#include "numbers.h"

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

// Where a code of a plane lies: of dimension d of a slot, keys and values being turned.
struct Place {
  std::int64_t byte;
  bool upper;
};

Place key_place(std::int64_t head_dim, std::int64_t slot, std::int64_t d) {
  const std::int64_t block = slot / kBlockRows * (head_dim / kCodesOfLine) * kLine;
  return {block + d / kCodesOfLine * kLine + slot % kBlockRows * 4 + d % kHalf,
          d % kCodesOfLine >= kHalf};
}

Place value_place(std::int64_t slot, std::int64_t d) {
  const std::int64_t block = d / kBlockRows * (kTileSlots / kCodesOfLine) * kLine;
  return {block + slot / kCodesOfLine * kLine + d % kBlockRows * 4 + slot % kHalf,
          slot % kCodesOfLine >= kHalf};
}

}  // namespace

void KvCache::write_codes(std::int64_t layer, std::int64_t row, std::int64_t head,
                          std::int64_t slot, const float* key, const float* value) {
  const std::int64_t size = shape_.head_dim;
  const std::int64_t within = slot % kTileSlots;
  std::uint8_t* memory = tile(layer, row, head, slot);
  auto* scales = reinterpret_cast<std::uint16_t*>(memory) + within;
  std::uint8_t* plane = memory + scale_bytes();
  std::vector<float> turned(key, key + size);
  for (std::int64_t d = 0; d < size; d += group_) turn(turned.data() + d, group_);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(size));
  const int bits = 4 * planes();
  for (const bool keys : {true, false}) {
    const float* x = keys ? turned.data() : value;
    for (std::int64_t d = 0; d < size; d += group_, scales += kTileSlots)
      *scales = encode(x + d, group_, bits, codes.data() + d);
    for (std::int64_t d = 0; d < size; ++d) {
      const std::uint8_t code = codes[static_cast<std::size_t>(d)];
      const Place at = keys ? key_place(size, within, d) : value_place(within, d);
      set_nibble(plane[at.byte], at.upper, bits == 8 ? code >> 4 : code);
      if (bits == 8) set_nibble(plane[2 * plane_bytes() + at.byte], at.upper, code & 15);
    }
    plane += plane_bytes();
  }
}

void KvCache::read_codes(std::int64_t layer, std::int64_t row, std::int64_t head, std::int64_t slot,
                         float* key, float* value) const {
  const std::int64_t size = shape_.head_dim;
  const std::int64_t within = slot % kTileSlots;
  const std::uint8_t* memory = tile(layer, row, head, slot);
  const auto* scales = reinterpret_cast<const std::uint16_t*>(memory) + within;
  const std::uint8_t* plane = memory + scale_bytes();
  for (const bool keys : {true, false}) {
    float* out = keys ? key : value;
    for (std::int64_t d = 0; d < size && out != nullptr; ++d) {
      const Place at = keys ? key_place(size, within, d) : value_place(within, d);
      std::int32_t code = nibble(plane[at.byte], at.upper) - kZeroOfNibble;
      if (planes() == 2)
        code = 16 * code + nibble(plane[2 * plane_bytes() + at.byte], at.upper) - kZeroOfNibble;
      out[d] = static_cast<float>(code) * bf16_to_float(scales[d / group_ * kTileSlots]);
    }
    plane += plane_bytes();
    scales += size / group_ * kTileSlots;
  }
}

void KvCache::turn_back(float* key) const {
  for (std::int64_t d = 0; d < shape_.head_dim; d += group_) {
    turn(key + d, group_);
    for (std::int64_t i = d; i < d + group_; ++i) key[i] /= static_cast<float>(group_);
  }
}

void KvCache::copy_coded_slot(const std::uint8_t* source, std::int64_t from, std::uint8_t* target,
                              std::int64_t to) const {
  const std::int64_t size = shape_.head_dim;
  for (std::int64_t i = 0; i < scale_bytes(); i += 2 * kTileSlots)
    std::memcpy(target + i + to * 2, source + i + from * 2, 2);
  for (std::int64_t p = 0; p < planes(); ++p) {
    const std::int64_t keys = scale_bytes() + 2 * p * plane_bytes();
    const std::int64_t values = keys + plane_bytes();
    for (std::int64_t d = 0; d < size; d += kCodesOfLine)
      std::memcpy(target + keys + key_place(size, to, d).byte,
                  source + keys + key_place(size, from, d).byte, 4);
    for (std::int64_t d = 0; d < size; ++d) {
      const Place a = value_place(from, d);
      const Place b = value_place(to, d);
      set_nibble(target[values + b.byte], b.upper, nibble(source[values + a.byte], a.upper));
    }
  }
}

}  // namespace forerun::cpu
