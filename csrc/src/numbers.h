// Conversions between float and the 16-bit formats, one definition for every level.
// Everything here has internal linkage: these headers are compiled with different instruction sets,
// and the linker must never pick another file's copy.
#pragma once

#include <cstdint>
#include <cstring>

namespace forerun::cpu {
namespace {

inline std::uint32_t bits_of(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

inline float float_of(std::uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

inline float bf16_to_float(std::uint16_t h) { return float_of(std::uint32_t{h} << 16); }

// Round to nearest even. Subnormals become zero because vdpbf16ps reads them as zero: so every
// level multiplies the same numbers.
inline std::uint16_t float_to_bf16(float x) {
  const std::uint32_t u = bits_of(x);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (u >> 16) | 0x40u;
  const std::uint32_t r = (u & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded;
  return static_cast<std::uint16_t>((r & 0x7f80u) == 0 ? r & 0x8000u : r);
}

inline float half_to_float(std::uint16_t h) {
  const std::uint32_t sign = std::uint32_t{h & 0x8000u} << 16;
  const std::uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x0400u) return float_of(sign | ((magnitude << 13) + 0x38000000u));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return float_of(sign | bits_of(subnormal));
}

// Round to nearest even; overflow gives infinity.
inline std::uint16_t float_to_half(float x) {
  const std::uint32_t u = bits_of(x);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  const std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Adding 0.5 puts the half's last place where float rounds.
    const std::uint32_t shifted = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
    return static_cast<std::uint16_t>(sign | shifted);
  }
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

// Nearest integer, ties to even, for |x| < 2^22; any bits, but no trap, for NaN.
inline std::int32_t round_to_int(float x) {
  return static_cast<std::int32_t>(bits_of(x + 12582912.0f) - 0x4b400000u);
}

}  // namespace
}  // namespace forerun::cpu
