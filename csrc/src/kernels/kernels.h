// What a level offers for one precision, and what a kernel takes.
//
// A tile kernel computes blocks of 16 rows for T tokens: it reads each line of weights once and
// keeps one accumulator for each token and block. For each output it takes k in rising order, so T,
// which only says what shares registers, never changes a result:
//   fp32       s = fma(w[k], x[k], s)
//   bf16       s = fma(w[k], x[k], fma(w[k+1], x[k+1], s)) for even k: what vdpbf16ps does
//   by AMX     for 32 k at a time  s = s + (e + o), e = fma(w[k], x[k], e) over even k from e = 0
//              on, o the same over odd ones: what tdpbf16ps does
//   int8 int4  per group: exact int32 dot product d; p = fma(float(d), w_scale, p), from p = 0 on
//              with offset: after that  p = fma(float(sum of x), w_offset, p)
//              after the groups that share an x_scale: s = fma(p, x_scale, s)
//   llama.cpp's blocks   the same; w_scale, an integer times an fp16 number, is exact, and so is
//   w_offset
// All levels follow these lines to the letter and so agree bit for bit, but in bf16 by AMX.
// vdpbf16ps and tdpbf16ps take subnormal numbers as zero; the caller sets all else to do so too
// (float_mode.h), where it can: outside x86 a bf16 sum may differ by 2^-126 at each step.
//
// One block at a time is enough for few tokens: blocks in turn are one stream, which the
// processor's own prefetching follows best, and out-of-order execution overlaps what latency
// leaves.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../coded_panel.h"
#include "forerun/cpu_level.h"
#include "forerun/kv_cache.h"
#include "forerun/packed_matrix.h"

namespace forerun::cpu {

// How integer kernels fetch: 0 for all lines into the first-level cache; otherwise lines far ahead
// go to the second-level cache, and those so many bytes ahead to the first. Intel's first-level
// cache waits for 16 lines at most: fetching all into it takes 2 to 13 % longer with one to eight
// tokens. AMD's takes 4 to 8 % less that way where memory is slower than the kernel, and 2 to 20 %
// longer where the kernel is (`slower_than_memory`): with four to eight tokens. Float formats fetch
// all into it on both.
std::ptrdiff_t near_bytes(bool slower_than_memory = false);

// Lines to fetch while a tile is computed: one for each line of the block (scales too), `step`
// bytes further each time, from `first` and, after `switch_line` lines, from `second`. In grouped
// formats the switch is where a line of scales stands.
struct Ahead {
  const std::uint8_t* first = nullptr;
  const std::uint8_t* second = nullptr;
  std::int64_t switch_line = 0;
  std::ptrdiff_t step = 0;
  std::ptrdiff_t near = 0;  // near_bytes() in integer formats
  // Of sets that stream blocks, in place of step: one line is fetched for so many.
  std::int64_t every = 1;
};

struct TileArgs {
  const std::uint8_t* weights = nullptr;  // the first block
  std::int64_t blocks = 1;  // at most the set's max_blocks, of more than tile_tokens tokens one;
                            // any number where it streams them
  std::ptrdiff_t block_bytes = 0;  // from one to the next
  const void* panel = nullptr;     // activations of the T tokens, see activations in linear.h
  std::int64_t lines = 0;          // of values, in the block and
  std::int64_t group_lines = 0;    // in a full group
  int groups_together = 1;         // that share a scale of the activations: 1 or 2
  bool paired = false;             // the panel: see paired_groups.h
  Ahead ahead;
  float* out = nullptr;  // [T, out_stride], at the first of the rows
  std::int64_t out_stride = 0;
  std::int64_t rows = 0;        // to be stored, at most 16 of each block
  const float* bias = nullptr;  // at the first of the rows, or null
  bool accumulate = false;      // out += instead of out =
  // Where given, kRoomBytes for what is laid out of these blocks, and whether a tile before has
  // laid them out there.
  std::uint8_t* room = nullptr;
  bool laid_out = false;
  // The sums go on from what `out` holds rather than from 0, as if a longer k were cut in two:
  // float formats only. Without bias and accumulate.
  bool resume = false;

