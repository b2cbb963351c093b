// What a cache of codes is multiplied with: columns of numbers, each number as two digits.
#pragma once

#include <cstdint>

#include "forerun/packed_matrix.h"

namespace forerun::cpu {

constexpr int kCodesOfLine = 8;
constexpr int kDigitsOfColumn = 64;

// Up to 64 numbers, x = scale * (128 * high + low).
struct alignas(kLineBytes) ColumnDigits {
  std::int8_t high[kDigitsOfColumn];
  std::int8_t low[kDigitsOfColumn];
};

// Sums of products with codes begin with `start`, which takes off what the codes' zero point adds.
struct ColumnTerms {
  std::int32_t start;
  float scale;
};

}  // namespace forerun::cpu
