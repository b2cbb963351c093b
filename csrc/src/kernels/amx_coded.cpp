// A cache of codes by tdpbsud, for many columns: operand A is both digits of eight of them, B the
// codes of a group in a block as bytes, and C what they add up to for 16 slots or dimensions:
// integers, so the results are those of the other levels.
#include <algorithm>
#include <cstring>

#include "amx_tiles.h"
#include "avx512_coded.h"

namespace forerun::cpu {
namespace {

// Up to so many columns AVX-512 takes no longer.
constexpr int kMostWithoutTiles = 3;

// Rows of a tile are both digits of so many columns.
constexpr int kColumnsOfTile = kTileRows / 2;
static_assert(kBehindColumns == kColumnsOfTile - 1);

// Tile registers: behind those for sums.
constexpr int kSums = 4;
constexpr int kDigits = 4;
constexpr int kCodes = 5;
constexpr int kRow = 6;  // that keeps tiles awake
constexpr int kRowSums = 7;

using Codes = std::uint8_t[kTileRows * kLine];
using Products = std::int32_t[kTileRows * kBlockRows];

void begin() {
  TileConfig config;
  for (int tile = 0; tile <= kCodes; ++tile) config.describe(tile, kTileRows, kLine);
  for (const int row : {kRow, kRowSums}) config.describe(row, 1, kLine);
  config.load();
}

FORERUN_INLINE void fetch(LinesAhead& queue, std::int64_t lines) {
  const std::uint8_t* end = std::min(queue.next + lines * kLine, queue.end);
  for (; queue.next < end; queue.next += kLine) asm volatile("prefetcht1 %a0" : : "p"(queue.next));
}

// Tiles that rest for 1,500 cycles take 1,000 to wake up, so they are given something to do.
void pass(LinesAhead& queue, std::int64_t lines) {
  fetch(queue, lines);
  multiply_tiles<kRowSums, kRow, kCodes>();
}

// The codes of a group in a block, four of each of 16 slots or dimensions in a row.
template <int kPlanes>
FORERUN_INLINE void lay_out(const CodedTile& c, std::int64_t block, std::int64_t group,
                            std::uint8_t* to) {
  const std::int64_t first = group * c.lines * kLine;
  const std::uint8_t* memory = c.upper + block * c.block_bytes;
  const std::uint8_t* at = memory + first;
  const std::uint8_t* here = memory + kPlanes * first;  // in the order of lines
  const std::uint8_t* end = at + c.lines * kLine;
  for (; at != end; at += kLine, here += kPlanes * kLine, to += 2 * kLine) {
    unroll<kPlanes>([&](auto plane) {
      const std::uint8_t* line = here + plane * kLine;
      if (c.ahead == 0) prefetch(line + c.near);
      else prefetch(line + c.ahead, line, c.near);
    });
    __m512i codes[2];
    load_codes<kPlanes>(at, c.lower, codes);
    _mm512_store_si512(to, codes[0]);
    _mm512_store_si512(to + kLine, codes[1]);
  }
}

// Columns [first, first + count) of a group in a block.
struct Part {
  std::int64_t group = 0;
  std::int64_t block = 0;
  int first = 0;

