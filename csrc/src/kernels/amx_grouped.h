// The AMX kernels of the groupwise integer formats.
//
// A line of weights, 4 columns of 16 rows, is a row of AMX's operand B; A is T tokens, C their dot
// products of a group with 16 rows. The integers are those of the other levels (of nibbles 16 times
// as large), and what is done with them as floats is too.
#pragma once

#include <cstring>

#include "../paired_groups.h"
#include "amx_operands.h"
#include "amx_tiles.h"
#include "avx512_grouped.h"
#include "stream_fetch.h"

namespace forerun::cpu {
namespace {

constexpr int kMostColumns = 64;  // of A: 4 for each row of B
constexpr int kPair = 2;          // groups that are worked on together: as many as share a scale

// Tile registers: behind those for the products of two pairs, tokens, weights, negative zero points
// in place of weights, and products of what is no pair.
constexpr int kA = 4;
constexpr int kB = 5;
constexpr int kZero = 6;
constexpr int kRest = 7;

template <class Format>
constexpr bool kNibbles = Format::kPanelRows == 2;

// Unsigned bytes bring a surplus of zero point * sum(x). It is taken off by a second product, with
// a tile in which every weight is the negative zero point.
template <class Format>
constexpr bool kSurplus = !kNibbles<Format> && !Format::kOffset;

template <class Format>
void begin(int tokens, int group) {
  const bool paired = kNibbles<Format> && pairs_up(tokens, group);
  const int columns = paired || group > kMostColumns ? kMostColumns : group;
  const int rows = paired ? kPair * tokens : tokens;
  TileConfig config;
  for (int i = 0; i < 2 * kPair; ++i) config.describe(i, rows, kLine);
  config.describe(kRest, rows, kLine);
  config.describe(kA, rows, columns);
  config.describe(kB, columns / 4, kLine);
  config.describe(kZero, columns / 4, kLine);
  config.load();
  if (!kSurplus<Format>) return;
  alignas(64) std::int8_t zeros[kLine];
  for (std::int8_t& zero : zeros) zero = -128;
  load_tile<kZero>(zeros, 0);  // one line for all rows
}

// Tile kTile [t][r] = sum over a group's columns of x[t] and, 4 columns a line, w.
template <class Format, int kGroup, int kTile>
FORERUN_INLINE void multiply_group(const std::uint8_t* x, const std::uint8_t* w) {
  zero_tile<kTile>();
  unroll<(kGroup + kMostColumns - 1) / kMostColumns>([&](auto part) FORERUN_INLINE_BODY {
    constexpr std::int64_t column = part * kMostColumns;
    load_tile<kA>(x + column, kGroup);
    load_tile<kB>(w + column * (kLine / 4), kLine);
    if constexpr (kNibbles<Format> && !Format::kOffset) {
      multiply_signed_tiles<kTile, kA, kB>();
    } else {
      multiply_tiles<kTile, kA, kB>();
      if constexpr (kSurplus<Format>) multiply_signed_tiles<kTile, kA, kZero>();
    }
  });
}

template <class Format>
struct AmxGrouped {
  static constexpr int kMaxTokens = kTileRows;

  // Of a pair; where it went through a tile together, one group's behind the other's.
  using Products = std::int32_t[kPair][kTileRows * kBlockRows];

  // Where a pair of groups has what, from its first line on.
  template <int kGroup>
  struct Pair {
    static constexpr std::int64_t kLines = kGroup / 4 / Format::kPanelRows;  // of a group
    static constexpr int kHeads = Format::kOffset ? kPair : 1;               // lines of scales
    static constexpr std::int64_t kScaled = kPair / kHeads * kLines;         // lines behind each
    static constexpr std::int64_t kBytes = kHeads * (kScaled + 1) * kLine;
    static constexpr std::int64_t scales(int i) {
      return Format::kOffset ? i * (kScaled + 1) * kLine : i * (kLine / 2);
    }
    static constexpr std::int64_t values(int i) {
      return (1 + i * kLines + (Format::kOffset ? i : 0)) * kLine;
    }
  };

