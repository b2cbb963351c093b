#include "row_mask.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "forerun/errors.h"

namespace forerun::cpu {
namespace {

void check(const BatchRows& batch) {
  const std::int64_t layers = batch.cache->shape().layers;
  if (batch.first_layer < 0 || batch.first_layer >= batch.end_layer || batch.end_layer > layers) {
    throw std::invalid_argument("there are no such layers");
  }
  if (batch.rows.empty() || batch.width < 1) throw std::invalid_argument("there is nothing to run");
  if (batch.view.sinks < 0 || batch.view.window < 0 || batch.view.blocks < 0)
    throw std::invalid_argument("a view has no negative sinks, window or blocks");
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    batch.cache->check_row(batch.rows[i]);
    for (std::size_t j = 0; j < i; ++j) {
      if (batch.rows[i] == batch.rows[j]) throw std::invalid_argument("a row is named twice");
    }
  }
}

// The slots that all layers to run have filled.
std::int64_t filled(const BatchRows& batch, std::int64_t row) {
  std::int64_t least = batch.cache->length(batch.first_layer, row);
  std::int64_t most = least;
  for (std::int64_t layer = batch.first_layer; layer < batch.end_layer; ++layer) {
    least = std::min(least, batch.cache->length(layer, row));
    most = std::max(most, batch.cache->length(layer, row));
  }
  if (least == most) return least;
  throw CacheError("layers of row " + std::to_string(row) + " hold " + std::to_string(least) +
                   " to " + std::to_string(most) +
                   " tokens; trim the row or run the layers that lag behind first.");
}

void check_room(const KvCache& cache, const RowMask& mask) {
  const std::int64_t capacity = cache.shape().capacity;
  const std::int64_t dropped = cache.dropped(mask.row);
  if (mask.start + mask.count > capacity) {
    throw CacheError("row " + std::to_string(mask.row) + " holds " + std::to_string(mask.start) +
                     " tokens and cannot take " + std::to_string(mask.count) +
                     " more: its capacity is " + std::to_string(capacity) +
                     "; make the cache larger or trim the row.");
  }
  for (std::int64_t i = 0; i < mask.count; ++i) {
    // So a window never begins behind its token.
    const std::int64_t before = dropped + mask.start + i;
    if (mask.positions[i] > before) {
      throw CacheError("position " + std::to_string(mask.positions[i]) + " in row " +
                       std::to_string(mask.row) + " follows " + std::to_string(before) +
                       " tokens; positions start at 0 and leave none out.");
    }
  }
}

RowMask new_row(const BatchRows& batch, std::size_t index) {
  RowMask mask;
  mask.row = batch.rows[index];
  mask.positions = batch.positions + static_cast<std::int64_t>(index) * batch.width;
  while (mask.count < batch.width && mask.positions[mask.count] >= 0) ++mask.count;
  for (std::int64_t i = mask.count; i < batch.width; ++i) {
    if (mask.positions[i] >= 0) throw std::invalid_argument("padding stands before a token");
  }
  mask.start = filled(batch, mask.row);
  if (batch.view.window > 0 && batch.cache->dropped(mask.row) > 0) {
    throw CacheError(
        "row " + std::to_string(mask.row) +
        " has lost tokens, other ones in each head, so that no part of its text can be "
        "read alone.");
  }
  check_room(*batch.cache, mask);
  return mask;
}

// Slots before this one hold the positions that they are.
std::int64_t orderly(const KvCache& cache, std::int64_t row, std::int64_t end) {
  const std::int64_t* positions = cache.positions(row);
  // From the end: what is out of order is the newest.
  std::int64_t first = end;
  for (std::int64_t slot = end - 1; slot >= 0 && positions[slot] != slot; --slot) first = slot;
  return first;
}

// The tree mask of one row of a batch, or none.
struct TreeMask {
  const std::uint8_t* seen;  // [width, columns]
  std::int64_t columns;
  std::int64_t older;  // slots before the new tokens among the columns

  TreeMask(const BatchRows& batch, std::size_t row)
      : seen(batch.tree_mask), columns(batch.mask_columns), older(columns - batch.width) {
    if (seen != nullptr) seen += static_cast<std::int64_t>(row) * batch.width * columns;
  }

