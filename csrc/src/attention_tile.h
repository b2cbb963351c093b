// One tile of a head's keys and values, for some of the columns that attend to it: query heads of
// tokens that share the key head.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "floats.h"
#include "forerun/buffer.h"
#include "forerun/kv_cache.h"
#include "forerun/vector_ops.h"
#include "kernels/kernels.h"
#include "row_mask.h"
#include "tile_choice.h"
#include "vector/vector_set.h"

namespace forerun::cpu {

struct AttentionShape {
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 1;
  float scale = 0.0f;  // on scores; 0: 1 / sqrt(head_dim)
  float cap = 0.0f;    // of scores, by tanh; 0: none
  std::int64_t group() const { return heads / kv_heads; }
};

// What is summed up for a column: values [padded], exponentials in 16 lanes, the largest score.
struct ColumnSums {
  float* values;
  float* lanes;
  float* top;
};

class TileAttention {
 public:
  TileAttention(const AttentionShape& shape, Precision precision, Level limit);

  // One head of one row in one layer.
  struct Head {
    const KvCache* cache;
    std::int64_t layer;
    const RowMask* mask;
    std::int64_t head;
    bool coarse;  // of codes of two nibbles, the upper one alone
  };

  // Columns [begin, end), at most max_columns(), and what any of them sees.
  struct Set {
    std::int64_t begin;
    std::int64_t end;
    Visible seen;
    void* panel;
    int columns() const { return static_cast<int>(end - begin); }
  };

  // Memory of one thread.
  struct Scratch {
    Floats query;      // [head_dim]
    Floats panels;     // queries of an item, a panel for each of its sets of columns
    Floats scores;     // [columns of a set, kTileSlots]
    Floats weights;    // the same as the kernels read them
    Floats slots;      // [columns of a set, slots of a tree]
    Floats sums;       // of an item's columns over a part of the context
    Floats merged;     // over all parts
    Buffer tail;       // values of one token's tail
    LinesAhead queue;  // of a cache of codes: what is left to fetch of the next tile
    std::vector<std::int32_t> coded_sums;  // of values in several tiles, as Scratch::sums lie
    std::vector<Visible> visible;          // by token of a row
    std::vector<Set> sets;                 // of an item
    Visible seen;                          // by any column of an item
    TileChoice choice;                     // of a view with blocks
  };

  int max_columns() const { return coded_ == nullptr ? kernels_->max_tokens : coded_->max_columns; }
  // Of a panel of queries.
  std::int64_t panel_floats(std::int64_t columns) const;
  std::int64_t sums_stride() const { return padded_ + 2 * kBlockRows; }
  ColumnSums sums_of(float* sums, std::int64_t column) const {
    float* at = sums + column * sums_stride();
    return {at, at + padded_, at + padded_ + kBlockRows};
  }
  void reserve(Scratch& s, std::int64_t columns, const std::vector<RowMask>& masks) const;

  // Around a thread's calls of add(), of sets with at most so many columns.
  void begin(int columns) const {
    if (coded_ != nullptr && coded_->begin != nullptr) coded_->begin();
    if (coded_ == nullptr && kernels_->begin != nullptr) kernels_->begin(columns, 0);
  }
  void end() const {
    const auto end = coded_ != nullptr ? coded_->end : kernels_->end;
    if (end != nullptr) end();
  }

  // A column's query, scaled, into its place in a panel.
  void pack_query(const Head& head, const float* query, int columns, int column, Scratch& s,
                  void* panel) const;

  // Adds the ranks [rank, rank + kTileSlots), of which the set sees some, to the sums of its
  // columns, `sums` being those of column `origin`; fetches the tile at `ahead` where there is one.
  void add(const Head& head, const Set& set, std::int64_t rank, const std::uint8_t* ahead,
           Scratch& s, float* sums, std::int64_t origin) const;

