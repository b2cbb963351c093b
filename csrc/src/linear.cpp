#include "forerun/linear.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "float_mode.h"
#include "kernels/kernels.h"

namespace forerun::cpu {
namespace {

constexpr auto kLine = static_cast<std::int64_t>(kLineBytes);
// The least that a thread takes at a time: some microseconds, for one token of reading, for many of
// computing.
constexpr std::int64_t kChunkBytes = 64 << 10;

// How many lines ahead of its stream a tile fetches: enough for memory's latency. The processor's
// own prefetching stays too near: without, one token takes up to 1.4 times as long.
constexpr std::int64_t kAhead = 128;
// Parts of what follows that tiles fetch in turns; of more tiles, several fetch the same.
constexpr std::int64_t kMostParts = 16;
// How many blocks go through all of several tiles in a row, of kernels that stream them: of
// kKeptBytes, but no fewer than a kernel works on together.
constexpr std::int64_t kMostKept = 8;
// Outputs of them that a gate has room for, of kernels that stream; others are left more of the
// first-level cache.
constexpr std::int64_t kMostGated = kMostKept * kMaxTileTokens * kBlockRows;
static_assert(MatrixShape::kMostUnitColumns <= kMostKept * kBlockRows,
              "there is room for what is packed together");

struct Product {
  const PackedMatrix& weights;
  const std::uint8_t* blocks;  // of the weights
  const Activations& x;
  float* y;
  std::int64_t y_stride;
  LinearOptions options;
  int threads;
  std::int64_t packed_blocks;  // of a gate's results, so many are packed together; 0: stored
  const std::uint8_t* following = nullptr;  // what the thread's share goes on with, if given

  // Where the stream goes on after a thread's share: in its share of the next matrix, or nowhere:
  // with the last block again, which is in the cache.
  const std::uint8_t* afterwards(const Range& range) const {
    if (following != nullptr) return following;
    if (options.next == nullptr) return weights.block(range.end - 1);
    return options.next->block(options.next->shape().blocks() * range.thread / threads);
  }
};

// What is left to read: blocks in a row, the next call's first among them, then what lies at
// `after`.
struct Stream {
  std::int64_t blocks;
  const std::uint8_t* after;
};

// One pass over blocks: each line fetches the one that the stream comes to kAhead lines later. The
// switch that this takes where blocks in a row end, a branch that is guessed wrong, costs a
// twentieth of a block's time.
// Several passes over blocks, one for each tile: each fetches its part of the blocks that follow,
// in the order in which they lie, so that memory is busy during all.
struct AheadPlan {
  std::int64_t lines;  // in a block
  std::int64_t unit;   // of lines, where a switch can be
  std::int64_t tiles;
  bool streams;
  std::ptrdiff_t near;

  AheadPlan(const MatrixShape& shape, const Activations& x)
      : lines(shape.all_lines()),
        unit(shape.unit_lines()),
        tiles(x.tiles()),
        streams(x.kernels().streams_blocks),
        near(near_bytes(tiles == 1 && x.tokens() >= (shape.bytes_wide() ? 5 : 4))) {}

