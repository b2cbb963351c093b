// The AMX kernels of bf16.
//
// A line of weights, 2 columns of 16 rows, is a row of AMX's operand B; A is up to 16 tokens, C
// their sums. A product need not wait for the one before that adds to the same sums, so a chain of
// them is as fast as several.
#include <algorithm>
#include <cstring>

#include "amx_tiles.h"
#include "avx512_common.h"
#include "stream_fetch.h"

namespace forerun::cpu {
namespace {

constexpr int kStepLines = kTileRows;  // that a product takes
constexpr std::int64_t kStepBytes = kStepLines * kLine;
constexpr int kMostTiles = 2;   // of tokens
constexpr int kMostBlocks = 2;  // that share what is loaded of the tokens

// Tile registers: behind those for the sums of each block and tile of tokens.
constexpr int kA = kMostBlocks * kMostTiles;
constexpr int kB = kA + kMostTiles;

constexpr int sums_tile(int block, int tile) { return kMostTiles * block + tile; }
constexpr int tiles_of(int tokens) { return (tokens + kTileRows - 1) / kTileRows; }

void begin(int tokens, int) {
  TileConfig config;
  for (int tile = 0; tile < kMostTiles; ++tile) {
    const int rows = std::clamp(tokens - tile * kTileRows, 1, kTileRows);
    for (int block = 0; block < kMostBlocks; ++block)
      config.describe(sums_tile(block, tile), rows, kLine);
    config.describe(kA + tile, rows, kLine);
  }
  for (int block = 0; block < kMostBlocks; ++block) config.describe(kB + block, kTileRows, kLine);
  config.load();
}

// Where a panel has the columns of a product, in bytes: of the next token and of the next product.
struct Columns {
  const void* first;
  std::int64_t token;
  std::int64_t step;
};

struct Blocks {
  const std::uint8_t* first;
  std::int64_t bytes;  // from one to the next
  std::int64_t lines;  // of each
};

// What the next product takes, into the first-level cache: the processor's own fetching follows
// this, and not what tiles load. From further ahead few tokens take up to 1.2 times as long.
FORERUN_INLINE void fetch(const std::uint8_t* w) {
  unroll<kStepLines>([&](auto i) FORERUN_INLINE_BODY { prefetch(w + i * kLine); });
}

// Leaves the sums of kBlocks blocks for kTiles tiles of tokens in their tile registers. Calls
// between(w, next) for each product and block, with what it takes and what follows.
template <int kTiles, int kBlocks, class Between>
FORERUN_INLINE void multiply(const Blocks& blocks, const Columns& columns, const Between& between) {
  unroll<kBlocks>([&](auto block) FORERUN_INLINE_BODY {
    unroll<kTiles>([&](auto tile) FORERUN_INLINE_BODY { zero_tile<sums_tile(block, tile)>(); });
  });
  const auto* x = static_cast<const std::uint8_t*>(columns.first);
  const auto step = [&](const std::uint8_t* w, std::int64_t next) FORERUN_INLINE_BODY {
    unroll<kTiles>([&](auto tile) FORERUN_INLINE_BODY {
      load_tile<kA + tile>(x + tile * kTileRows * columns.token, columns.token);
    });
    unroll<kBlocks>([&](auto block) FORERUN_INLINE_BODY {
      load_tile<kB + block>(w + block * next, kLine);
      unroll<kTiles>([&](auto tile) FORERUN_INLINE_BODY {
        multiply_bf16_tiles<sums_tile(block, tile), kA + tile, kB + block>();
      });
    });
    x += columns.step;
  };
  const std::uint8_t* w = blocks.first;
  for (std::int64_t left = blocks.lines / kStepLines; left > 0; --left, w += kStepBytes) {
    step(w, blocks.bytes);
    const std::uint8_t* next = left > 1 ? w + kStepBytes : blocks.first + kBlocks * blocks.bytes;
    unroll<kBlocks>([&](auto block) FORERUN_INLINE_BODY {
      between(w + block * blocks.bytes, next + block * blocks.bytes);
    });
  }
  const std::int64_t rest = blocks.lines % kStepLines;
  if (rest == 0) return;
  // What is behind the block must be no NaN.
  alignas(kLineBytes) std::uint8_t last[kBlocks][kStepBytes] = {};
  unroll<kBlocks>([&](auto block) FORERUN_INLINE_BODY {
    std::memcpy(last[block], w + block * blocks.bytes, static_cast<std::size_t>(rest * kLine));
  });
  step(last[0], kStepBytes);
}

// The same for `count` blocks; of each, take(place, block) has to take the sums from the tile
// registers of a place.
template <int kTiles, class Between, class Take>
FORERUN_INLINE void multiply_all(Blocks blocks, std::int64_t count, const Columns& columns,
                                 const Between& between, const Take& take) {
  std::int64_t b = 0;
  for (; b + kMostBlocks <= count; b += kMostBlocks) {
    multiply<kTiles, kMostBlocks>(blocks, columns, between);
    unroll<kMostBlocks>([&](auto place) FORERUN_INLINE_BODY { take(place, b + place); });
    blocks.first += kMostBlocks * blocks.bytes;
  }
  if (b == count) return;
  multiply<kTiles, 1>(blocks, columns, between);
  take(Constant<0>{}, b);
}

using Sums = float[kMostTiles * kTileRows * kBlockRows];

// The sums of a block, as they lie in the registers.
template <int kTiles, int kBlock>
FORERUN_INLINE void store_sums(float* to, std::int64_t stride) {
  unroll<kTiles>([&](auto tile) FORERUN_INLINE_BODY {
    store_tile<sums_tile(kBlock, tile)>(to + tile * kTileRows * stride,
                                        stride * static_cast<std::int64_t>(sizeof(float)));
  });
}

struct AmxBf16 {
  static constexpr int kMaxTokens = kMostTiles * kTileRows;

