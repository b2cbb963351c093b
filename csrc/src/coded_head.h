// A head's keys and values as codes: whole numbers of a scale that a group of dimensions has for
// itself in each token, so that what is stored depends on the token alone.
//
// int4: codes -8 to 7. int8: -128 to 119, as 16 * upper + lower with both -8 to 7: the upper
// nibbles alone are what int4 would hold at sixteen times the scale, nearly. Nibbles are stored
// plus 8. A scale may be negative: so that the larger side has the longer one of codes.
#pragma once

#include <cstdint>

namespace forerun::cpu {

// Dimensions that share a scale: the most of 64, 32 and 16 that divide a head; 0 where none does.
std::int64_t coded_group(std::int64_t head_dim);

// What stored codes are above their value: a byte of two nibbles, and a nibble.
constexpr std::int32_t kZeroOfByte = 8 * 16 + 8;
constexpr std::int32_t kZeroOfNibble = 8;

}  // namespace forerun::cpu