  bool ends_scale(std::int64_t group) const { return groups_together == 1 || group % 2 == 1; }
};

using TileKernel = void (*)(const TileArgs&);

// Blocks of a tile of the cache, each `block_bytes` behind the one before, whose outputs lie side
// by side: 16 slots or 16 dimensions each.
struct CacheTile {
  const std::uint8_t* weights = nullptr;
  std::int64_t blocks = 0;
  std::int64_t block_bytes = 0;
  std::int64_t lines = 0;    // of a block
  std::ptrdiff_t ahead = 0;  // what to fetch, from each line on
  const void* panel = nullptr;
  float* out = nullptr;  // [T, out_stride]
  std::int64_t out_stride = 0;
  bool resume = false;  // as in TileArgs; AMX adds what it sums up from 0 on
};

using CacheKernel = void (*)(const CacheTile&);

// Lines to fetch, one behind the other, in pieces.
struct LinesAhead {
  const std::uint8_t* next = nullptr;
  const std::uint8_t* end = nullptr;
};

// The same of a cache of codes (coded_head.h), in one plane of nibbles or in two that are a byte
// together. A line of a plane has eight codes for each of 16 slots or dimensions, four in the lower
// halves of its bytes and four in the upper ones; to a kernel they count from 0.
//
// Each number that they are multiplied with is two digits (coded_panel.h), so that sums are exact
// integers.
struct CodedTile {
  const std::uint8_t* upper = nullptr;
  std::ptrdiff_t lower = 0;  // from the upper plane to the lower
  std::int64_t blocks = 0;
  std::int64_t block_bytes = 0;  // from one block to the next
  std::int64_t lines = 0;        // of a group, in a block of a plane
  std::int64_t groups = 1;       // in a block, each with columns of its own
  std::ptrdiff_t ahead = 0;      // from each block on, as many lines as it has
  std::ptrdiff_t near = near_bytes();
  LinesAhead* queue = nullptr;            // see CodedSet
  int columns = 0;                        // T
  const ColumnDigits* digits = nullptr;   // [groups, T]
  const ColumnTerms* terms = nullptr;     // [groups, T]
  const std::uint16_t* scales = nullptr;  // of scores: bf16 [groups, kTileSlots]
  float* out = nullptr;                   // [T, out_stride]
  std::int64_t out_stride = 0;
  // Of values, which may lie in several tiles: integers that the sums go on from, and whether they
  // are stored there once more instead of being added to `out`.
  std::int32_t* sums = nullptr;  // [T, out_stride]
  bool resume = false;
  bool keep = false;
};

using CodedKernel = void (*)(const CodedTile&);

// Of blocks that go through several tiles of tokens in a row: few enough for each tile to find them
// in a cache that is near. Laid out they take up to twice as much, and a stream goes on to a little
// behind.
constexpr std::int64_t kKeptBytes = 64 << 10;
constexpr std::int64_t kRoomBytes = 2 * kKeptBytes + (16 << 10);

constexpr int kMaxTileTokens = 32;
constexpr int kLeastTileTokens = 6;  // that AMX has kernels for
constexpr std::size_t kBehindPanel = 128;

struct KernelSet {
  Level level = Level::portable;
  Precision precision = Precision::fp32;
  // So many tokens make one tile; more are cut into tiles of up to tile_tokens, for which a kernel
  // takes up to max_blocks at once, or works on so many together where it streams them.
  int max_tokens = 1;
  int tile_tokens = 1;
  int max_blocks = 1;
  // Kernels take any number of blocks, whatever the tokens, and go through them as one stream.
  bool streams_blocks = false;
  TileKernel kernel[kMaxTileTokens + 1] = {};  // by tokens
  // Float formats only, by tokens: of keys, with panels like those above, and of values, with
  // panels that hold the kTileSlots weights of each token one after the other.
  CacheKernel scores[kMaxTileTokens + 1] = {};
  CacheKernel values[kMaxTileTokens + 1] = {};
  // Whether kernels that stream blocks lay weights out first, and take TileArgs::room.
  bool lays_out = false;
  // Whether panels hold the tokens of a group, in bf16 of step_lines, one after the other: see
  // activations in linear.h.
  bool token_major = false;
  bool pairs_up = false;  // groups, as paired_groups.h says
  // Lines of a float format whose products are summed up before they join the result. Where they
  // are several, the values of a tile are, too: they come in one call.
  int step_lines = 1;
  // Where given, a thread calls `begin` before its first tile of a product, with the tokens of the
  // widest and the columns of a group, and `end` after its last. A kernel may read as far behind a
  // panel as kBehindPanel says: a token that a narrower tile lacks; those of the cache as far as
  // all that the widest has, and write as many scores.
  void (*begin)(int tokens, int group) = nullptr;
  void (*end)() = nullptr;
};

constexpr int kMaxCodedColumns = 32;

// Kernels of a cache of codes, by planes less one and T, at most max_columns.
//   scores  for each group: s = fma(float(exact sum) * x_scale, slot's scale, s)
//   values  out = fma(float(exact sum), x_scale, out)
struct CodedSet {
  int max_columns = 1;
  CodedKernel scores[2][kMaxCodedColumns + 1] = {};
  CodedKernel values[2][kMaxCodedColumns + 1] = {};
  // Of so many columns and more, kernels are so fast that memory must be kept busy between them
  // too: where there is a queue they fetch a quarter of a tile from it rather than `ahead`, and
  // with each column's step between them the caller passes some lines more.
  int pass_from = kMaxCodedColumns + 1;
  void (*pass)(LinesAhead& queue, std::int64_t lines) = nullptr;
  // Where given, a thread calls them before its first kernel and after its last. Such kernels may
  // read digits of up to kBehindColumns columns more.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
};
constexpr int kBehindColumns = 7;

const CodedSet& coded_set(Level limit);

// The best set for so many tokens of this format that does not exceed `limit` or the processor.
const KernelSet& kernel_set(Precision precision, Level limit, std::int64_t tokens);

const KernelSet& portable_set(Precision precision);
const CodedSet& portable_coded_set();
#if defined(FORERUN_X86_KERNELS)
const CodedSet& avx2_coded_set();
const CodedSet& avx512_coded_set();
const KernelSet& avx2_fp32_set();
const KernelSet& avx2_bf16_set();
const KernelSet& avx2_int8_set();
const KernelSet& avx2_int4_set();
const KernelSet& avx2_int8_offset_set();
const KernelSet& avx2_int4_offset_set();
const KernelSet& avx2_blocks_set(Precision precision);
const KernelSet& avx512_fp32_set();
const KernelSet& avx512_bf16_set();
const KernelSet& avx512_int8_set();
const KernelSet& avx512_int4_set();
const KernelSet& avx512_int8_offset_set();
const KernelSet& avx512_int4_offset_set();
const KernelSet& avx512_blocks_set(Precision precision);
#endif
#if defined(FORERUN_AMX_KERNELS)
const CodedSet& amx_coded_set();
const KernelSet& amx_bf16_set();
const KernelSet& amx_int8_set();
const KernelSet& amx_int4_set();
const KernelSet& amx_int8_offset_set();
const KernelSet& amx_int4_offset_set();
#endif

}  // namespace forerun::cpu