  bool sees(std::int64_t token, std::int64_t slot, std::int64_t start) const {
    if (seen == nullptr) return slot <= start + token;
    const std::int64_t column = slot - start + older;
    return column < 0 || seen[token * columns + column] != 0;
  }
};

// Works out `base`, `chain` and `tails`. The positions of the new tokens stand in the cache
// already.
void order_slots(const KvCache& cache, const TreeMask& tree, RowMask& mask) {
  const std::int64_t end = mask.start + mask.count;
  const std::int64_t ordered = orderly(cache, mask.row, end);
  if (tree.seen == nullptr && ordered == end) return;
  mask.chain = false;
  mask.base = std::min(ordered, mask.start);
  if (tree.seen != nullptr) {
    mask.base = std::min(mask.base, std::max<std::int64_t>(mask.start - tree.older, 0));
  }
  const std::int64_t* positions = cache.positions(mask.row);
  mask.slot_positions = positions;
  mask.tails.assign(static_cast<std::size_t>(mask.count), {});
  for (std::int64_t token = 0; token < mask.count; ++token) {
    auto& tail = mask.tails[static_cast<std::size_t>(token)];
    for (std::int64_t slot = mask.base; slot < end; ++slot) {
      if (tree.sees(token, slot, mask.start)) tail.push_back(slot);
    }
    if (std::find(tail.begin(), tail.end(), mask.start + token) == tail.end()) {
      throw std::invalid_argument("a tree mask must let every token see itself");
    }
    std::stable_sort(tail.begin(), tail.end(),
                     [&](std::int64_t a, std::int64_t b) { return positions[a] < positions[b]; });
  }
}

}  // namespace

std::int64_t Visible::from(std::int64_t rank) const {
  if (rank < sinks || rank + kTileSlots > first) return rank;
  const std::int64_t last = first / kTileSlots;
  if (chosen == nullptr) return last * kTileSlots;
  std::int64_t tile = rank / kTileSlots;
  while (tile < last && chosen[tile] == 0) ++tile;
  return tile * kTileSlots;
}

void Visible::include(const Visible& other) {
  for (std::int64_t tile = 0; chosen != nullptr && tile < other.first / kTileSlots; ++tile)
    chosen[tile] |= other.chosen[tile];
  sinks = std::max(sinks, other.sinks);
  first = std::min(first, other.first);
  end = std::max(end, other.end);
}

// Ranks that a token sees whose positions lie below this one.
std::int64_t RowMask::below(std::int64_t token, std::int64_t position) const {
  if (chain || position <= base) return std::clamp<std::int64_t>(position, 0, end(token));
  // A mask may hide tokens, so that what the token sees has lower ranks than positions.
  const auto& tail = tails[static_cast<std::size_t>(token)];
  return base + std::count_if(tail.begin(), tail.end(),
                              [&](std::int64_t slot) { return slot_positions[slot] < position; });
}

Visible RowMask::seen(std::int64_t token, const View& view) const {
  if (view.window == 0) return {0, 0, end(token)};
  const std::int64_t sinks = below(token, view.sinks);
  const std::int64_t first = below(token, positions[token] + 1 - view.window);
  if (sinks >= first) return {0, 0, end(token)};
  return {sinks, first, end(token)};
}

Visible RowMask::seen(const View& view) const {
  Visible all = seen(0, view);
  for (std::int64_t token = 1; token < count; ++token) all.include(seen(token, view));
  return all;
}

NewTokens take_slots(const BatchRows& batch) {
  check(batch);
  NewTokens tokens;
  tokens.view = batch.view;
  for (std::size_t row = 0; row < batch.rows.size(); ++row) {
    RowMask mask = new_row(batch, row);
    mask.first_token = tokens.count();
    for (std::int64_t i = 0; i < mask.count; ++i) {
      tokens.indices.push_back(static_cast<std::int64_t>(row) * batch.width + i);
      tokens.furthest = std::max(tokens.furthest, mask.positions[i]);
    }
    tokens.masks.push_back(std::move(mask));
  }
  // Nothing is written before all rows fit.
  for (std::size_t row = 0; row < batch.rows.size(); ++row) {
    RowMask& mask = tokens.masks[row];
    const std::int64_t dropped = batch.cache->dropped(mask.row);
    std::transform(mask.positions, mask.positions + mask.count,
                   batch.cache->positions(mask.row) + mask.start,
                   [&](std::int64_t position) { return position - dropped; });
    if (mask.count > 0) order_slots(*batch.cache, TreeMask(batch, row), mask);
  }
  return tokens;
}

}  // namespace forerun::cpu