  // Of a pair in the panel (linear.h): sums, scales and the tokens' columns of each group.
  template <int T, int kGroup, bool kPaired>
  struct Columns {
    static constexpr std::int64_t kOne = T * (kGroup / 4 + 2);
    static constexpr std::int64_t kUnits = kPaired ? paired_units(T) : kPair * kOne;
    static FORERUN_INLINE const std::uint32_t* sums(const std::uint32_t* x, int i) {
      return x + i * (kPaired ? kPairedHead : kOne);
    }
    static FORERUN_INLINE const std::uint32_t* scales(const std::uint32_t* x, int i) {
      return sums(x, i) + (kPaired ? kMostPaired : T);
    }
    static FORERUN_INLINE const std::uint8_t* of(const std::uint32_t* x, int i) {
      return reinterpret_cast<const std::uint8_t*>(kPaired ? x + kPair * kPairedHead
                                                           : sums(x, i) + 2 * T);
    }
  };

  template <int kLines>
  static FORERUN_INLINE void lay_out(const std::uint8_t* w, std::uint8_t* room) {
    unroll<kLines>([&](auto i) FORERUN_INLINE_BODY {
      const __m512i line = _mm512_loadu_si512(w + i * kLine);
      unroll<2>([&](auto upper) FORERUN_INLINE_BODY {
        _mm512_store_si512(room + (2 * i + upper) * kLine, nibbles16<Format>(line, upper));
      });
    });
  }

  // The same of a group that may end early, even before its first line: the rest is zeros.
  template <int kGroup>
  static FORERUN_INLINE void lay_out_rest(const std::uint8_t* w, std::int64_t lines,
                                          std::uint8_t* room) {
    std::memset(room, 0, kGroup / 4 * kLine);
    for (std::int64_t i = 0; i < Pair<kGroup>::kLines && i < lines; ++i) {
      if constexpr (kNibbles<Format>) {
        lay_out<1>(w + i * kLine, room + 2 * i * kLine);
      } else {
        std::memcpy(room + i * kLine, w + i * kLine, kLine);
      }
    }
  }

  // Tile kTile: the products of a pair's group i, or of both.
  template <int T, int kGroup, bool kPaired, int i, int kTile>
  static FORERUN_INLINE void multiply_part(const std::uint32_t* x, const std::uint8_t* w) {
    multiply_group<Format, kPaired ? kPair * kGroup : kGroup, kTile>(
        Columns<T, kGroup, kPaired>::of(x, i), w);
  }

  // kCount groups of a pair, from kFirst on, that share a scale of the activations. After each
  // token `between` is told which of the pair's kPair * T products were added: from and to.
  template <int T, int kGroup, bool kPaired, int kFirst, int kCount, class Between>
  static FORERUN_INLINE void add_groups(const Products& products, const std::uint8_t* w,
                                        const std::uint32_t* x, __m512 (&sums)[T],
                                        const Between& between) {
    using Columns = AmxGrouped::Columns<T, kGroup, kPaired>;
    __m512 scales[kCount];
    __m512 offsets[kCount];
    unroll<kCount>([&](auto i) FORERUN_INLINE_BODY {
      const std::uint8_t* own = w + Pair<kGroup>::scales(kFirst + i);
      scales[i] = load_scales(own);
      if (Format::kOffset) offsets[i] = load_scales(own + kLine / 2);
    });
    unroll<T>([&](auto t) FORERUN_INLINE_BODY {
      __m512 part;
      unroll<kCount>([&](auto i) FORERUN_INLINE_BODY {
        constexpr int kGroupIndex = kFirst + i;
        const std::int32_t* own =
            kPaired ? products[0] + kGroupIndex * T * kBlockRows : products[kGroupIndex];
        const __m512i exact = _mm512_load_si512(own + t * kBlockRows);
        // One group's by the port that multiplies, the other's not: so all have as much to do.
        const __m512 d = kGroupIndex == 0 ? _mm512_cvtepi32_ps(exact) : to_floats(exact);
        part = i == 0 ? _mm512_mul_ps(d, scales[i]) : _mm512_fmadd_ps(d, scales[i], part);
        if (Format::kOffset) {
          const __m512 sum = in_all_lanes(Columns::sums(x, kGroupIndex)[t]);
          part = _mm512_fmadd_ps(sum, offsets[i], part);
        }
      });
      sums[t] = _mm512_fmadd_ps(part, in_all_lanes(Columns::scales(x, kFirst)[t]), sums[t]);
      constexpr int kFrom = kFirst * T + kCount * t;
      between(Constant<kFrom>{}, Constant<kFrom + kCount>{});
    });
  }

