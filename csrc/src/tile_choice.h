// Which tiles between its sinks and its window a token reads.
#pragma once

#include <cstdint>
#include <vector>

#include "forerun/kv_cache.h"
#include "forerun/vector_ops.h"
#include "row_mask.h"

namespace forerun::cpu {

// Tiles of one head of one row, chosen token by token: those whose mean key has the largest product
// with the sum of the queries that share it; of equals, the earlier. Means stand for their tiles
// as in MoBA (arXiv 2502.13189); on long documents they find what matters more often than bounds
// of the keys do (Quest, arXiv 2406.10774), with half the numbers.
class TileChoice {
 public:
  // Memory for `sets` sets of tiles of a cache; none later.
  void reserve(const KvCache& cache, std::int64_t sets);

  // Forgets the sets that were given out.
  void begin(const KvCache& cache, std::int64_t row, std::int64_t layer, std::int64_t head);
  // `seen`, with as many as `count` of the tiles below `tiles` that it hides, by the token's
  // queries [group, head_dim].
  Visible choose(const Visible& seen, std::int64_t count, std::int64_t tiles, const float* queries,
                 std::int64_t group, const VectorOps& ops);
  // The same with a set of its own.
  Visible copy(const Visible& seen);

 private:
  std::uint8_t* take();

  const float* means_ = nullptr;  // [head_dim, stride]
  std::int64_t stride_ = 0;
  std::int64_t head_dim_ = 0;
  std::size_t tiles_ = 0;
  std::size_t taken_ = 0;
  std::vector<std::uint8_t> sets_;
  std::vector<float> query_;  // [head_dim], the sum
  std::vector<float> scores_;
  std::vector<float> sorted_;
};

}  // namespace forerun::cpu
