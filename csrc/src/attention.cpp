#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "float_mode.h"

namespace forerun::cpu {
namespace {

constexpr auto kLine = static_cast<std::int64_t>(kLineBytes);
// Lines of scores between two columns differ in their lowest address bits, or else all columns
// would fall into the same few sets of the first-level cache.
constexpr std::int64_t kSkew = 16;

std::int64_t round_down(std::int64_t x) { return x / kBlockRows * kBlockRows; }
std::int64_t round_up(std::int64_t x) { return round_down(x + kBlockRows - 1); }

}  // namespace

struct Attention::Scratch {
  std::vector<float> query;            // [head_dim]
  std::vector<std::uint32_t> queries;  // the panel of queries
  std::vector<float> scores;           // [columns, ranks]
  std::vector<float> moved;            // [tail]
  std::vector<std::uint32_t> weights;  // the panel of exponentials
  std::vector<float> sums;             // [columns, padded head_dim]
  std::vector<float> totals;           // [columns]
  Buffer tail;                         // values of one token's tail
};

// One item of one layer.
struct Attention::Work {
  const AttentionCall& call;
  const Item& item;
  Scratch& scratch;
  std::int64_t first;   // block of ranks that any column sees
  std::int64_t end;     // ranks or slots in use, in whole blocks
  std::int64_t stride;  // of scores
  std::int64_t group;

  int columns() const { return static_cast<int>(item.end - item.begin); }
  std::int64_t token(std::int64_t column) const { return (item.begin + column) / group; }
  float* row(std::int64_t column) const { return scratch.scores.data() + column * stride; }
};

Attention::Attention(const AttentionShape& shape, Precision precision, Level limit, int threads)
    : shape_(shape),
      precision_(precision),
      kernels_(&kernel_set(precision, limit, 1)),
      ops_(&vector_set(kernels_->level).ops),
      pack_(vector_set(kernels_->level).pack_token[static_cast<int>(precision)]),
      scale_(1.0f / std::sqrt(static_cast<float>(shape.head_dim))) {
  for (int i = 0; i < threads; ++i) scratch_.push_back(std::make_shared<Scratch>());
}

// Into how many items the columns of a head are split: as few as the kernels allow or, where that
// leaves threads idle and a tile can be halved, twice as many.
std::int64_t Attention::tiles_of(std::int64_t columns, std::size_t rows) const {
  constexpr std::int64_t kWorthHalving = 16;
  const std::int64_t tiles = (columns + kernels_->max_tokens - 1) / kernels_->max_tokens;
  const std::int64_t items = tiles * shape_.kv_heads * static_cast<std::int64_t>(rows);
  const bool even = items % threads() == 0 || items >= 4 * threads();
  return even || columns < kWorthHalving * tiles ? tiles : 2 * tiles;
}

// All memory is taken here: the threads must not throw.
void Attention::plan(const std::vector<RowMask>& masks) {
  items_.clear();
  ranks_ = 0;
  whole_heads_ = true;
  const std::int64_t group = shape_.group();
  for (const RowMask& mask : masks) {
    const std::int64_t columns = mask.count * group;
    const std::int64_t tiles = tiles_of(columns, masks.size());
    // A row without tokens has no items, so they no longer count heads.
    whole_heads_ = whole_heads_ && tiles == 1;
    ranks_ = std::max(ranks_, round_up(mask.start + mask.count));
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      for (std::int64_t t = 0; t < tiles; ++t) {
        items_.push_back({&mask, head, columns * t / tiles, columns * (t + 1) / tiles});
      }
    }
  }
  std::size_t longest = 0;
  for (const RowMask& mask : masks) {
    for (const auto& tail : mask.tails) longest = std::max(longest, tail.size());
  }
  const std::int64_t most = kernels_->max_tokens;
  const std::int64_t padded = round_up(shape_.head_dim);
  // One slot more than the tail: a line of two may begin with the slot before it.
  const auto tail_bytes =
      (longest + 2) * kLineBytes * static_cast<std::size_t>(padded / kBlockRows);
  for (const auto& s : scratch_) {
    s->query.resize(static_cast<std::size_t>(shape_.head_dim));
    s->queries.resize(static_cast<std::size_t>(shape_.head_dim * most));
    s->scores.resize(static_cast<std::size_t>((ranks_ + kSkew) * most));
    s->weights.resize(static_cast<std::size_t>(ranks_ * most));
    s->sums.resize(static_cast<std::size_t>(padded * most));
    s->totals.resize(static_cast<std::size_t>(most));
    s->moved.resize(longest);
    if (longest > 0 && s->tail.size() < tail_bytes) s->tail = Buffer(2 * tail_bytes);
  }
}

