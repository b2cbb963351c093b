// Attention of new tokens over the cache.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention_tile.h"
#include "float_mode.h"
#include "forerun/thread_pool.h"

namespace forerun::cpu {

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
// bit. A key's rank is its index on the token's path, wherever it is stored.
// - a score is a dot product of its own, in the order of dimensions;
// - ranks are taken in tiles of kTileSlots and these in parts of eight, all counted from rank 0, so
//   that where a sum begins depends on nothing else;
// - within a part, exponentials are relative to the largest score of the tiles so far; they are
//   added in 16 lanes by rank modulo 16, and values by rising rank, in one chain for each
//   dimension; what others see adds exact zeros;
// - parts are put together by rising rank, whoever computed them.
class Attention {
 public:
  Attention(const AttentionShape& shape, Precision precision, Level limit, int threads);

  // Splits the work of a forward, the same for all of its layers.
  void plan(const std::vector<RowMask>& masks);
  int threads() const { return static_cast<int>(scratch_.size()); }

  std::int64_t items() const { return static_cast<std::int64_t>(items_.size()); }
  // Whether each item is one head of one row, in that order.
  bool whole_heads() const { return whole_heads_; }

  // Runs the items of a range.
  void run(const AttentionCall& call, const Range& range);

  // What is left once all items have run, where contexts are split.
  std::int64_t merges() const { return static_cast<std::int64_t>(merges_.size()); }
  void merge(const AttentionCall& call, const Range& range);

 private:
  // Columns [begin, end) of one head of one row: its tokens, each with the query heads that share
  // the key head.
  struct Columns {
    const RowMask* mask;
    std::int64_t head;
    std::int64_t begin;
    std::int64_t end;
    std::int64_t count() const { return end - begin; }
  };
  // Columns over parts [first_part, end_part) of the context: with the sums of each part at
  // `partial` or, where that is none, over all parts.
  struct Item {
    Columns columns;
    std::int64_t first_part;
    std::int64_t end_part;
    std::int64_t partial;
  };
  // How the columns of a head and their context are split.
  struct Split {
    std::int64_t sets;
    std::int64_t pieces;
  };

  FloatMode::Subnormals float_mode() const;
  Split split(const RowMask& mask, std::size_t rows) const;
  void add_items(const RowMask& mask, std::int64_t head, const Split& split);
  void run_item(const AttentionCall& call, const Item& item, const std::uint8_t* following,
                TileAttention::Scratch& s);
  void run_part(const AttentionCall& call, const Columns& columns, std::int64_t part,
                const std::uint8_t* following, TileAttention::Scratch& s, float* sums) const;
  void set_up(const AttentionCall& call, const Columns& columns, TileAttention::Scratch& s) const;
  const std::uint8_t* first_tile(const AttentionCall& call, const Item& item) const;
  void clear(float* sums, std::int64_t columns) const;
  void merge_part(const Columns& columns, float* sums, float* merged) const;
  void write(const AttentionCall& call, const Columns& columns, float* merged) const;

  AttentionShape shape_;
  Precision precision_;
  TileAttention tiles_;
  std::vector<Item> items_;
  std::vector<Item> merges_;
  bool whole_heads_ = true;
  std::int64_t partial_size_ = 0;
  Floats partials_;
  std::vector<std::unique_ptr<TileAttention::Scratch>> scratch_;  // by thread
};

}  // namespace forerun::cpu
