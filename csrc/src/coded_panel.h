// Columns of the panels that CodedTile in kernels/kernels.h describes.
// Everything here has internal linkage, see numbers.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "forerun/vector_ops.h"
#include "numbers.h"

namespace forerun::cpu {
namespace {

constexpr int kPanelHeads = 3;  // rows of a panel before its lines
constexpr int kPanelRowsOfLine = 4;
constexpr int kCodesOfLine = 8;

// Two digits of up to 64 numbers.
struct Split {
  std::int8_t high[64];
  std::int8_t low[64];
};

// Into one column of a panel of `columns`. `zero`: that of the codes.
inline void pack_split(const Split& split, const Digits& digits, std::int32_t zero,
                       std::int64_t lines, std::int64_t columns, std::uint32_t* panel) {
  panel[0] = static_cast<std::uint32_t>(-zero * digits.high_sum);
  panel[columns] = static_cast<std::uint32_t>(-zero * digits.low_sum);
  panel[2 * columns] = bits_of(digits.scale);
  panel += kPanelHeads * columns;
  for (std::int64_t i = 0; i < lines; ++i, panel += kPanelRowsOfLine * columns) {
    std::memcpy(panel, split.high + i * kCodesOfLine, 4);
    std::memcpy(panel + columns, split.high + i * kCodesOfLine + 4, 4);
    std::memcpy(panel + 2 * columns, split.low + i * kCodesOfLine, 4);
    std::memcpy(panel + 3 * columns, split.low + i * kCodesOfLine + 4, 4);
  }
}

}  // namespace
}  // namespace forerun::cpu