  Ahead tile(std::int64_t index, const TileArgs& a, const Stream& stream) const {
    const std::uint8_t* here = a.weights;
    if (tiles > 1) {
      const std::uint8_t* following =
          stream.blocks > a.blocks ? here + a.blocks * a.block_bytes : stream.after;
      if (streams) {
        const std::uint8_t* part = following + index * a.blocks * lines / tiles * kLine;
        return {following, part, 0, kLine, 0, tiles};
      }
      // A line of weights each time at most, and no less than a few bytes.
      const std::int64_t parts = std::min(std::max(tiles, a.blocks), kMostParts);
      const std::int64_t step = a.blocks * kLine / parts;
      return {following, following + index * parts / tiles * (lines * step), 0, step, near};
    }
    const std::int64_t left = stream.blocks * lines;
    const std::int64_t last = std::max<std::int64_t>(left - kAhead, 0);
    const std::int64_t turn = last - last % lines % unit;
    const std::int64_t passed = std::max<std::int64_t>(kAhead - left, 0);
    return {here + (left - turn) * kLine, stream.after + passed * kLine,
            std::min(turn, a.blocks * lines), kLine, near};
  }
};

// What a kernel has to set up in the thread that runs it.
class KernelScope {
 public:
  explicit KernelScope(const Activations& x) : end_(x.kernels().end) {
    // Tile 0 is the widest.
    if (end_ != nullptr) x.kernels().begin(x.tile_tokens(0), x.shape().group);
  }
  ~KernelScope() {
    if (end_ != nullptr) end_();
  }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  void (*end_)();
};

TileArgs args_for(const MatrixShape& shape, const Activations& x) {
  TileArgs a;
  a.paired = x.paired();
  a.block_bytes = static_cast<std::ptrdiff_t>(shape.block_bytes());
  a.lines = shape.lines();
  a.group_lines = shape.lines_per_group();
  a.groups_together = shape.groups_per_scale();
  return a;
}

// Blocks that a call takes: one where one tile has all tokens and kernels do not stream: blocks in
// turn are one stream, which the processor's own fetching follows best.
std::int64_t blocks_at_once(const MatrixShape& shape, const Activations& x) {
  const bool one_tile = x.tiles() == 1;
  if (!x.kernels().streams_blocks) return one_tile ? 1 : x.kernels().max_blocks;
  if (one_tile) return shape.blocks();
  const auto kept = kKeptBytes / static_cast<std::int64_t>(shape.block_bytes());
  return std::min(std::max<std::int64_t>(kept, x.kernels().max_blocks), kMostKept);
}

// Blocks that go through all of several tiles in a row. Where kernels take one at a time, more of
// them share a tile's panel while it is near, if there are so many tiles that it comes from afar.
std::int64_t blocks_in_a_row(const MatrixShape& shape, const Activations& x) {
  constexpr std::int64_t kLeastTiles = 6;
  const std::int64_t call = blocks_at_once(shape, x);
  if (call > 1 || x.kernels().streams_blocks || x.tiles() < kLeastTiles) return call;
  const auto kept = 2 * kKeptBytes / static_cast<std::int64_t>(shape.block_bytes());
  return std::min(std::max(kept, std::int64_t{1}), kMostKept);
}

// How many of the blocks that are left of a range the next call takes: two and two of four.
std::int64_t together(std::int64_t left, std::int64_t most) {
  if (left <= most) return left;
  return left < 2 * most ? (left + 1) / 2 : most;
}

// How many of the blocks that are left of a range go through all tiles before the next do: of one
// tile as many as there is room for.
std::int64_t in_a_row(const Product& p, std::int64_t left, std::int64_t most) {
  if (p.x.tiles() == 1) return std::min(left, most);
  return together(left, blocks_in_a_row(p.weights.shape(), p.x));
}

// One tile over `count` blocks in a row; the results of the first go to `out`. Where there is a
// room, tiles after the first find in it what that one left.
void run_row(const Product& p, const AheadPlan& plan, TileArgs& a, std::int64_t tile,
             std::int64_t first, std::int64_t count, const Stream& stream, std::uint8_t* room,
             float* out) {
  const std::int64_t most = blocks_at_once(p.weights.shape(), p.x);
  a.panel = p.x.panel(tile);
  a.room = count * a.block_bytes <= kKeptBytes ? room : nullptr;
  a.laid_out = a.room != nullptr && tile > 0;
  a.weights = p.blocks + first * a.block_bytes;
  for (std::int64_t i = 0; i < count; i += a.blocks) {
    a.blocks = together(count - i, most);
    const std::int64_t row = (first + i) * kBlockRows;
    a.rows = std::min<std::int64_t>(a.blocks * kBlockRows, p.weights.shape().rows - row);
    a.bias = p.options.bias == nullptr ? nullptr : p.options.bias + row;
    a.ahead = plan.tile(tile, a, {stream.blocks - i, stream.after});
    a.out = out + i * kBlockRows;
    p.x.kernels().kernel[p.x.tile_tokens(tile)](a);
    a.weights += a.blocks * a.block_bytes;
  }
}

void run_blocks(const Product& p, const Range& range) {
  TileArgs a = args_for(p.weights.shape(), p.x);
  a.out_stride = p.y_stride;
  a.accumulate = p.options.accumulate;
  const AheadPlan plan(p.weights.shape(), p.x);
  const std::uint8_t* after = p.afterwards(range);
  std::uint8_t* room = p.x.room(range.thread, 0);
  for (std::int64_t b = range.begin, count = 0; b < range.end; b += count) {
    count = in_a_row(p, range.end - b, range.end - b);
    for (std::int64_t tile = 0; tile < p.x.tiles(); ++tile) {
      float* out = p.y + p.x.tile_begin(tile) * p.y_stride + b * kBlockRows;
      run_row(p, plan, a, tile, b, count, {range.stop - b, after}, room, out);
    }
  }
}

// Blocks of the gate, then those that they take: one stream in turns where there is one tile, else
// two, as each tile comes to both halves before the next does.
void run_gated(const Product& p, const Range& range) {
  const std::int64_t half = p.weights.shape().blocks() / 2;
  // Of the gate and of what it takes, and the result: apart, so that the gate's loop has vectors.
  alignas(64) float sums[3][kMostGated];
  TileArgs a = args_for(p.weights.shape(), p.x);
  const AheadPlan plan(p.weights.shape(), p.x);
  const std::uint8_t* after = p.afterwards(range);
  const std::int64_t outputs = p.x.kernels().streams_blocks ? kMostGated : kMostGated / 2;
  const std::int64_t most = outputs / kBlockRows / p.x.tile_tokens(0);
  const bool one_stream = p.x.tiles() == 1;
  for (std::int64_t b = range.begin, count = 0; b < range.end; b += count) {
    const std::int64_t left = range.end - b;
    count = in_a_row(p, left, most);
    if (p.packed_blocks > 0)
      count = std::min(std::max(count / p.packed_blocks, std::int64_t{1}) * p.packed_blocks, left);
    const std::int64_t next = b + count;
    const bool more = next < range.stop;
    const std::int64_t next_upper = one_stream ? next : next + half;
    const Stream lower = {count, one_stream ? p.weights.block(b + half)
                                 : more     ? p.weights.block(next)
                                            : after};
    const Stream upper = {count, more ? p.weights.block(next_upper) : after};
    a.out_stride = count * kBlockRows;
    for (std::int64_t tile = 0; tile < p.x.tiles(); ++tile) {
      run_row(p, plan, a, tile, b, count, lower, p.x.room(range.thread, 0), sums[0]);
      run_row(p, plan, a, tile, b + half, count, upper, p.x.room(range.thread, 1), sums[1]);
      const int tokens = p.x.tile_tokens(tile);
      p.options.gate(sums[0], sums[1], tokens * a.out_stride, sums[2]);
      if (p.packed_blocks > 0) {
        // Whatever the mode for subnormal numbers, to the same bits.
        p.options.packed->pack_part(p.x.tile_begin(tile), tokens, b * kBlockRows, next * kBlockRows,
                                    sums[2], a.out_stride);
        continue;
      }
      for (int t = 0; t < tokens; ++t) {
        std::memcpy(p.y + (p.x.tile_begin(tile) + t) * p.y_stride + b * kBlockRows,
                    sums[2] + t * a.out_stride,
                    static_cast<std::size_t>(a.out_stride) * sizeof(float));
      }
    }
  }
}

void check(const MatrixShape& w, const Activations& tokens, std::int64_t y_stride,
           const LinearOptions& options) {
  const MatrixShape& x = tokens.shape();
  if (w.precision != x.precision || w.cols != x.cols || w.group != x.group) {
    throw std::invalid_argument(std::string("the matrix is ") + precision_name(w.precision) +
                                " with " + std::to_string(w.cols) + " columns in groups of " +
                                std::to_string(w.group) + ", the activations are packed for " +
                                precision_name(x.precision) + ", " + std::to_string(x.cols) +
                                " and " + std::to_string(x.group));
  }
  const bool gated = options.gate != nullptr;
  if (options.packed != nullptr && (!gated || options.packed == &tokens))
    throw std::invalid_argument("`packed` takes a gate, and cannot be what is multiplied");
  if (gated && (w.rows % (2 * kBlockRows) != 0 || options.accumulate)) {
    throw std::invalid_argument("a gate takes a multiple of " + std::to_string(2 * kBlockRows) +
                                " rows, not " + std::to_string(w.rows) + ", and adds to nothing");
  }
  if (options.packed == nullptr && y_stride < (gated ? w.rows / 2 : w.rows))
    throw std::invalid_argument("the result's stride is shorter than its rows");
}

FloatMode::Subnormals subnormals_of(const MatrixShape& shape) {
  return shape.precision == Precision::bf16 ? FloatMode::Subnormals::flush
                                            : FloatMode::Subnormals::ieee;
}

// Blocks that a thread takes at a time.
std::int64_t grain_of(const Product& p) {
  const MatrixShape& shape = p.weights.shape();
  const auto chunk = static_cast<std::int64_t>(shape.block_bytes()) * (1 + p.x.tokens() / 4);
  const std::int64_t least = kChunkBytes / chunk / (p.options.gate != nullptr ? 2 : 1);
  // Whole calls, but of streams a part is as good.
  const KernelSet& kernels = p.x.kernels();
  const std::int64_t call =
      kernels.streams_blocks ? kernels.max_blocks : blocks_in_a_row(shape, p.x);
  return std::max<std::int64_t>(least / call, 1) * call;
}

std::int64_t blocks_of(const Product& p) {
  return p.weights.shape().blocks() / (p.options.gate != nullptr ? 2 : 1);
}

void run_part(const Product& p, const Range& range) {
  p.options.gate != nullptr ? run_gated(p, range) : run_blocks(p, range);
}

}  // namespace

bool packs_at_once(const Activations& x, const MatrixShape& then, const ThreadPool& pool) {
  constexpr std::int64_t kManyUnits = 8;  // for each thread: one more or less counts for little
  const std::int64_t unit = then.unit_columns();
  const std::int64_t units = (then.cols + unit - 1) / unit;
  const bool equal = units % pool.size() == 0 || units >= kManyUnits * pool.size();
  return equal && (x.tiles() == 1 || (x.kernels().streams_blocks && !then.grouped()));
}

void linear(const PackedMatrix& weights, const Activations& x, float* y, std::int64_t y_stride,
            ThreadPool& pool, const LinearOptions& options) {
  const MatrixShape& shape = weights.shape();
  check(shape, x, y_stride, options);
  Product product{weights, weights.block(0), x, y, y_stride, options, pool.size(), 0};
  if (options.packed != nullptr) {
    options.packed->resize(x.tokens(), shape.rows / 2, pool);
    product.packed_blocks = options.packed->shape().unit_columns() / kBlockRows;
  }
  const std::int64_t blocks = blocks_of(product);
  const std::int64_t part = std::max<std::int64_t>(product.packed_blocks, 1);
  // By value: other threads then find it behind one address.
  const auto share = [product, blocks, part](ThreadPool::Ranges& ranges) {
    const FloatMode mode(subnormals_of(product.weights.shape()));
    const KernelScope scope(product.x);
    const auto block = [&](std::int64_t i) { return std::min(i * part, blocks); };
    for (Range r; ranges.next(r);) {
      const Range range = {r.thread, block(r.begin), block(r.end), block(r.stop)};
      run_part(product, range);
    }
  };
  pool.for_shares((blocks + part - 1) / part, std::max<std::int64_t>(grain_of(product) / part, 1),
                  share);
}

void linear(const std::vector<Factors>& products, std::int64_t y_stride, ThreadPool& pool,
            const LinearOptions& options) {
  std::vector<Product> all;
  std::vector<std::int64_t> ends;  // of the products, in blocks
  std::int64_t grain = 1;
  std::int64_t end = 0;
  for (const auto& [weights, x, y] : products) {
    check(weights->shape(), *x, y_stride, options);
    all.push_back({*weights, weights->block(0), *x, y, y_stride, options, pool.size(), 0});
    grain = std::max(grain, grain_of(all.back()));
    ends.push_back(end += blocks_of(all.back()));
  }
  pool.for_ranges(end, grain, [&](const Range& r) {
    auto i = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), r.begin) -
                                      ends.begin());
    for (std::int64_t at = r.begin; at < r.end; at = ends[i++]) {
      Product product = all[i];
      const std::int64_t begin = ends[i] - blocks_of(product);
      if (r.stop > ends[i]) product.following = all[i + 1].weights.block(0);
      const FloatMode mode(subnormals_of(product.weights.shape()));
      const KernelScope scope(product.x);
      run_part(product, {r.thread, at - begin, std::min(r.end, ends[i]) - begin,
                         std::min(r.stop, ends[i]) - begin});
    }
  });
}

}  // namespace forerun::cpu
