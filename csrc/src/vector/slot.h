// One head's key and value into a slot of a tile: kv_cache.h says where what lies.
#pragma once

#include "../coded_head.h"
#include "../coded_panel.h"
#include "group_codes.h"
#include "lanes.h"
#include "vector_set.h"

namespace forerun::cpu {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a lane's first byte is its lowest");
static_assert(kLanes == kBlockRows, "a line holds a lane for each row of a block");

// Replaces the bits `mask << shift` of each of a line's 16 lanes.
inline void put_in_lanes(const std::uint32_t* numbers, std::uint32_t mask, int shift,
                         std::uint8_t* line) {
  std::uint32_t lanes[kLanes];
  std::memcpy(lanes, line, sizeof lanes);
  for (int l = 0; l < kLanes; ++l) lanes[l] = (lanes[l] & ~(mask << shift)) | numbers[l] << shift;
  std::memcpy(line, lanes, sizeof lanes);
}

// Up to kMost numbers as bf16, in 4 bytes each, which compilers turn into vectors; zeros up to a
// multiple of 16.
struct Rounded {
  static constexpr std::int64_t kMost = 4 * kLanes;
  std::uint32_t lanes[kMost];

  Rounded(const float* x, std::int64_t count) {
    const std::int64_t n = count < kMost ? count : kMost;
    for (std::int64_t i = 0; i < n; ++i) lanes[i] = float_to_bf16(x[i]);
    for (std::int64_t i = n; i % kLanes != 0; ++i) lanes[i] = 0;
  }
};

void write_bf16(const float* key, const float* value, std::int64_t dimensions,
                const SlotPlace& to) {
  std::uint8_t* keys = to.keys;
  std::uint8_t* values = to.values;
  for (std::int64_t first = 0; first < dimensions; first += Rounded::kMost) {
    const std::int64_t left = dimensions - first;
    const std::int64_t count = left < Rounded::kMost ? left : Rounded::kMost;
    // Two dimensions to a lane.
    const Rounded of_key(key + first, count);
    for (std::int64_t i = 0; i < count; i += 2, keys += kLineBytes) {
      const std::uint32_t pair = of_key.lanes[i] | of_key.lanes[i + 1] << 16;
      std::memcpy(keys, &pair, sizeof pair);
    }
    // Two slots to a lane.
    const Rounded of_value(value + first, count);
    for (std::int64_t i = 0; i < count; i += kLanes, values += to.value_step)
      put_in_lanes(of_value.lanes + i, 0xffff, to.shift, values);
  }
}

#if defined(__AVX512F__)
// Lanes kHalf apart: their sum to the lower one, their difference to the other.
template <int kHalf>
inline __m512 butterfly(__m512 x) {
  constexpr __mmask16 kUpper = kHalf == 1   ? 0xAAAA
                               : kHalf == 2 ? 0xCCCC
                               : kHalf == 4 ? 0xF0F0
                                            : 0xFF00;
  __m512 other;
  if constexpr (kHalf == 1) other = _mm512_permute_ps(x, 0xB1);
  else if constexpr (kHalf == 2) other = _mm512_permute_ps(x, 0x4E);
  else if constexpr (kHalf == 4) other = _mm512_shuffle_f32x4(x, x, 0xB1);
  else other = _mm512_shuffle_f32x4(x, x, 0x4E);
  return _mm512_mask_sub_ps(_mm512_add_ps(x, other), kUpper, other, x);
}
#endif

void turn(float* x, std::int64_t count) {
  std::int64_t half = 1;
#if defined(__AVX512F__)
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const __m512 twos = butterfly<2>(butterfly<1>(_mm512_loadu_ps(x + i)));
    _mm512_storeu_ps(x + i, butterfly<8>(butterfly<4>(twos)));
  }
  half = kLanes;
#endif
  for (; half < count; half *= 2) {
    for (std::int64_t first = 0; first < count; first += 2 * half) {
      for (std::int64_t i = first; i < first + half; ++i) {
        const float a = x[i];
        const float b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
}

// Codes of a group as stored; returns their scale as bf16, NaN where a number is not finite.
template <int kGroup>
std::uint16_t encode(const float* x, bool wide, std::uint8_t* codes) {
  constexpr auto kNoNumber = static_cast<std::int32_t>(kInfinity);
  const float least = wide ? -128.0f : -8.0f;
  const float most = wide ? 119.0f : 7.0f;
  const std::int32_t zero = wide ? kZeroOfByte : kZeroOfNibble;
  // As bits, whose largest compilers find in any order. NaN and infinity come out on top.
  std::int32_t highest = 0;
  std::int32_t lowest = 0;
  for (int i = 0; i < kGroup; ++i) {
    const auto bits = static_cast<std::int32_t>(bits_of(x[i]));
    const auto negated = static_cast<std::int32_t>(bits_of(-x[i]));
    highest = bits > highest ? bits : highest;
    lowest = negated > lowest ? negated : lowest;
  }
  if (highest >= kNoNumber || lowest >= kNoNumber) {
    for (int i = 0; i < kGroup; ++i) codes[i] = static_cast<std::uint8_t>(zero);
    return static_cast<std::uint16_t>(kNan >> 16);
  }
  const float above = float_of(static_cast<std::uint32_t>(highest));
  const float below = float_of(static_cast<std::uint32_t>(lowest));
  const bool negative = above > below;
  const float long_side = (negative ? above : below) / -least;
  const float short_side = (negative ? below : above) / most;
  const float scale = long_side > short_side ? long_side : short_side;
  // Away from 0, so that no code leaves its range.
  const auto rounded =
      static_cast<std::uint16_t>(scale < kLeastPeak ? 0u : (bits_of(scale) + 0xffffu) >> 16);
  const float inverse = rounded == 0 ? 0.0f : (negative ? -1.0f : 1.0f) / bf16_to_float(rounded);
  for (int i = 0; i < kGroup; ++i) {
    const float value = x[i] * inverse;
    const float from_below = value < least ? least : value;
    codes[i] =
        static_cast<std::uint8_t>(round_to_int(from_below > most ? most : from_below) + zero);
  }
  return static_cast<std::uint16_t>(rounded | (negative && rounded != 0 ? 0x8000u : 0u));
}

// Eight nibbles, one a byte, into four bytes: the first four in the low halves, the others in the
// high ones.
inline void put_key_nibbles(std::uint64_t nibbles, std::uint8_t* lane) {
  const auto word = static_cast<std::uint32_t>(nibbles | nibbles >> 28);
  std::memcpy(lane, &word, sizeof word);
}

constexpr std::uint64_t kNibbles = 0x0f0f0f0f0f0f0f0f;

template <int kGroup>
void write_groups(const float* key, const float* value, std::int64_t dimensions,
                  const CodedSlot& to) {
  const bool wide = to.lower_key != 0;
  std::uint8_t codes[kGroup];
  std::uint16_t* scales = to.scales;
  std::uint8_t* keys = to.keys;
  for (std::int64_t first = 0; first < dimensions; first += kGroup, scales += to.scale_step) {
    float turned[kGroup];
    std::memcpy(turned, key + first, sizeof turned);
    turn(turned, kGroup);
    *scales = encode<kGroup>(turned, wide, codes);
    for (int i = 0; i < kGroup; i += kCodesOfLine, keys += kLineBytes) {
      std::uint64_t eight;
      std::memcpy(&eight, codes + i, sizeof eight);
      put_key_nibbles((wide ? eight >> 4 : eight) & kNibbles, keys);
      if (wide) put_key_nibbles(eight & kNibbles, keys + to.lower_key);
    }
  }
  std::uint8_t* values = to.values;
  for (std::int64_t first = 0; first < dimensions; first += kGroup, scales += to.scale_step) {
    *scales = encode<kGroup>(value + first, wide, codes);
    for (int i = 0; i < kGroup; i += kLanes, values += to.value_step) {
      std::uint32_t upper[kLanes];
      std::uint32_t lower[kLanes];
      for (int l = 0; l < kLanes; ++l) {
        upper[l] = wide ? codes[i + l] >> 4 : codes[i + l];
        lower[l] = codes[i + l] & 15u;
      }
      put_in_lanes(upper, 15, to.shift, values);
      if (wide) put_in_lanes(lower, 15, to.shift, values + to.lower_value);
    }
  }
}

void write_codes(const float* key, const float* value, std::int64_t dimensions,
                 const CodedSlot& to) {
  switch (to.group) {
    case 16: return write_groups<16>(key, value, dimensions, to);
    case 32: return write_groups<32>(key, value, dimensions, to);
    default: return write_groups<64>(key, value, dimensions, to);
  }
}

}  // namespace
}  // namespace forerun::cpu