  FORERUN_INLINE int count(const CodedTile& c) const {
    return std::min(c.columns - first, kColumnsOfTile);
  }
  FORERUN_INLINE void advance(const CodedTile& c) {
    first += kColumnsOfTile;
    if (first < c.columns) return;
    first = 0;
    ++block;
  }
};

// Each step takes long to come through: when the products of one part are made, those of the second
// before it are stored, and add(part, products) follows for the third.
template <int kPlanes, class Add>
FORERUN_INLINE void run_group(const CodedTile& c, std::int64_t group, const Add& add) {
  constexpr int kBlocks = static_cast<int>(kTileSlots) / kBlockRows;
  alignas(kLineBytes) Codes codes[kBlocks];
  // Rows that a short group lacks count for nothing.
  if (c.lines * kCodesOfLine < kDigitsOfColumn) std::memset(codes, 0, sizeof codes);
  for (std::int64_t b = 0; b < c.blocks; ++b) lay_out<kPlanes>(c, b, group, codes[b]);
  alignas(kLineBytes) Products products[kSums];
  Part multiplied = {group};
  Part added = {group};
  const std::int64_t parts = c.blocks * ((c.columns + kColumnsOfTile - 1) / kColumnsOfTile);
  const std::int64_t lines = kPlanes * c.lines * c.blocks / (2 * parts);
  LinesAhead queue = *c.queue;
  const auto turn = [&](std::int64_t i, auto place) FORERUN_INLINE_BODY {
    if (i < parts) {
      if (multiplied.first == 0) load_tile<kCodes>(codes[multiplied.block], kLine);
      zero_tile<place>();
      load_tile<kDigits>(c.digits + group * c.columns + multiplied.first, kDigitsOfColumn);
      multiply_tiles<place, kDigits, kCodes>();
      multiplied.advance(c);
    }
    constexpr int kStored = (place + kSums - 2) % kSums;
    if (i >= 2 && i < parts + 2) store_tile<kStored>(products[kStored]);
    if (i >= 3 && i < parts + 3) {
      add(added, products[(place + kSums - 3) % kSums]);
      added.advance(c);
      fetch(queue, lines);
    }
  };
  for (std::int64_t i = 0; i < parts + 3; i += kSums)
    unroll<kSums>([&](auto place) FORERUN_INLINE_BODY { turn(i + place, place); });
  *c.queue = queue;
}

// What the digits of a column add up to.
FORERUN_INLINE __m512i sum_of(const Products& products, int column, std::int32_t start) {
  const __m512i high = _mm512_load_si512(products + 2 * column * kBlockRows);
  const __m512i low = _mm512_load_si512(products + (2 * column + 1) * kBlockRows);
  const __m512i from = _mm512_add_epi32(low, _mm512_set1_epi32(start));
  return _mm512_add_epi32(_mm512_slli_epi32(high, 7), from);
}

template <int kPlanes>
FORERUN_FLATTEN void scores(const CodedTile& c) {
  const auto add = [&](const Part& part, const Products& products) FORERUN_INLINE_BODY {
    const std::int64_t stride = c.out_stride;
    const ColumnTerms* terms = c.terms + part.group * c.columns + part.first;
    float* to = c.out + part.first * stride + part.block * kBlockRows;
    const __m512 slots = scales_of(c.scales + part.group * kTileSlots + part.block * kBlockRows);
    const bool resumes = part.group != 0;
    const int count = part.count(c);
    for (int t = 0; t < count; ++t, to += stride) {
      const __m512 sum = _mm512_cvtepi32_ps(sum_of(products, t, terms[t].start));
      const __m512 product = _mm512_mul_ps(sum, _mm512_set1_ps(terms[t].scale));
      const __m512 before = resumes ? _mm512_loadu_ps(to) : _mm512_setzero_ps();
      _mm512_storeu_ps(to, _mm512_fmadd_ps(product, slots, before));
    }
  };
  for (std::int64_t group = 0; group < c.groups; ++group) run_group<kPlanes>(c, group, add);
}

template <int kPlanes>
FORERUN_FLATTEN void values(const CodedTile& c) {
  const auto add = [&](const Part& part, const Products& products) FORERUN_INLINE_BODY {
    const bool resume = c.resume;
    const bool keep = c.keep;
    const std::int64_t stride = c.out_stride;
    const ColumnTerms* terms = c.terms + part.first;
    const std::int64_t at = part.first * stride + part.block * kBlockRows;
    std::int32_t* held = c.sums + at;
    float* to = c.out + at;
    const int count = part.count(c);
    for (int t = 0; t < count; ++t, held += stride, to += stride) {
      __m512i sum = sum_of(products, t, terms[t].start);
      if (resume) sum = _mm512_add_epi32(sum, _mm512_loadu_si512(held));
      if (keep) {
        _mm512_storeu_si512(held, sum);
        continue;
      }
      const __m512 scale = _mm512_set1_ps(terms[t].scale);
      _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, _mm512_loadu_ps(to)));
    }
  };
  run_group<kPlanes>(c, 0, add);
}

CodedSet make_tile_set() {
  CodedSet set = avx512_coded_set();
  set.max_columns = kMaxCodedColumns;
  for (int columns = kMostWithoutTiles + 1; columns <= set.max_columns; ++columns) {
    set.scores[0][columns] = scores<1>;
    set.scores[1][columns] = scores<2>;
    set.values[0][columns] = values<1>;
    set.values[1][columns] = values<2>;
  }
  set.pass_from = kMostWithoutTiles + 1;
  set.pass = pass;
  set.begin = begin;
  set.end = end;
  return set;
}

}  // namespace

const CodedSet& amx_coded_set() {
  static const CodedSet set = make_tile_set();
  return set;
}

}  // namespace forerun::cpu
