// Attention over a cache of codes. Queries and weights are split into two digits, so that products
// with codes are exact integers: in whatever order slots are added, and in however many pieces.
#include "attention_tile.h"
#include "coded_head.h"
#include "numbers.h"

namespace forerun::cpu {
namespace {

constexpr std::int64_t kTileLines = kTileSlots / kCodesOfLine;

// How codes are read: in one plane or two, with the zero point and the step of what is read.
struct Reading {
  int planes;
  std::int32_t zero;
  float step;

  Reading(const KvCache& cache, bool coarse)
      : planes(coarse ? 1 : cache.planes()),
        zero(planes == 2 ? kZeroOfByte : kZeroOfNibble),
        step(coarse && cache.planes() == 2 ? 16.0f : 1.0f) {}

  ColumnTerms terms(const Digits& digits) const {
    return {-zero * digits.sum, digits.scale * step};
  }
};

// `count` columns in memory, terms behind digits.
struct Panel {
  ColumnDigits* digits;
  ColumnTerms* terms;

  Panel(void* memory, std::int64_t count)
      : digits(static_cast<ColumnDigits*>(memory)),
        terms(reinterpret_cast<ColumnTerms*>(digits + count)) {}
};

const std::uint16_t* value_scales(const KvCache& cache, const std::uint8_t* tile) {
  return reinterpret_cast<const std::uint16_t*>(tile + cache.scale_bytes() / 2);
}

}  // namespace

void TileAttention::pack_coded_query(const Head& head, const float* query, int columns, int column,
                                     void* panel) const {
  const KvCache& cache = *head.cache;
  const Reading reading(cache, head.coarse);
  // Both are turned, which makes their products as many times larger as a group has dimensions.
  const float scale = scale_ / static_cast<float>(cache.group());
  const Panel to(panel, columns * (shape_.head_dim / cache.group()));
  for (std::int64_t first = 0, at = column; first < shape_.head_dim;
       first += cache.group(), at += columns) {
    float part[kDigitsOfColumn] = {};
    for (std::int64_t i = 0; i < cache.group(); ++i) part[i] = query[first + i] * scale;
    ops_->turn(part, cache.group());
    to.terms[at] = reading.terms(ops_->split_digits(part, &to.digits[at]));
  }
}

// A quarter of the next tile with all columns' scores, as in each kernel, and one with all weights.
// A coarse reading leaves lines out, which are not for a queue.
void TileAttention::queue_ahead(Call& c) const {
  const std::int64_t bytes = c.head.cache->tile_bytes();
  c.lines_of_pass = bytes / (4 * kLineBytes * c.set.columns()) + 1;
  c.s.queue = {};
  if (c.head.coarse || c.ahead == nullptr) return;
  c.s.queue = {c.ahead, c.ahead + bytes};
  c.ahead = nullptr;
}

void TileAttention::run_coded_scores(const Call& c, const Scores& to) const {
  const KvCache& cache = *c.head.cache;
  const Reading reading(cache, c.head.coarse);
  CodedTile keys;
  keys.upper = to.tile + cache.scale_bytes();
  keys.lower = cache.key_plane_bytes();
  keys.blocks = to.blocks;
  keys.block_bytes = cache.planes() * cache.key_plane_bytes();
  keys.lines = cache.group() / kCodesOfLine;
  keys.groups = shape_.head_dim / cache.group();
  keys.ahead = to.ahead;
  keys.queue = &c.s.queue;
  keys.columns = c.set.columns();
  const Panel queries(c.set.panel, c.set.columns() * keys.groups);
  keys.digits = queries.digits;
  keys.terms = queries.terms;
  keys.scales = reinterpret_cast<const std::uint16_t*>(to.tile);
  keys.out = to.out;
  keys.out_stride = to.out_stride;
  // The kernels fetch the next tile's planes.
  for (std::int64_t i = 0; to.ahead != 0 && i < cache.scale_bytes(); i += kLineBytes)
    __builtin_prefetch(to.tile + to.ahead + i, 0, 3);
  coded_->scores[reading.planes - 1][c.set.columns()](keys);
}

namespace {

// What all calls of a kernel of values have in common.
CodedTile values_of(const KvCache& cache, float* out, std::int64_t out_stride) {
  CodedTile values;
  values.lower = cache.value_plane_bytes();
  values.blocks = cache.group() / kBlockRows;
  values.block_bytes = cache.planes() * cache.value_plane_bytes();
  values.lines = kTileLines;
  values.out = out;
  values.out_stride = out_stride;
  return values;
}

}  // namespace

// Weights become digits by rank, so that they do not depend on where slots lie; each tile then
// takes those of its slots.
void TileAttention::add_coded_values(const Call& c) const {
  const KvCache& cache = *c.head.cache;
  const RowMask& mask = c.mask();
  const std::int64_t first = c.in_order() ? c.rank : mask.base / kTileSlots * kTileSlots;
  const std::int64_t end = c.in_order() ? c.rank + 1 : mask.start + mask.count;
  for (std::int64_t group = 0; group < shape_.head_dim / cache.group(); ++group) {
    for (std::int64_t slot = first; slot < end; slot += kTileSlots)
      add_coded_group(c, group, {slot, slot > first, slot + kTileSlots < end});
  }
}

void TileAttention::add_coded_group(const Call& c, std::int64_t group, const Piece& piece) const {
  const KvCache& cache = *c.head.cache;
  const Reading reading(cache, c.head.coarse);
  const std::int64_t dimension = group * cache.group();
  const std::uint8_t* tile = cache.tile(c.head.layer, c.mask().row, c.head.head, piece.slot);
  const Panel weights(c.s.weights.data(), c.set.columns());
  const std::uint16_t* scales = value_scales(cache, tile) + group * kTileSlots;
  for (std::int64_t column = 0; column < c.set.columns(); ++column) {
    pass(c);
    ColumnDigits& digits = weights.digits[column];
    weights.terms[column] =
        reading.terms(c.in_order() ? ops_->split_weights(c.row(column), scales, &digits)
                                   : split_slots(c, column, piece.slot, group, digits));
  }
  CodedTile values =
      values_of(cache, sums_of(c.sums, c.set.begin - c.origin).values + dimension, sums_stride());
  values.upper =
      tile + cache.scale_bytes() + cache.code_bytes() + dimension / kBlockRows * values.block_bytes;
  values.ahead = c.in_order() ? c.fetch() : 0;
  values.queue = &c.s.queue;
  values.columns = c.set.columns();
  values.digits = weights.digits;
  values.terms = weights.terms;
  values.sums = c.s.coded_sums.data() + dimension;
  values.resume = piece.resume;
  values.keep = piece.keep;
  coded_->values[reading.planes - 1][c.set.columns()](values);
}

// Of a tree: the digits of the ranks that lie in the tile of `slot`, and zeros.
Digits TileAttention::split_slots(const Call& c, std::int64_t column, std::int64_t slot,
                                  std::int64_t group, ColumnDigits& to) const {
  const KvCache& cache = *c.head.cache;
  const RowMask& mask = c.mask();
  const std::int64_t token = (c.set.begin + column) / shape_.group();
  const auto& tail = mask.tails[static_cast<std::size_t>(token)];
  const std::int64_t seen = std::min(mask.end(token) - c.rank, kTileSlots);
  std::int64_t slots[kTileSlots];
  float weights[kTileSlots] = {};
  for (std::int64_t i = 0; i < seen; ++i) {
    const std::int64_t rank = c.rank + i;
    slots[i] = rank < mask.base ? rank : tail[static_cast<std::size_t>(rank - mask.base)];
    const std::uint8_t* tile = cache.tile(c.head.layer, mask.row, c.head.head, slots[i]);
    const std::uint16_t scale =
        value_scales(cache, tile)[group * kTileSlots + slots[i] % kTileSlots];
    weights[i] = c.row(column)[i] * bf16_to_float(scale);
  }
  ColumnDigits all;
  Digits digits = ops_->split_digits(weights, &all);
  to = {};
  digits.sum = 0;
  for (std::int64_t i = 0; i < seen; ++i) {
    if (slots[i] / kTileSlots != slot / kTileSlots) continue;
    to.high[slots[i] % kTileSlots] = all.high[i];
    to.low[slots[i] % kTileSlots] = all.low[i];
    digits.sum += 128 * all.high[i] + all.low[i];
  }
  return digits;
}

}  // namespace forerun::cpu