  // Sums over a part of the context, behind those over the parts before it; both hold the sum of
  // exponentials in their first lane.
  void merge(const ColumnSums& part, const ColumnSums& merged) const;

  const VectorOps& ops() const { return *ops_; }

 private:
  struct Call {
    const Head& head;
    const Set& set;
    std::int64_t rank;
    const std::uint8_t* ahead;
    Scratch& s;
    float* sums;
    std::int64_t origin;
    std::int64_t lines_of_pass;  // 0 of kernels that need no pass

    const RowMask& mask() const { return *head.mask; }
    std::int64_t end() const { return std::min(rank + kTileSlots, set.seen.end); }
    // Whether slots are ranks in the whole tile.
    bool in_order() const { return mask().chain || rank + kTileSlots <= mask().base; }
    float* row(std::int64_t column) const { return s.scores.data() + column * kTileSlots; }
    const std::uint8_t* tile() const {
      return head.cache->tile(head.layer, mask().row, head.head, rank);
    }
    // From this tile to the one to fetch.
    std::ptrdiff_t fetch() const { return ahead == nullptr ? 0 : ahead - tile(); }
    // From a line of numbers to the one to fetch. Few columns go through lines as fast as memory
    // brings them: then nearer than the next tile, in step with the processor's own prefetching;
    // both apart reach two thirds of memory's rate.
    std::ptrdiff_t fetch_line() const {
      constexpr int kFewColumns = 8;
      constexpr std::ptrdiff_t kNear = 6144;
      const std::ptrdiff_t next = fetch();
      const bool behind = next == head.cache->tile_bytes();
      return behind && set.columns() <= kFewColumns ? kNear : next;
    }
  };
  // Scores of blocks of 16 slots from the start of a tile on, for all columns of a set.
  struct Scores {
    const std::uint8_t* tile;
    std::int64_t blocks;
    std::ptrdiff_t ahead;
    float* out;
    std::int64_t out_stride;
  };
  std::int64_t slot_stride(const RowMask& mask) const;
  void scores(const Call& c) const;
  void slot_scores(const Call& c) const;
  void to_ranks(const Call& c, std::int64_t token, float* row) const;
  void softmax(const Call& c, std::int64_t column) const;
  void add_values(const Call& c) const;
  std::int64_t shared_lines(const Call& c) const;
  void add_tail(const Call& c, std::int64_t column, int columns, std::int64_t from) const;
  void copy_tail(const Call& c, std::int64_t token, std::int64_t from, std::int64_t end) const;
  const std::uint8_t* weights(const Call& c, std::int64_t column) const;
  void run_scores(const Call& c, const Scores& to) const;

  // Of a cache of codes, in attention_coded.cpp.
  void queue_ahead(Call& c) const;
  void pass(const Call& c) const {
    if (c.lines_of_pass > 0) coded_->pass(c.s.queue, c.lines_of_pass);
  }
  void run_coded_scores(const Call& c, const Scores& to) const;
  void pack_coded_query(const Head& head, const float* query, int columns, int column,
                        void* panel) const;
  void add_coded_values(const Call& c) const;
  // One of the tiles that hold the slots of a tile of ranks: whether it is not the first, nor the
  // last.
  struct Piece {
    std::int64_t slot;
    bool resume;
    bool keep;
  };
  void add_coded_group(const Call& c, std::int64_t group, const Piece& piece) const;
  Digits split_slots(const Call& c, std::int64_t column, std::int64_t slot, std::int64_t group,
                     ColumnDigits& to) const;

  AttentionShape shape_;
  Precision precision_;
  const KernelSet* kernels_;
  const CodedSet* coded_ = nullptr;  // of a cache of codes
  const VectorOps* ops_;
  PackToken pack_;
  float scale_;
  std::int64_t padded_;  // head_dim in whole blocks
  std::int64_t groups_;  // of dimensions, in a cache of codes
};

}  // namespace forerun::cpu
