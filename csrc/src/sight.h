// Which slots of the cache the new tokens of a forward see, and in which order.
#pragma once

#include <cstdint>
#include <vector>

#include "forerun/kv_cache.h"

namespace forerun::cpu {

// One row of a batch in one forward.
struct RowSight {
  std::int64_t row = 0;          // of the cache
  std::int64_t first_token = 0;  // of the batch's tokens, padding left out
  std::int64_t count = 0;        // new tokens
  std::int64_t start = 0;        // slots filled before
  const std::int64_t* positions = nullptr;  // of the new tokens
  const std::int64_t* slot_positions = nullptr;  // of all slots; null for a chain

  // Slots below `base` are seen by all tokens and hold the positions that they are. A chain has them
  // all below: its tokens see up to their own slot.
  std::int64_t base = 0;
  bool chain = true;
  // By token, the slots from `base` on that it sees, by rising position: the order in which they would
  // lie had nothing else been drafted.
  std::vector<std::vector<std::int64_t>> tails;

  // Places in that order: a token sees [first place, end), less what a window hides.
  std::int64_t end(std::int64_t token) const {
    if (chain) return start + token + 1;
    return base + static_cast<std::int64_t>(tails[static_cast<std::size_t>(token)].size());
  }
  // window 0: none. Positions above position - window are seen.
  std::int64_t first(std::int64_t token, std::int64_t window) const;
};

struct TreeMask {
  const std::uint8_t* seen = nullptr;  // [width, columns], non-zero: sees; null: causal
  std::int64_t columns = 0;            // the row's last columns - width slots, then the new tokens
  std::int64_t width = 0;              // of the batch, padding included
};

// Works out `base`, `chain` and `tails`. The new tokens' positions stand in the cache already. Throws
// std::invalid_argument where a token does not see itself.
void look(const KvCache& cache, const TreeMask& mask, RowSight& sight);

}  // namespace forerun::cpu
