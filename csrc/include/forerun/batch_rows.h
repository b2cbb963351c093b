// The new tokens of a forward, row by row.
#pragma once

#include <cstdint>
#include <vector>

#include "forerun/kv_cache.h"

namespace forerun::cpu {

// What tokens read of their text: positions below `sinks` and those above their own less `window`;
// window 0: all of it. Coarse: of a cache of int8, by the upper nibbles of its codes alone. Of the
// tiles between, each head reads `blocks`: those whose mean key fits a token's queries best.
struct View {
  std::int64_t sinks = 0;
  std::int64_t window = 0;
  bool coarse = false;
  std::int64_t blocks = 0;

  bool operator==(const View& other) const {
    return sinks == other.sinks && window == other.window && coarse == other.coarse &&
           blocks == other.blocks;
  }
};

struct BatchRows {
  KvCache* cache = nullptr;
  std::vector<std::int64_t> rows;           // of the cache, one for each row of the batch
  std::int64_t width = 0;                   // tokens of a row, padding included
  const std::int64_t* positions = nullptr;  // [rows, width]; -1 marks padding at the end of a row
  // Which of the row's last mask_columns - width slots and of its new tokens each new token sees
  // (non-zero); all see the slots before. Null: causal.
  const std::uint8_t* tree_mask = nullptr;  // [rows, width, mask_columns]
  std::int64_t mask_columns = 0;
  std::int64_t first_layer = 0;  // the layers of the cache that grow
  std::int64_t end_layer = 0;
  View view;
};

}  // namespace forerun::cpu
