// Fills a KernelSet's table with the instantiations of a kernel.
#pragma once

#include "../unroll.h"
#include "kernels.h"

namespace forerun::cpu {
namespace {

constexpr auto kLine = static_cast<std::int64_t>(kLineBytes);

// A groupwise integer format as it is, with an offset beside each scale.
template <class Format>
struct WithOffset : Format {
  static constexpr bool kOffset = true;
  static constexpr bool kShared = false;
};

// llama.cpp's blocks. A group has kQuads quads of columns, in kLines lines of nibbles and, where
// kUpper bits of each code are elsewhere, one more before them; kGroups of them have a line of
// scales: of one byte each or, with offsets, two, times a factor of kParts such parts, or fp16.
// Where kIsListed, codes stand for the values of kListed.
template <Precision kFormat, int kUpperBits, int kGroupColumns, int kPartsOfSuper>
struct Blockwise {
  static constexpr Precision kPrecision = kFormat;
  static constexpr int kUpper = kUpperBits;
  static constexpr bool kOffset = kFormat == Precision::q4_k || kFormat == Precision::q5_k;
  static constexpr int kQuads = kGroupColumns / 4;
  static constexpr int kLines = kGroupColumns / 8;
  static constexpr int kGroups = part_columns(kFormat) / kGroupColumns;
  static constexpr bool kIsListed = kFormat == Precision::iq4_nl || kFormat == Precision::iq4_xs;
  static constexpr int kParts = kPartsOfSuper;
  static constexpr bool kFactors = kParts > 1;
  static constexpr int kValueLines = kParts * kGroups * (kLines + (kUpper > 0 ? 1 : 0));
  // Of a byte of upper bits those that count, above a nibble, and how far those of a quad are left
  // of there, or right where that is negative.
  static constexpr int kMask = ((1 << kUpper) - 1) << 4;
  static constexpr int to_left(int quad) { return 4 - kUpper * quad; }
};
using Q4K = Blockwise<Precision::q4_k, 0, 32, 4>;
using Q5K = Blockwise<Precision::q5_k, 1, 32, 4>;
using Q6K = Blockwise<Precision::q6_k, 2, 16, 4>;
using Q50 = Blockwise<Precision::q5_0, 1, 32, 1>;
using Iq4Nl = Blockwise<Precision::iq4_nl, 0, 32, 1>;
using Iq4Xs = Blockwise<Precision::iq4_xs, 0, 32, 2>;

// The values of kListed as unsigned bytes, for kernels whose weights are: zero is kListedZero.
constexpr int kListedZero = 128;

// Where a kernel finds token t's operand for a line of weights in a panel, in 4-byte units: the
// tokens of a line side by side, or each token's lines in a row of `kRow`.
template <int T>
struct SideBySide {
  static constexpr int kToken = 1;
  static constexpr int kLine = T;
};
template <int kRow>
struct InRows {
  static constexpr int kToken = kRow;
  static constexpr int kLine = 1;
};

// Kernels::run<T>(const TileArgs&), T = kLeast .. Kernels::kMaxTokens.
template <class Kernels, int kLeast = 1>
KernelSet make_set(Level level, Precision precision) {
  static_assert(Kernels::kMaxTokens <= kMaxTileTokens);
  KernelSet set;
  set.level = level;
  set.precision = precision;
  set.max_tokens = set.tile_tokens = Kernels::kMaxTokens;
  unroll<Kernels::kMaxTokens - kLeast + 1>(
      [&](auto i) { set.kernel[kLeast + i] = &Kernels::template run<kLeast + i>; });
  return set;
}

inline TileArgs block_of(const CacheTile& c, std::int64_t block) {
  TileArgs a;
  a.weights = c.weights + block * c.block_bytes;
  a.panel = c.panel;
  a.lines = c.lines;
  a.ahead = {a.weights + c.ahead, nullptr, c.lines, kLine};
  a.out = c.out + block * kBlockRows;
  a.out_stride = c.out_stride;
  a.rows = kBlockRows;
  a.resume = c.resume;
  return a;
}

template <class Kernels, int T, class Panel>
FORERUN_FLATTEN void run_tile(const CacheTile& c) {
  for (std::int64_t block = 0; block < c.blocks; ++block)
    Kernels::template multiply<T, Panel>(block_of(c, block));
}

// The same for the float formats, with Kernels::multiply<T, Panel>(const TileArgs&).
template <class Kernels>
KernelSet make_float_set(Level level, Precision precision) {
  KernelSet set = make_set<Kernels>(level, precision);
  unroll<Kernels::kMaxTokens>([&](auto i) {
    set.scores[i + 1] = &run_tile<Kernels, i + 1, SideBySide<i + 1>>;
    set.values[i + 1] = &run_tile<Kernels, i + 1, InRows<Kernels::kTileUnits>>;
  });
  return set;
}

// Kernels::scores<planes, T>(const CodedTile&), Kernels::values, Kernels::kMaxColumns.
template <class Kernels>
CodedSet make_coded_set() {
  static_assert(Kernels::kMaxColumns <= kMaxCodedColumns);
  CodedSet set;
  set.max_columns = Kernels::kMaxColumns;
  unroll<Kernels::kMaxColumns>([&](auto i) {
    set.scores[0][i + 1] = &Kernels::template scores<1, i + 1>;
    set.scores[1][i + 1] = &Kernels::template scores<2, i + 1>;
    set.values[0][i + 1] = &Kernels::template values<1, i + 1>;
    set.values[1][i + 1] = &Kernels::template values<2, i + 1>;
  });
  return set;
}

}  // namespace
}  // namespace forerun::cpu
