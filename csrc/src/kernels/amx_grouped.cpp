// The AMX kernels of the groupwise integer formats, by tdpbsud.
//
// A line of weights, 4 columns of 16 rows, is a row of AMX's operand B as it is stored; A is T
// tokens, C their dot products of a group with 16 rows. The integers are those of the other levels,
// and what is done with them as floats is too. A tile takes as long for one token as for sixteen:
// they are for many (dispatch.cpp).
//
// The surplus of zero point * sum(x) that unsigned weights bring is taken off by a second product,
// with a tile in which every weight is the negative zero point.
#include "amx_tiles.h"
#include "avx512_grouped.h"

namespace forerun::cpu {
namespace {

constexpr int kMostColumns = 64;  // of A: 4 for each row of B
constexpr int kChunk = 2;         // groups that are worked on together: as many as share a scale

// Tile registers: behind those for the products of two chunks, tokens, weights, and negative zero
// points in place of weights.
constexpr int kA = 4;
constexpr int kB = 5;
constexpr int kZero = 6;

template <class Format>
void begin(int tokens, int group) {
  const int columns = group < kMostColumns ? group : kMostColumns;
  TileConfig config;
  for (int i = 0; i < 2 * kChunk; ++i) config.describe(i, tokens, kLine);
  config.describe(kA, tokens, columns);
  config.describe(kB, columns / 4, kLine);
  config.describe(kZero, columns / 4, kLine);
  config.load();
  if (Format::kOffset) return;
  alignas(64) std::int8_t zeros[kLine];
  for (std::int8_t& zero : zeros) zero = Format::kPanelRows == 2 ? -8 : -128;
  load_tile<kZero>(zeros, 0);  // one line for all rows
}

// Tile kTile [t][r] = sum over a group's columns of x[t] and, 4 columns a line, w.
template <class Format, int kGroup, int kTile>
FORERUN_INLINE void multiply_tile(const std::uint8_t* x, const std::uint8_t* w) {
  zero_tile<kTile>();
  unroll<(kGroup + kMostColumns - 1) / kMostColumns>([&](auto part) {
    constexpr std::int64_t column = part * kMostColumns;
    load_tile<kA>(x + column, kGroup);
    load_tile<kB>(w + column * (kLine / 4), kLine);
    multiply_tiles<kTile, kA, kB>();
    if (!Format::kOffset)
      asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kTile), "i"(kA), "i"(kZero));
  });
}

template <class Format>
struct AmxGrouped {
  static constexpr int kMaxTokens = kTileRows;

  struct Group {
    const std::uint8_t* w;
    const std::uint8_t* scales;
    const std::uint32_t* x;
    std::int64_t lines;
  };

  // Group by group through a block, fetching ahead.
  template <int kFull>
  class Walk {
   public:
    FORERUN_INLINE Walk(const TileArgs& a, int tokens)
        : w_(a.weights),
          x_(static_cast<const std::uint32_t*>(a.panel)),
          x_units_(tokens * (2 + kFull * Format::kPanelRows)),
          left_(a.lines),
          ahead_(a.ahead.first),
          turn_(a.weights + a.ahead.switch_line * kLine),
          second_(a.ahead.second),
          step_(a.ahead.step) {}

    FORERUN_INLINE Group next() {
      if (!in_pair_) {
        if (w_ == turn_) ahead_ = second_;
        fetch();
        scales_ = w_;
        w_ += kLine;
      }
      const std::int64_t lines = left_ < kFull ? left_ : kFull;
      const Group group = {w_, in_pair_ ? scales_ + kLine / 2 : scales_, x_, lines};
      // What ends early ends the block, and nothing is fetched after it.
      if (lines == kFull) unroll<kFull>([&](auto) { fetch(); });
      w_ += lines * kLine;
      x_ += x_units_;
      left_ -= lines;
      in_pair_ = !Format::kOffset && !in_pair_;
      return group;
    }

   private:
    FORERUN_INLINE void fetch() {
      asm volatile("prefetcht1 %a0" : : "p"(ahead_));
      ahead_ += step_;
    }

    const std::uint8_t* w_;
    const std::uint32_t* x_;
    std::int64_t x_units_;  // of a group
    std::int64_t left_;     // lines
    const std::uint8_t* ahead_;
    const std::uint8_t* turn_;
    const std::uint8_t* second_;
    std::ptrdiff_t step_;
    const std::uint8_t* scales_ = nullptr;
    bool in_pair_ = false;  // the second of two groups that share a line of scales
  };

  // The weights of a group one a byte, a whole group of lines: as they lie in memory or, nibbles
  // and what ends early, in `room`.
  template <int kFull>
  static FORERUN_INLINE const std::uint8_t* bytes_of(const Group& group, std::uint8_t* room) {
    constexpr int kParts = Format::kPanelRows;
    if (kParts == 1 && group.lines == kFull) return group.w;
    const auto spread = [&](std::int64_t i) {
      const __m512i line = _mm512_loadu_si512(group.w + i * kLine);
      unroll<kParts>([&](auto p) {
        _mm512_store_si512(room + (kParts * i + p) * kLine, Format::part(line, p));
      });
    };
    if (group.lines == kFull) {
      unroll<kFull>([&](auto i) { spread(i); });
      return room;
    }
    std::int64_t i = 0;
    for (; i < group.lines; ++i) spread(i);
    for (i *= kParts; i < kFull * kParts; ++i)
      _mm512_store_si512(room + i * kLine, _mm512_setzero_si512());
    return room;
  }

