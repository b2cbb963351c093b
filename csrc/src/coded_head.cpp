#include "coded_head.h"

#include <algorithm>
#include <cmath>

#include "numbers.h"

namespace forerun::cpu {
namespace {

constexpr std::uint16_t kNan = 0x7fc0;

// Away from 0, so that no code leaves its range.
std::uint16_t round_up_to_bf16(float x) {
  return static_cast<std::uint16_t>((bits_of(x) + 0xffffu) >> 16);
}

}  // namespace

std::int64_t coded_group(std::int64_t head_dim) {
  for (const std::int64_t group : {64, 32, 16}) {
    if (head_dim % group == 0) return group;
  }
  return 0;
}

void turn(float* x, std::int64_t count) {
  for (std::int64_t half = 1; half < count; half *= 2) {
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

std::uint16_t encode(const float* x, std::int64_t count, int bits, std::uint8_t* codes) {
  const bool wide = bits == 8;
  const float least = wide ? -128.0f : -8.0f;
  const float most = wide ? 119.0f : 7.0f;
  const std::int32_t zero = wide ? kZeroOfByte : kZeroOfNibble;
  float below = 0.0f;
  float above = 0.0f;
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    above = std::max(above, x[i]);
    below = std::max(below, -x[i]);
    finite &= std::fabs(x[i]) < INFINITY;
  }
  const float sign = above > below ? -1.0f : 1.0f;
  const float scale = std::max(std::max(above, below) / -least, std::min(above, below) / most);
  // Below 2^-100 they count as zero: the reciprocal need not exist.
  const bool nothing = scale < 0x1p-100f;
  const std::uint16_t rounded = finite && !nothing ? round_up_to_bf16(scale) : 0;
  const float inverse = rounded == 0 ? 0.0f : sign / bf16_to_float(rounded);
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = finite ? std::min(std::max(x[i] * inverse, least), most) : 0.0f;
    codes[i] = static_cast<std::uint8_t>(round_to_int(value) + zero);
  }
  if (!finite) return kNan;
  return static_cast<std::uint16_t>(rounded | (sign < 0.0f && rounded != 0 ? 0x8000u : 0u));
}

}  // namespace forerun::cpu
