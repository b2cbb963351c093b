// Attention of new tokens over the cache.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "forerun/kv_cache.h"
#include "forerun/thread_pool.h"
#include "forerun/vector_ops.h"
#include "kernels/kernels.h"
#include "row_mask.h"
#include "vector/vector_set.h"

namespace forerun::cpu {

struct AttentionShape {
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 1;
  std::int64_t group() const { return heads / kv_heads; }
};

// What one layer attends with.
struct AttentionCall {
  const KvCache* cache = nullptr;
  std::int64_t layer = 0;
  std::int64_t window = 0;         // 0: none
  const float* queries = nullptr;  // [tokens, stride], a token's heads side by side, rotated
  std::int64_t stride = 0;
  float* out = nullptr;  // [tokens, heads * head_dim]
};

// The result for a token depends on its query and on the keys and values of its path alone, bit for
// bit:
// - a score is a dot product of its own, in the order of dimensions;
// - exponentials are added in 16 lanes by rank modulo 16, a key's rank being its index on the
//   token's path, wherever it is stored;
// - values are added by rising rank, in one chain for each dimension; what others see adds exact
//   zeros.
class Attention {
 public:
  Attention(const AttentionShape& shape, Precision precision, Level limit, int threads);

  // Splits the work of a forward, the same for all of its layers.
  void plan(const std::vector<RowMask>& masks);
  int threads() const { return static_cast<int>(scratch_.size()); }

  std::int64_t items() const { return static_cast<std::int64_t>(items_.size()); }
  // Whether each item is one head of one row, in that order.
  bool whole_heads() const { return whole_heads_; }

  // Runs items [begin, end) as `thread`.
  void run(const AttentionCall& call, std::int64_t begin, std::int64_t end, int thread);

 private:
  // Columns [begin, end) of one head of one row: its tokens, each with the query heads that share
  // the key head.
  struct Item {
    const RowMask* mask;
    std::int64_t head;
    std::int64_t begin;
    std::int64_t end;
  };
  struct Scratch;
  struct Work;

  std::int64_t tiles_of(std::int64_t columns, std::size_t rows) const;
  void scores(const Work& w);
  void softmax(const Work& w, std::int64_t column);
  void to_ranks(const Work& w, std::int64_t column, std::int64_t token);
  void add_values(const Work& w);
  void add_tail(const Work& w, std::int64_t column, std::int64_t count);
  void pack(const float* x, std::int64_t count, int width, int lane, std::uint32_t* panel) const;
  void kernel(const std::uint8_t* weights, const std::uint32_t* panel, std::int64_t lines,
              int columns, float* out, std::int64_t stride, std::int64_t rows, bool resume) const;

  AttentionShape shape_;
  Precision precision_;
  const KernelSet* kernels_;
  const VectorOps* ops_;
  PackToken pack_;
  float scale_;
  std::vector<Item> items_;
  bool whole_heads_ = true;
  std::int64_t ranks_ = 0;  // of the longest row, in whole blocks
  std::vector<std::shared_ptr<Scratch>> scratch_;
};

}  // namespace forerun::cpu