  template <int T, int kGroup, bool kPaired, class Between>
  static FORERUN_INLINE void add_pair(const Products& products, const std::uint8_t* w,
                                      const std::uint32_t* x, __m512 (&sums)[T],
                                      const Between& between) {
    if constexpr (Format::kShared && kGroup == 32) {  // groups_per_scale
      add_groups<T, kGroup, kPaired, 0, kPair>(products, w, x, sums, between);
    } else {
      unroll<kPair>([&](auto i) FORERUN_INLINE_BODY {
        add_groups<T, kGroup, kPaired, i, 1>(products, w, x, sums, between);
      });
    }
  }

  // What of a block is no pair, or ends early; then its results. A function of its own, so that
  // the sums stay in registers where pairs are added.
  template <int T, int kGroup, bool kPaired>
  __attribute__((noinline)) static void end_block(const TileArgs& a, std::int64_t block,
                                                  __m512 (&sums)[T]) {
    using Pair = AmxGrouped::Pair<kGroup>;
    using Columns = AmxGrouped::Columns<T, kGroup, kPaired>;
    const std::int64_t pairs = a.lines / (kPair * Pair::kLines);
    const std::int64_t left = a.lines - pairs * kPair * Pair::kLines;
    const std::uint8_t* w = a.weights + block * a.block_bytes + pairs * Pair::kBytes;
    const std::uint32_t* x = static_cast<const std::uint32_t*>(a.panel) + pairs * Columns::kUnits;
    if (left > 0) {
      constexpr std::int64_t kRoom = kGroup / 4 * kLine;
      alignas(64) std::uint8_t rooms[kPair * kRoom];
      alignas(64) Products products;
      const auto nothing = [](auto, auto) {};
      const std::int64_t first = left < Pair::kLines ? left : Pair::kLines;
      lay_out_rest<kGroup>(w + Pair::values(0), first, rooms);
      lay_out_rest<kGroup>(w + Pair::values(1), left - first, rooms + kRoom);
      unroll<kPaired ? 1 : kPair>([&](auto i) FORERUN_INLINE_BODY {
        if (i > 0 && left == first) return;  // the panel ends before it
        multiply_part<T, kGroup, kPaired, i, kRest>(x, rooms + i * kRoom);
        store_tile<kRest>(products[i]);
      });
      if (left > first) {
        add_pair<T, kGroup, kPaired>(products, w, x, sums, nothing);
      } else {
        add_groups<T, kGroup, kPaired, 0, 1>(products, w, x, sums, nothing);
      }
    }
    unroll<T>([&](auto t) { store_rows(a, t, sums[t], block); });
    prefetch_results<T>(a, block + 1);
  }

  template <int T>
  static FORERUN_INLINE void prefetch_results(const TileArgs& a, std::int64_t block) {
    if (block == a.blocks) return;
    unroll<T>([&](auto t) { prefetch_to_store(a.out + t * a.out_stride + block * kBlockRows); });
  }

