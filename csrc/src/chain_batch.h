// The newest tokens of chains as the rows of a forward.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "forerun/batch_rows.h"
#include "forerun/draft_chains.h"

namespace forerun::cpu {

class ChainBatch {
 public:
  // `tokens[i]` go behind what the row of chain i holds in `cache`. Throws CacheError for rows that
  // do not exist.
  void gather(const std::vector<DraftChain*>& chains,
              const std::vector<std::vector<std::int64_t>>& tokens, const KvCache& cache) {
    width_ = 0;
    for (const auto& some : tokens) {
      width_ = std::max(width_, static_cast<std::int64_t>(some.size()));
    }
    rows_.clear();
    ids_.clear();
    positions_.clear();
    for (std::size_t i = 0; i < chains.size(); ++i) {
      const std::int64_t row = chains[i]->row;
      cache.check_row(row);
      rows_.push_back(row);
      const std::int64_t start = cache.length(row);
      for (std::int64_t j = 0; j < width_; ++j) {
        const bool there = j < static_cast<std::int64_t>(tokens[i].size());
        ids_.push_back(there ? tokens[i][static_cast<std::size_t>(j)] : 0);
        positions_.push_back(there ? start + j : -1);
      }
    }
  }

  std::int64_t width() const { return width_; }
  const std::int64_t* token_ids() const { return ids_.data(); }  // [chains, width], padded with 0

  // For a cache that holds as much of each row; valid until the next gather.
  BatchRows rows(KvCache& cache) const {
    BatchRows batch;
    batch.cache = &cache;
    batch.rows = rows_;
    batch.width = width_;
    batch.positions = positions_.data();
    batch.end_layer = 1;
    return batch;
  }

 private:
  std::int64_t width_ = 0;
  std::vector<std::int64_t> rows_;
  std::vector<std::int64_t> ids_;
  std::vector<std::int64_t> positions_;
};

}  // namespace forerun::cpu
