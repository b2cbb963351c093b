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
  View view;                       // of this layer
  const float* queries = nullptr;  // [tokens, stride], a token's heads side by side, rotated
  std::int64_t stride = 0;
  float* out = nullptr;  // [tokens, heads * head_dim]
  // [heads] or null: scores of a value of zeros that all tokens see, taken in last.
  const float* sinks = nullptr;
};

// The result for a token depends on its query and on the keys and values of its path alone, bit for
// bit, and on the view of it (row_mask.h says what a rank is).
// - a score is a dot product of its own, in the order of dimensions;
// - ranks are taken in tiles of kTileSlots and these in parts of eight, all counted from rank 0, so
//   that where a sum begins depends on nothing else;
// - within a part, exponentials are relative to the largest score of the tiles so far; they are
//   added in 16 lanes by rank modulo 16, and values by rising rank, in one chain for each
//   dimension (by AMX in bf16 one for each tile); what others see adds exact zeros;
// - parts are put together by rising rank, whoever computed them.
class Attention {
 public:
  Attention(const AttentionShape& shape, Precision precision, Level limit, int threads);

  // Forgets the plans of the forward before.
  void begin() { planned_ = 0; }
  // Splits the work of a layer that reads through `view`; what follows goes by it. Made once for
  // all layers of a forward with that view.
  void plan(const NewTokens& tokens, const KvCache& cache, const View& view);
  Precision precision() const { return precision_; }
  int threads() const { return static_cast<int>(scratch_.size()); }

  std::int64_t items() const { return static_cast<std::int64_t>(plan_->items.size()); }
  // Whether each item is one head of one row, in that order.
  bool whole_heads() const { return plan_->whole_heads; }

  // Runs the items of a range.
  void run(const AttentionCall& call, const Range& range);

  // What is left once all items have run, where contexts are split.
  std::int64_t merges() const { return static_cast<std::int64_t>(plan_->merges.size()); }
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
  // The parts of a context that a row reads: all but `hidden` of them from `sinks` on.
  struct Parts {
    std::int64_t sinks;
    std::int64_t hidden;
    std::int64_t count;
    std::int64_t at(std::int64_t index) const { return index < sinks ? index : index + hidden; }
  };
  // Columns over some of these parts, the `first_part`th and on to `end_part`: with the sums of
  // each part at `partial` or, where that is none, over all parts.
  struct Item {
    Columns columns;
    Parts parts;
    std::int64_t first_part;
    std::int64_t end_part;
    std::int64_t partial;
  };
  // How the columns of a head and their context are split.
  struct Split {
    std::int64_t sets;
    std::int64_t pieces;
  };

  struct Plan {
    View view;
    std::vector<Item> items;
    std::vector<Item> merges;
    bool whole_heads;
    int widest;  // columns of a set
    std::int64_t partial_size;
  };

  FloatMode::Subnormals float_mode() const;
  void make(Plan& plan, const NewTokens& tokens) const;
  static Parts parts_of(const RowMask& mask, const View& view);
  Split split(const RowMask& mask, std::int64_t parts, std::size_t rows) const;
  void add_items(Plan& plan, const RowMask& mask, std::int64_t head, const Parts& parts,
                 const Split& split) const;
  void run_item(const AttentionCall& call, const Item& item, const std::uint8_t* following,
                TileAttention::Scratch& s);
  void run_part(const AttentionCall& call, const Columns& columns, std::int64_t part,
                const std::uint8_t* following, TileAttention::Scratch& s, float* sums) const;
  static TileAttention::Head head_of(const AttentionCall& call, const Columns& columns);
  void set_up(const AttentionCall& call, const Columns& columns, TileAttention::Scratch& s) const;
  void find_visible(const AttentionCall& call, const Columns& columns,
                    TileAttention::Scratch& s) const;
  const std::uint8_t* first_tile(const AttentionCall& call, const Item& item) const;
  void clear(float* sums, std::int64_t columns) const;
  void merge_part(const Columns& columns, float* sums, float* merged) const;
  void write(const AttentionCall& call, const Columns& columns, float* merged) const;

  AttentionShape shape_;
  Precision precision_;
  TileAttention tiles_;
  std::vector<std::unique_ptr<Plan>> plans_;  // of this forward, the first `planned_` of them
  std::size_t planned_ = 0;
  Plan* plan_ = nullptr;  // that of the layer
  Floats partials_;
  std::vector<std::unique_ptr<TileAttention::Scratch>> scratch_;  // by thread
};

}  // namespace forerun::cpu