void Attention::pack(const float* x, std::int64_t count, int width, int lane,
                     std::uint32_t* panel) const {
  pack_({x, 0, count, 0, width, lane, panel});
}

void Attention::kernel(const std::uint8_t* weights, const std::uint32_t* panel, std::int64_t lines,
                       int columns, float* out, std::int64_t stride, std::int64_t rows,
                       bool resume) const {
  TileArgs a;
  a.weights = weights;
  a.panel = panel;
  a.lines = lines;
  a.ahead = {weights + lines * kLine, weights + lines * kLine, lines, kLine};
  a.out = out;
  a.out_stride = stride;
  a.rows = rows;
  a.resume = resume;
  kernels_->kernel[columns](a);
}

void Attention::run(const AttentionCall& call, std::int64_t begin, std::int64_t end, int thread) {
  const std::int64_t group = shape_.group();
  // As in linear.cpp: what vdpbf16ps does in any mode, the other levels are set to.
  const FloatMode mode(precision_ == Precision::bf16 ? FloatMode::Subnormals::flush
                                                     : FloatMode::Subnormals::ieee);
  for (std::int64_t i = begin; i < end; ++i) {
    const Item& item = items_[static_cast<std::size_t>(i)];
    const RowMask& mask = *item.mask;
    std::int64_t first = mask.first(item.begin / group, call.window);
    std::int64_t last = 0;
    for (std::int64_t token = item.begin / group; token <= (item.end - 1) / group; ++token) {
      first = std::min(first, mask.first(token, call.window));
      last = std::max(last, mask.end(token));
    }
    // Of a tree the scores are made by slot first.
    if (!mask.chain) last = mask.start + mask.count;
    const Work w = {call,
                    item,
                    *scratch_[static_cast<std::size_t>(thread)],
                    round_down(first),
                    round_up(last),
                    round_up(last) - round_down(first) + kSkew,
                    group};
    scores(w);
    for (std::int64_t column = 0; column < w.columns(); ++column) softmax(w, column);
    add_values(w);
  }
}

void Attention::scores(const Work& w) {
  const RowMask& mask = *w.item.mask;
  const std::int64_t d = shape_.head_dim;
  for (std::int64_t column = 0; column < w.columns(); ++column) {
    const std::int64_t head = w.item.head * w.group + (w.item.begin + column) % w.group;
    const float* query =
        w.call.queries + (mask.first_token + w.token(column)) * w.call.stride + head * d;
    ops_->scale(query, scale_, d, w.scratch.query.data());
    pack(w.scratch.query.data(), d, w.columns(), static_cast<int>(column),
         w.scratch.queries.data());
  }
  const KvCache& cache = *w.call.cache;
  const std::int64_t lines = cache.key_lines();
  for (std::int64_t slot = w.first; slot < w.end;) {
    const std::uint8_t* keys = cache.keys(w.call.layer, mask.row, w.item.head, slot);
    const std::int64_t end = std::min(w.end, cache.segment_end(slot));
    for (; slot < end; slot += kBlockRows, keys += lines * kLine) {
      kernel(keys, w.scratch.queries.data(), lines, w.columns(),
             w.scratch.scores.data() + (slot - w.first), w.stride, kBlockRows, false);
    }
  }
}

// From the order of slots to that of ranks, for the part of a row that is a tree.
void Attention::to_ranks(const Work& w, std::int64_t column, std::int64_t token) {
  const RowMask& mask = *w.item.mask;
  const auto& tail = mask.tails[static_cast<std::size_t>(token)];
  float* row = w.row(column);
  auto& moved = w.scratch.moved;
  for (std::size_t i = 0; i < tail.size(); ++i) {
    // A window may end inside of the tail, above its first slots.
    moved[i] = tail[i] < w.first ? 0.0f : row[tail[i] - w.first];
  }
  for (std::size_t i = 0; i < tail.size(); ++i) {
    const std::int64_t rank = mask.base + static_cast<std::int64_t>(i);
    if (rank >= w.first) row[rank - w.first] = moved[i];
  }
}

