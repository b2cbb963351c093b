// Which slots of the cache the new tokens of a forward see, and in which order.
#pragma once

#include <cstdint>
#include <vector>

#include "forerun/batch_rows.h"
#include "forerun/kv_cache.h"

namespace forerun::cpu {

// What a token sees by rank: the index of a key on the token's path, wherever it is stored. Ranks
// [0, sinks) and [first, end); where the two touch there are no sinks, and `first` is 0. Of the
// tiles that end at `first` or before, those that are `chosen` too, all of each.
struct Visible {
  std::int64_t sinks = 0;
  std::int64_t first = 0;
  std::int64_t end = 0;
  std::uint8_t* chosen = nullptr;  // by tile; null for none

  // The first rank from `rank` on from which tiles are seen, in part at least; `end` or more: none.
  std::int64_t from(std::int64_t rank) const;
  // Whether some of [rank, rank + kTileSlots) is seen.
  bool meets(std::int64_t rank) const { return from(rank) == rank && rank < end; }
  // Whether [rank, rank + kTileSlots) is a chosen tile.
  bool is_chosen(std::int64_t rank) const {
    return chosen != nullptr && rank + kTileSlots <= first && chosen[rank / kTileSlots] != 0;
  }
  // Its own `chosen` then has those of both.
  void include(const Visible& other);
};

// What the new tokens of one row of a batch see.
struct RowMask {
  std::int64_t row = 0;                          // of the cache
  std::int64_t first_token = 0;                  // of the batch's tokens, padding left out
  std::int64_t count = 0;                        // new tokens
  std::int64_t start = 0;                        // slots filled before
  const std::int64_t* positions = nullptr;       // of the new tokens
  const std::int64_t* slot_positions = nullptr;  // of all slots; null for a chain

  // Slots below `base` are seen by all tokens and hold the positions that they are. A chain has
  // them all below: its tokens see up to their own slot.
  std::int64_t base = 0;
  bool chain = true;
  // By token, the slots from `base` on that it sees, by rising position: the order in which they
  // would lie had nothing else been drafted.
  std::vector<std::vector<std::int64_t>> tails;

  // Ranks in that order: a token sees [0, end), less what a view hides.
  std::int64_t end(std::int64_t token) const {
    if (chain) return start + token + 1;
    return base + static_cast<std::int64_t>(tails[static_cast<std::size_t>(token)].size());
  }
  // Tiles in which slots are ranks, whatever else is stored.
  std::int64_t orderly_tiles() const { return (chain ? start + count : base) / kTileSlots; }
  Visible seen(std::int64_t token, const View& view) const;
  // By any of the tokens, of which there are some.
  Visible seen(const View& view) const;

 private:
  std::int64_t below(std::int64_t token, std::int64_t position) const;
};

// The tokens of a batch, padding left out, in slots of the cache.
struct NewTokens {
  std::vector<RowMask> masks;         // by row of the batch
  std::vector<std::int64_t> indices;  // of each token in [rows, width]
  std::int64_t furthest = 0;          // position
  View view;

  std::int64_t count() const { return static_cast<std::int64_t>(indices.size()); }
};

// Gives the new tokens their slots; the length of each layer follows when it has run. Throws
// CacheError for rows that the cache does not have, a full row, layers of different lengths or
// positions that leave some out; std::invalid_argument for layers that the cache does not have, a
// row named twice, padding before a token, or a mask in which a token does not see itself.
NewTokens take_slots(const BatchRows& batch);

}  // namespace forerun::cpu