  template <int T>
  FORERUN_FLATTEN static void run(const TileArgs& a) {
    constexpr int kTiles = tiles_of(T);
    alignas(kLineBytes) Sums sums[kMostBlocks];
    StreamFetch<false> ahead(a.ahead, a.weights);
    const bool again = a.ahead.every > 1;  // other tiles of tokens go through the same blocks
    const auto between = [&](const std::uint8_t* w, const std::uint8_t* next) FORERUN_INLINE_BODY {
      again ? ahead.with(w, kStepLines) : fetch(next);
    };
    const auto take = [&](auto place, std::int64_t block) FORERUN_INLINE_BODY {
      store_sums<kTiles, place>(sums[place], kBlockRows);
      for (int t = 0; t < T; ++t)
        store_rows(a, t, _mm512_load_ps(sums[place] + t * kBlockRows), static_cast<int>(block));
    };
    const Blocks blocks = {a.weights, a.block_bytes, a.lines};
    const Columns columns = {a.panel, kLine, T * kLine};
    multiply_all<kTiles>(blocks, a.blocks, columns, between, take);
  }

  template <int T>
  FORERUN_FLATTEN static void scores(const CacheTile& c) {
    constexpr int kTiles = tiles_of(T);
    const auto take = [&](auto place, std::int64_t block) FORERUN_INLINE_BODY {
      store_sums<kTiles, place>(c.out + block * kBlockRows, c.out_stride);
    };
    const Columns columns = {c.panel, kLine, T * kLine};
    run_tile<kTiles>(c, columns, take);
  }