void Attention::softmax(const Work& w, std::int64_t column) {
  const RowMask& mask = *w.item.mask;
  const std::int64_t token = w.token(column);
  if (!mask.chain) to_ranks(w, column, token);
  float* row = w.row(column);
  const std::int64_t low = mask.first(token, w.call.window) - w.first;
  const std::int64_t high = mask.end(token) - w.first;
  const std::int64_t block = round_down(low);
  std::fill(row, row + low, -INFINITY);
  const float shift = ops_->max(row + low, high - low);
  w.scratch.totals[static_cast<std::size_t>(column)] =
      ops_->exp_sum(row + block, shift, high - block);
  std::fill(row, row + block, 0.0f);
  std::fill(row + high, row + (w.end - w.first), 0.0f);
}

void Attention::add_values(const Work& w) {
  const RowMask& mask = *w.item.mask;
  const KvCache& cache = *w.call.cache;
  const std::int64_t padded = round_up(shape_.head_dim);
  const int per_line = cache.slots_per_line();
  // What all tokens find at the same ranks; the rest of a tree follows for each token alone.
  std::int64_t shared = w.end;
  if (!mask.chain) shared = std::max(mask.base / per_line * per_line, w.first);
  const std::int64_t count = shared - w.first;
  for (std::int64_t column = 0; column < w.columns() && count > 0; ++column) {
    pack(w.row(column), count, w.columns(), static_cast<int>(column), w.scratch.weights.data());
  }
  // Segment by segment: each goes on with the sums of the one before.
  std::int64_t slot = w.first;
  do {
    const std::int64_t end = std::min(shared, cache.segment_end(slot));
    const ValueSlot from = cache.values(w.call.layer, mask.row, w.item.head, slot);
    for (std::int64_t b = 0; b < cache.value_blocks(); ++b) {
      kernel(from.memory + (b * from.lines + from.slot / per_line) * kLine,
             w.scratch.weights.data() + (slot - w.first) / per_line * w.columns(),
             (end - slot) / per_line, w.columns(), w.scratch.sums.data() + b * kBlockRows, padded,
             kBlockRows, slot > w.first);
    }
    slot = end;
  } while (slot < shared);
  for (std::int64_t column = 0; column < w.columns(); ++column) {
    if (!mask.chain) add_tail(w, column, count);
    const std::int64_t head = w.item.head * w.group + (w.item.begin + column) % w.group;
    float* out = w.call.out +
                 (mask.first_token + w.token(column)) * shape_.heads * shape_.head_dim +
                 head * shape_.head_dim;
    const float factor = 1.0f / w.scratch.totals[static_cast<std::size_t>(column)];
    ops_->scale(w.scratch.sums.data() + column * padded, factor, shape_.head_dim, out);
  }
}

// Goes on with the sums of one column behind the `count` ranks that it shares with the others.
void Attention::add_tail(const Work& w, std::int64_t column, std::int64_t count) {
  const RowMask& mask = *w.item.mask;
  const KvCache& cache = *w.call.cache;
  const int per_line = cache.slots_per_line();
  const std::int64_t token = w.token(column);
  const auto& tail = mask.tails[static_cast<std::size_t>(token)];
  const std::int64_t begin = w.first + count;
  const std::int64_t ranks = mask.end(token) - begin;
  if (ranks <= 0) return;
  const std::int64_t lines = (ranks + per_line - 1) / per_line;
  const auto to = [&](std::int64_t slot) { return ValueSlot{w.scratch.tail.data(), lines, slot}; };
  for (std::int64_t i = 0; i < ranks; ++i) {
    const std::int64_t rank = begin + i;
    const std::int64_t slot =
        rank < mask.base ? rank : tail[static_cast<std::size_t>(rank - mask.base)];
    copy_value_slot(precision_, cache.value_blocks(),
                    cache.values(w.call.layer, mask.row, w.item.head, slot), to(i));
  }
  // Memory may hold NaN in the last half line, and zero times that is NaN too.
  if (ranks % per_line != 0) {
    copy_value_slot(precision_, cache.value_blocks(), to(ranks - 1), to(ranks));
  }
  float* row = w.row(column) + count;
  std::fill(row + ranks, row + lines * per_line, 0.0f);
  pack(row, lines * per_line, 1, 0, w.scratch.weights.data());
  const std::int64_t padded = round_up(shape_.head_dim);
  for (std::int64_t b = 0; b < cache.value_blocks(); ++b) {
    kernel(w.scratch.tail.data() + b * lines * kLine, w.scratch.weights.data(), lines, 1,
           w.scratch.sums.data() + column * padded + b * kBlockRows, padded, kBlockRows, true);
  }
}

}  // namespace forerun::cpu