  // Groups that share a scale of the activations.
  template <int T, int kCount>
  static FORERUN_INLINE void add_groups(const std::int32_t (*products)[kTileRows * kBlockRows],
                                        const Group* groups, __m512* sums) {
    __m512 scales[kCount];
    __m512 offsets[kCount];
    unroll<kCount>([&](auto i) {
      scales[i] = load_scales(groups[i].scales);
      if (Format::kOffset) offsets[i] = load_scales(groups[i].scales + kLine / 2);
    });
    unroll<T>([&](auto t) {
      __m512 part = _mm512_setzero_ps();
      unroll<kCount>([&](auto i) {
        const __m512i d = _mm512_load_si512(products[i] + t * kBlockRows);
        part = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), scales[i], part);
        if (Format::kOffset) part = _mm512_fmadd_ps(in_all_lanes(groups[i].x[t]), offsets[i], part);
      });
      sums[t] = _mm512_fmadd_ps(part, in_all_lanes(groups[0].x[T + t]), sums[t]);
    });
  }

  // Each step takes long to come through, so chunks of groups take turns: while the bytes of one
  // are laid out, the products of the one before are made, those of the one before that are stored,
  // and added are those that were stored last.
  template <int T, int kGroup>
  static FORERUN_INLINE void run_groups(const TileArgs& a) {
    constexpr int kFull = kGroup / 4 / Format::kPanelRows;
    alignas(64) std::uint8_t rooms[2 * kChunk][kGroup / 4 * kLine];
    alignas(64) std::int32_t products[2 * kChunk][kTileRows * kBlockRows];
    Group groups[4 * kChunk];
    Walk<kFull> walk(a, T);
    __m512 sums[T];
    unroll<T>([&](auto t) {
      sums[t] = _mm512_setzero_ps();
      prefetch_to_store(a.out + t * a.out_stride);
    });
    const std::int64_t count = (a.lines + kFull - 1) / kFull;
    // Of the chunk that begins with group `first`, where there is one; place 0 or 1 in turns.
    const auto chunk = [&](std::int64_t first, auto place, const auto& body) FORERUN_INLINE_BODY {
      unroll<kChunk>([&](auto i) {
        const std::int64_t g = first + i;
        if (g >= 0 && g < count) body(groups[g % (4 * kChunk)], Constant<place * kChunk + i>{});
      });
    };
    const auto add_chunk = [&](std::int64_t first, auto place) FORERUN_INLINE_BODY {
      constexpr int kTogether = Format::kShared && kGroup == 32 ? 2 : 1;  // groups_per_scale
      if (first < 0) return;
      unroll<kChunk / kTogether>([&](auto i) FORERUN_INLINE_BODY {
        const std::int64_t g = first + i * kTogether;
        if (g >= count) return;
        const auto* d = products + place * kChunk + i * kTogether;
        const Group* group = groups + g % (4 * kChunk);
        if (g + kTogether <= count) {
          add_groups<T, kTogether>(d, group, sums);
        } else {
          add_groups<T, 1>(d, group, sums);
        }
      });
    };
    const auto step = [&](std::int64_t first, auto place) FORERUN_INLINE_BODY {
      constexpr Constant<1 - place> kOther;
      chunk(first, place, [&](Group& group, auto i) FORERUN_INLINE_BODY {
        group = walk.next();
        group.w = bytes_of<kFull>(group, rooms[i]);
      });
      chunk(first - kChunk, kOther, [&](const Group& group, auto i) FORERUN_INLINE_BODY {
        const auto* x = reinterpret_cast<const std::uint8_t*>(group.x + 2 * T);
        multiply_tile<Format, kGroup, i>(x, group.w);
      });
      chunk(first - 2 * kChunk, place,
            [&](const Group&, auto i) FORERUN_INLINE_BODY { store_tile<i>(products[i]); });
      add_chunk(first - 3 * kChunk, kOther);
    };
    for (std::int64_t first = 0; first < count + 3 * kChunk; first += 2 * kChunk) {
      step(first, Constant<0>{});
      step(first + kChunk, Constant<1>{});
    }
    unroll<T>([&](auto t) { store_rows(a, t, sums[t]); });
  }

  template <int T>
  FORERUN_FLATTEN static void run(const TileArgs& a) {
    switch (a.group_lines * Format::kPanelRows) {
      case 8: return run_groups<T, 32>(a);
      case 16: return run_groups<T, 64>(a);
      default: return run_groups<T, 128>(a);
    }
  }
};

template <class Format>
KernelSet make_tile_set(Precision precision) {
  KernelSet set = make_set<AmxGrouped<Format>>(Level::amx, precision);
  set.token_major = true;
  set.begin = begin<Format>;
  set.end = end;
  return set;
}

}  // namespace

const KernelSet& amx_int8_set() {
  static const KernelSet set = make_tile_set<Bytes>(Precision::int8);
  return set;
}

const KernelSet& amx_int4_set() {
  static const KernelSet set = make_tile_set<Nibbles>(Precision::int4);
  return set;
}

const KernelSet& amx_int8_offset_set() {
  static const KernelSet set = make_tile_set<WithOffset<Bytes>>(Precision::int8_offset);
  return set;
}

const KernelSet& amx_int4_offset_set() {
  static const KernelSet set = make_tile_set<WithOffset<Nibbles>>(Precision::int4_offset);
  return set;
}

}  // namespace forerun::cpu