  // Each step takes long to come through, so pairs of groups take turns, those of a block behind
  // those of the one before: while one is laid out, the products of the one before are made, those
  // of the one before that are stored, and added are those that were stored last. What this would
  // do behind the last block it does with the first once more, and nothing comes of it.
  template <int T, int kGroup, bool kPaired>
  static FORERUN_INLINE void run_pairs(const TileArgs& a, std::int64_t pairs) {
    using Pair = AmxGrouped::Pair<kGroup>;
    constexpr std::int64_t kUnits = Columns<T, kGroup, kPaired>::kUnits;
    constexpr int kParts = kPaired ? 1 : kPair;  // tiles of a pair
    struct Position {
      const std::uint8_t* w;
      const std::uint32_t* x;
      std::uint8_t* room;
    };
    constexpr std::ptrdiff_t kRoom = kPair * (kGroup / 4) * kLine;
    const auto* panel = static_cast<const std::uint32_t*>(a.panel);
    const std::ptrdiff_t rest_bytes = a.block_bytes - pairs * Pair::kBytes;
    alignas(64) std::uint8_t rooms[2 * kRoom];
    alignas(64) Products products[2];
    StreamFetch<kNibbles<Format>> fetch(a.ahead, a.weights);
    __m512 sums[T];
    unroll<T>([&](auto t) FORERUN_INLINE_BODY { sums[t] = _mm512_setzero_ps(); });
    // Of pairs that are to be added, stored, multiplied and laid out, in turns.
    Position at[4];
    at[3] = {a.weights, panel, a.room == nullptr ? rooms : a.room};
    std::ptrdiff_t to_next = kRoom;
    std::int64_t pairs_ahead = pairs;
    std::int64_t blocks_ahead = a.blocks;
    const auto advance = [&]() FORERUN_INLINE_BODY {
      unroll<3>([&](auto i) FORERUN_INLINE_BODY { at[i] = at[i + 1]; });
      at[3].w += Pair::kBytes;
      at[3].x += kUnits;
      at[3].room += to_next;
      if (a.room == nullptr) to_next = -to_next;
      if (--pairs_ahead > 0) return;
      fetch.with(at[3].w, rest_bytes / kLine);
      pairs_ahead = pairs;
      at[3] = {--blocks_ahead > 0 ? at[3].w + rest_bytes : a.weights, panel, at[3].room};
    };
    const auto begin = [&]() FORERUN_INLINE_BODY {
      const std::uint8_t* w = at[3].w;
      fetch.template begin<Pair::kBytes / kLine>(w);
      if constexpr (kNibbles<Format>) {
        if (a.laid_out) return;
        unroll<kPair>([&](auto i) FORERUN_INLINE_BODY {
          lay_out<Pair::kLines>(w + Pair::values(i), at[3].room + i * (kRoom / kPair));
        });
      }
    };
    const auto multiply = [&](auto place) FORERUN_INLINE_BODY {
      unroll<kParts>([&](auto i) FORERUN_INLINE_BODY {
        const std::uint8_t* w =
            kNibbles<Format> ? at[2].room + i * (kRoom / kPair) : at[2].w + Pair::values(i);
        multiply_part<T, kGroup, kPaired, i, kPair * place + i>(at[2].x, w);
      });
    };
    const auto store = [&](auto place) FORERUN_INLINE_BODY {
      unroll<kParts>(
          [&](auto i) FORERUN_INLINE_BODY { store_tile<kPair * place + i>(products[place][i]); });
    };
    std::int64_t left = pairs;
    std::int64_t block = 0;
    // Whether it was the last.
    const auto step = [&](auto place) FORERUN_INLINE_BODY {
      constexpr Constant<1 - place> kOther;
      begin();
      multiply(place);
      store(kOther);
      const auto between = [&](auto from, auto to) FORERUN_INLINE_BODY {
        fetch.template part<Pair::kBytes / kLine, kPair * T, from, to>(at[3].w);
      };
      add_pair<T, kGroup, kPaired>(products[place], at[0].w, at[0].x, sums, between);
      advance();
      if (--left > 0) return false;
      left = pairs;
      __m512 done[T];
      unroll<T>([&](auto t) FORERUN_INLINE_BODY {
        done[t] = sums[t];
        sums[t] = _mm512_setzero_ps();
      });
      end_block<T, kGroup, kPaired>(a, block, done);
      return ++block == a.blocks;
    };
    constexpr Constant<0> kEven;
    constexpr Constant<1> kOdd;
    begin();
    advance();
    begin();
    multiply(kEven);
    advance();
    begin();
    multiply(kOdd);
    store(kEven);
    advance();
    while (!step(kEven) && !step(kOdd)) {
    }
  }

  template <int T, int kGroup, bool kPaired = false>
  static FORERUN_INLINE void run_groups(const TileArgs& a) {
    prefetch_results<T>(a, 0);
    const std::int64_t pairs = a.lines / (kPair * Pair<kGroup>::kLines);
    if (pairs > 0) return run_pairs<T, kGroup, kPaired>(a, pairs);
    for (std::int64_t block = 0; block < a.blocks; ++block) {
      __m512 sums[T] = {};
      end_block<T, kGroup, kPaired>(a, block, sums);
    }
  }

  template <int T>
  FORERUN_FLATTEN static void run(const TileArgs& a) {
    if constexpr (kNibbles<Format> && pairs_up(T, kPairedGroup)) {
      if (a.paired) return run_groups<T, kPairedGroup, true>(a);
    }
    switch (a.group_lines * Format::kPanelRows) {
      case 8: return run_groups<T, 32>(a);
      case 16: return run_groups<T, 64>(a);
      default: return run_groups<T, 128>(a);
    }
  }
};

template <class Format>
KernelSet make_tile_set(Precision precision) {
  KernelSet set = make_set<AmxGrouped<Format>, kLeastTileTokens>(Level::amx, precision);
  set.streams_blocks = true;
  set.lays_out = kNibbles<Format>;
  set.pairs_up = kNibbles<Format>;
  set.token_major = true;
  set.begin = begin<Format>;
  set.end = end;
  return set;
}

}  // namespace
}  // namespace forerun::cpu