  template <int T>
  FORERUN_FLATTEN static void values(const CacheTile& c) {
    constexpr int kTiles = tiles_of(T);
    alignas(kLineBytes) Sums sums[kMostBlocks];
    const auto take = [&](auto place, std::int64_t block) FORERUN_INLINE_BODY {
      store_sums<kTiles, place>(sums[place], kBlockRows);
      float* out = c.out + block * kBlockRows;
      for (int t = 0; t < T; ++t, out += c.out_stride) {
        const __m512 sum = _mm512_load_ps(sums[place] + t * kBlockRows);
        _mm512_storeu_ps(out, _mm512_add_ps(_mm512_loadu_ps(out), sum));
      }
    };
    const Columns columns = {c.panel, 2 * kTileSlots, kLine};
    run_tile<kTiles>(c, columns, take);
  }

 private:
  template <int kTiles, class Take>
  static FORERUN_INLINE void run_tile(const CacheTile& c, const Columns& columns,
                                      const Take& take) {
    const auto between = [](const std::uint8_t*, const std::uint8_t* next)
                             FORERUN_INLINE_BODY { fetch(next); };
    const Blocks blocks = {c.weights, c.block_bytes, c.lines};
    multiply_all<kTiles>(blocks, c.blocks, columns, between, take);
  }
};

// The first and the second of each of 16 pairs of bf16.
FORERUN_INLINE __m512 first_of(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
FORERUN_INLINE __m512 second_of(__m512i pairs) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, upper));
}

// Scores or values of one column, by AVX-512 in AMX's order: one token's, with a query head for
// each key head. Tiles that rest for 1,500 cycles take 1,000 to wake up, and take as long for one
// column as for sixteen: a forward of llama-350m takes 1 to 2 % less by this. Two columns take more
// at long contexts.
FORERUN_FLATTEN void one_column(const CacheTile& c) {
  for (std::int64_t block = 0; block < c.blocks; ++block) {
    const std::uint8_t* w = c.weights + block * c.block_bytes;
    const auto* x = static_cast<const std::uint8_t*>(c.panel);
    __m512 sum = _mm512_setzero_ps();
    for (std::int64_t left = c.lines; left > 0; left -= kStepLines, x += kLine) {
      alignas(kLineBytes) float first[kStepLines];
      alignas(kLineBytes) float second[kStepLines];
      const __m512i column = _mm512_loadu_si512(x);
      _mm512_store_ps(first, first_of(column));
      _mm512_store_ps(second, second_of(column));
      __m512 even = _mm512_setzero_ps();
      __m512 odd = _mm512_setzero_ps();
      const std::int64_t lines = std::min<std::int64_t>(left, kStepLines);
      for (std::int64_t line = 0; line < lines; ++line, w += kLine) {
        prefetch(w + c.ahead);
        const __m512i weights = _mm512_loadu_si512(w);
        even = _mm512_fmadd_ps(first_of(weights), _mm512_set1_ps(first[line]), even);
        odd = _mm512_fmadd_ps(second_of(weights), _mm512_set1_ps(second[line]), odd);
      }
      sum = _mm512_add_ps(sum, _mm512_add_ps(even, odd));
    }
    float* out = c.out + block * kBlockRows;
    if (c.resume) sum = _mm512_add_ps(_mm512_loadu_ps(out), sum);
    _mm512_storeu_ps(out, sum);
  }
}

KernelSet make_bf16_set() {
  KernelSet set = make_set<AmxBf16>(Level::amx, Precision::bf16);
  set.scores[1] = set.values[1] = &one_column;
  unroll<AmxBf16::kMaxTokens - 1>([&](auto i) {
    set.scores[i + 2] = &AmxBf16::scores<i + 2>;
    set.values[i + 2] = &AmxBf16::values<i + 2>;
  });
  set.max_blocks = kMostBlocks;
  set.streams_blocks = true;
  set.token_major = true;
  set.step_lines = kStepLines;
  set.begin = begin;
  set.end = end;
  return set;
}

}  // namespace

const KernelSet& amx_bf16_set() {
  static const KernelSet set = make_bf16_set();
  return set;
}

}  // namespace forerun::cpu
