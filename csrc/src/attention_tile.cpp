#include "attention_tile.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "coded_head.h"
#include "vector/lanes.h"

namespace forerun::cpu {
namespace {

constexpr auto kLine = static_cast<std::int64_t>(kLineBytes);

std::int64_t round_down(std::int64_t x) { return x / kBlockRows * kBlockRows; }
std::int64_t round_up(std::int64_t x) { return round_down(x + kBlockRows - 1); }

std::int64_t within_tile(std::int64_t rank) {
  return std::clamp<std::int64_t>(rank, 0, kTileSlots);
}

// In floats, whole lines of them.
constexpr std::int64_t kDigitFloats = sizeof(ColumnDigits) / sizeof(float);
// What kernels may read behind a panel: digits, or what a tile of AMX takes of 16 columns.
constexpr std::int64_t kBehindFloats =
    std::max<std::int64_t>(kBehindColumns * kDigitFloats, 16 * kBlockRows);
std::int64_t column_floats(std::int64_t columns) {
  constexpr std::int64_t kTermFloats = sizeof(ColumnTerms) / sizeof(float);
  return kDigitFloats * columns + round_up(kTermFloats * columns);
}

bool is_coded(Precision precision) {
  return precision == Precision::int8 || precision == Precision::int4;
}

// A line of two slots of bf16, each from the lower or upper half of the lanes of another line.
void pair_lanes(const std::uint8_t* first, bool first_upper, const std::uint8_t* second,
                bool second_upper, std::uint8_t* to) {
  std::uint32_t a[kBlockRows];
  std::uint32_t b[kBlockRows];
  std::memcpy(a, first, sizeof a);
  std::memcpy(b, second, sizeof b);
  const int a_shift = first_upper ? 16 : 0;
  const int b_shift = second_upper ? 16 : 0;
  for (int i = 0; i < kBlockRows; ++i) a[i] = (a[i] >> a_shift & 0xffffu) | b[i] >> b_shift << 16;
  std::memcpy(to, a, sizeof a);
}

}  // namespace

TileAttention::TileAttention(const AttentionShape& shape, Precision precision, Level limit)
    : shape_(shape),
      precision_(precision),
      kernels_(&kernel_set(is_coded(precision) ? Precision::fp32 : precision, limit, 1)),
      coded_(is_coded(precision) ? &coded_set(limit) : nullptr),
      ops_(&vector_set(kernels_->level).ops),
      pack_(vector_set(kernels_->level).pack_token[static_cast<int>(kernels_->precision)]),
      scale_(shape.scale > 0.0f ? shape.scale
                                : 1.0f / std::sqrt(static_cast<float>(shape.head_dim))),
      padded_(round_up(shape.head_dim)),
      groups_(coded_ == nullptr ? 1 : shape.head_dim / coded_group(shape.head_dim)) {}

std::int64_t TileAttention::panel_floats(std::int64_t columns) const {
  if (coded_ != nullptr) return column_floats(columns * groups_);
  const std::int64_t step = kernels_->step_lines;
  return columns * ((shape_.head_dim + step - 1) / step * step);
}

// Of the tree's slots, from the tile of its base on.
std::int64_t TileAttention::slot_stride(const RowMask& mask) const {
  return round_up(mask.start + mask.count) - mask.base / kTileSlots * kTileSlots;
}

void TileAttention::reserve(Scratch& s, std::int64_t columns,
                            const std::vector<RowMask>& masks) const {
  s.query.reserve(shape_.head_dim);
  const std::int64_t sets = (columns + max_columns() - 1) / max_columns();
  s.panels.reserve(sets * panel_floats(max_columns()) + kBehindFloats);
  s.scores.reserve(kTileSlots * max_columns());
  if (coded_ == nullptr) {
    // In bf16 half of this: the rest is read, for nothing, by tiles behind the last column.
    s.weights.reserve(kTileSlots * max_columns());
  } else {
    // Codes of each group of dimensions have their own, one after the other.
    s.weights.reserve(column_floats(max_columns()) + kBehindFloats);
    s.coded_sums.resize(static_cast<std::size_t>(sums_stride() * max_columns()));
  }
  s.sums.reserve(sums_stride() * columns);
  s.merged.reserve(sums_stride() * columns);
  for (const RowMask& mask : masks) {
    s.visible.reserve(static_cast<std::size_t>(mask.count));
    if (!mask.chain) s.slots.reserve(slot_stride(mask) * max_columns());
  }
  const auto tail = static_cast<std::size_t>(kTileSlots * padded_) * sizeof(float);
  if (s.tail.size() < tail) s.tail = Buffer(tail);
}

void TileAttention::pack_query(const Head& head, const float* query, int columns, int column,
                               Scratch& s, void* panel) const {
  if (coded_ != nullptr) return pack_coded_query(head, query, columns, column, panel);
  ops_->scale(query, scale_, shape_.head_dim, s.query.data());
  auto* units = static_cast<std::uint32_t*>(panel);
  pack_({s.query.data(), 0, shape_.head_dim, 0, columns, column, units, kernels_->token_major});
}

void TileAttention::add(const Head& head, const Set& set, std::int64_t rank,
                        const std::uint8_t* ahead, Scratch& s, float* sums,
                        std::int64_t origin) const {
  Call c{head, set, rank, ahead, s, sums, origin, 0};
  if (coded_ != nullptr && set.columns() >= coded_->pass_from) queue_ahead(c);
  c.in_order() ? scores(c) : slot_scores(c);
  for (std::int64_t column = 0; column < set.columns(); ++column) {
    pass(c);
    softmax(c, column);
  }
  add_values(c);
}

void TileAttention::run_scores(const Call& c, const Scores& to) const {
  if (coded_ != nullptr) return run_coded_scores(c, to);
  CacheTile keys;
  keys.lines = c.head.cache->key_lines();
  keys.weights = to.tile;
  keys.blocks = to.blocks;
  keys.block_bytes = keys.lines * kLine;
  keys.ahead = to.ahead == 0 ? 0 : c.fetch_line();
  keys.panel = c.set.panel;
  keys.out = to.out;
  keys.out_stride = to.out_stride;
  kernels_->scores[c.set.columns()](keys);
}

void TileAttention::scores(const Call& c) const {
  const std::int64_t blocks = round_up(c.end() - c.rank) / kBlockRows;
  run_scores(c, {c.tile(), blocks, c.fetch(), c.row(0), kTileSlots});
}

// The scores of all slots from the tile of the base on, of which each token then finds its own.
void TileAttention::slot_scores(const Call& c) const {
  const RowMask& mask = c.mask();
  const std::int64_t first = mask.base / kTileSlots * kTileSlots;
  const std::int64_t end = mask.start + mask.count;
  for (std::int64_t slot = first; slot < end; slot += kTileSlots) {
    const std::uint8_t* tile = c.head.cache->tile(c.head.layer, mask.row, c.head.head, slot);
    const std::int64_t blocks = round_up(std::min(end - slot, kTileSlots)) / kBlockRows;
    run_scores(c, {tile, blocks, 0, c.s.slots.data() + (slot - first), slot_stride(mask)});
  }
  for (std::int64_t column = 0; column < c.set.columns(); ++column) {
    to_ranks(c, (c.set.begin + column) / shape_.group(), c.row(column));
  }
}

void TileAttention::to_ranks(const Call& c, std::int64_t token, float* row) const {
  const RowMask& mask = c.mask();
  const auto& tail = mask.tails[static_cast<std::size_t>(token)];
  const std::int64_t first = mask.base / kTileSlots * kTileSlots;
  const std::int64_t stride = slot_stride(mask);
  const std::int64_t column = (row - c.row(0)) / kTileSlots;
  const float* slots = c.s.slots.data() + column * stride - first;
  const std::int64_t end = std::min(mask.end(token), c.rank + kTileSlots);
  for (std::int64_t rank = c.rank; rank < end; ++rank) {
    const bool below = rank < mask.base;
    row[rank - c.rank] = slots[below ? rank : tail[static_cast<std::size_t>(rank - mask.base)]];
  }
}

void TileAttention::softmax(const Call& c, std::int64_t column) const {
  const std::int64_t token = (c.set.begin + column) / shape_.group();
  const Visible seen = c.s.visible[static_cast<std::size_t>(token)];
  const std::int64_t sinks = within_tile(seen.sinks - c.rank);
  const std::int64_t low = within_tile(seen.first - c.rank);
  const std::int64_t high = within_tile(seen.end - c.rank);
  float* row = c.row(column);
  if (shape_.cap > 0.0f) ops_->soft_cap(row, shape_.cap, kTileSlots, row);
  if (!seen.is_chosen(c.rank)) std::fill(row + sinks, row + low, -INFINITY);
  std::fill(row + high, row + kTileSlots, -INFINITY);
  const ColumnSums sums = sums_of(c.sums, c.set.begin + column - c.origin);
  const float factor = ops_->softmax_piece(row, kTileSlots, sums.top, sums.lanes);
  if (factor != 1.0f) ops_->scale(sums.values, factor, padded_, sums.values);
  if (precision_ != Precision::bf16) return;
  ops_->weights_to_bf16(row, kTileSlots,
                        reinterpret_cast<std::uint16_t*>(c.s.weights.data()) + column * kTileSlots);
}

const std::uint8_t* TileAttention::weights(const Call& c, std::int64_t column) const {
  if (precision_ == Precision::fp32) return reinterpret_cast<std::uint8_t*>(c.row(column));
  return reinterpret_cast<std::uint8_t*>(c.s.weights.data()) + column * kTileSlots * 2;
}

// Of a tile's values, those that all columns find at the same ranks; the rest of a tree follows for
// each token alone. Where a tile's values are summed up first, that sum must not be cut in two: a
// tile of a tree is all rest.
std::int64_t TileAttention::shared_lines(const Call& c) const {
  const int per_line = c.head.cache->slots_per_line();
  if (c.in_order()) {
    // Whole steps take a tile no longer; slots behind are numbers, and weigh nothing.
    const std::int64_t step = kernels_->step_lines;
    const std::int64_t lines = (c.end() - c.rank + per_line - 1) / per_line;
    return (lines + step - 1) / step * step;
  }
  if (kernels_->step_lines > 1) return 0;
  return std::max<std::int64_t>(c.mask().base - c.rank, 0) / per_line;
}

void TileAttention::add_values(const Call& c) const {
  if (coded_ != nullptr) return add_coded_values(c);
  const int per_line = c.head.cache->slots_per_line();
  const ValueSlot from = c.head.cache->values(c.head.layer, c.mask().row, c.head.head, c.rank);
  const std::int64_t shared = shared_lines(c);
  CacheTile values;
  values.weights = from.memory;
  values.blocks = c.head.cache->value_blocks();
  values.block_bytes = from.lines * kLine;
  values.lines = shared;
  values.ahead = c.fetch_line();
  values.panel = weights(c, 0);
  values.out = sums_of(c.sums, c.set.begin - c.origin).values;
  values.out_stride = sums_stride();
  values.resume = true;
  if (shared > 0) kernels_->values[c.set.columns()](values);
  if (c.in_order()) return;
  const std::int64_t group = shape_.group();
  for (std::int64_t column = 0; column < c.set.columns();) {
    const std::int64_t next = ((c.set.begin + column) / group + 1) * group - c.set.begin;
    const std::int64_t end = std::min<std::int64_t>(next, c.set.columns());
    add_tail(c, column, static_cast<int>(end - column), c.rank + shared * per_line);
    column = end;
  }
}

// Ranks of the tile from `from` on, for columns of one token.
void TileAttention::add_tail(const Call& c, std::int64_t column, int columns,
                             std::int64_t from) const {
  const int per_line = c.head.cache->slots_per_line();
  const std::int64_t token = (c.set.begin + column) / shape_.group();
  const std::int64_t end = std::min(c.mask().end(token), c.rank + kTileSlots);
  if (end <= from) return;
  copy_tail(c, token, from, end);
  CacheTile values;
  values.weights = c.s.tail.data();
  values.blocks = c.head.cache->value_blocks();
  values.block_bytes = kTileSlots / per_line * kLine;
  values.lines = (end - from + per_line - 1) / per_line;
  values.panel = weights(c, column) + (from - c.rank) / per_line * 4;
  values.out = sums_of(c.sums, c.set.begin + column - c.origin).values;
  values.out_stride = sums_stride();
  values.resume = true;
  kernels_->values[columns](values);
}

// The values of a token's ranks [from, end), side by side.
void TileAttention::copy_tail(const Call& c, std::int64_t token, std::int64_t from,
                              std::int64_t end) const {
  const RowMask& mask = c.mask();
  const KvCache& cache = *c.head.cache;
  const auto& tail = mask.tails[static_cast<std::size_t>(token)];
  const int per_line = cache.slots_per_line();
  const auto value = [&](std::int64_t rank) {
    const std::int64_t slot =
        rank < mask.base ? rank : tail[static_cast<std::size_t>(rank - mask.base)];
    return cache.values(c.head.layer, mask.row, c.head.head, slot);
  };
  std::uint8_t* line = c.s.tail.data();
  for (std::int64_t rank = from; rank < end; rank += per_line, line += kLine) {
    const ValueSlot first = value(rank);
    // The last line's other half weighs nothing, and must be numbers all the same.
    const ValueSlot second = value(std::min(rank + 1, end - 1));
    const bool in_line = per_line == 1 || (first.slot % 2 == 0 && second.memory == first.memory &&
                                           second.slot == first.slot + 1);
    for (std::int64_t b = 0; b < cache.value_blocks(); ++b) {
      const auto at = [&](const ValueSlot& v) {
        return v.memory + (b * v.lines + v.slot / per_line) * kLine;
      };
      std::uint8_t* to = line + b * (kTileSlots / per_line) * kLine;
      if (in_line) std::memcpy(to, at(first), kLineBytes);
      else pair_lanes(at(first), first.slot % 2 != 0, at(second), second.slot % 2 != 0, to);
    }
  }
}

void TileAttention::merge(const ColumnSums& part, const ColumnSums& merged) const {
  const float total = sum_lanes(load(part.lanes));
  // A part of which nothing is seen changes nothing, whether or not others see it.
  if (total == 0.0f) return;
  const float top = *part.top > *merged.top ? *part.top : *merged.top;
  const float shift = top == -INFINITY ? 0.0f : top;
  const float before = falling_exponential(*merged.top - shift);
  const float here = falling_exponential(*part.top - shift);
  ops_->blend(part.values, before, here, padded_, merged.values);
  *merged.lanes = *merged.lanes * before + total * here;
  *merged.top = top;
}

}  // namespace forerun::cpu
