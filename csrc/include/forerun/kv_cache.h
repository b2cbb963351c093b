// Keys and values of a batch of rows, in the order in which the kernels read them.
//
// A head's slots lie in tiles of 64: first the keys of a tile, then its values, so that attention
// reads a head as one stream. To a kernel the keys of a tile are a matrix with a row for each slot,
// and the values one with a column for each slot; both lie as packed_matrix.h says, in fp32 or
// bf16. So scores and sums over values are skinny products like all others, and each tile is read
// once for all tokens and heads that share it.
//
// Codes (int8 and int4, coded_head.h): the scales of a tile's keys, then of its values, by group
// and slot; then the keys in blocks of 16 slots and the values in blocks of 16 dimensions, of each
// block the plane of upper nibbles and behind it, in int8, that of the lower ones: so both are one
// stream, which the processor's own prefetching follows. A line of a plane has eight dimensions of
// 16 slots, or eight slots of 16 dimensions (CodedTile in kernels.h). Keys are turned first, and
// queries with them (turn in vector_ops.h).
//
// A row's tiles lie in segments of 256 slots, each with all layers and heads: a row takes
// only the memory that its tokens fill, though it lies on huge pages.
//
// A row may lose tokens, as many in all layers and heads but not the same ones: those that stay
// move to its first slots, in their order, with the rotation of the positions that they had.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "forerun/buffer.h"
#include "forerun/packed_matrix.h"
#include "forerun/thread_pool.h"

namespace forerun::cpu {

constexpr std::int64_t kTileSlots = 64;

// The values of one slot: `lines` are those of its tile in a block of 16 dimensions, `slot` counts
// from there.
struct ValueSlot {
  std::uint8_t* memory;
  std::int64_t lines;
  std::int64_t slot;
};

class KvCache {
 public:
  struct Shape {
    Precision precision = Precision::bf16;  // or fp32, int8, int4
    std::int64_t layers = 1;
    std::int64_t rows = 1;
    std::int64_t kv_heads = 1;
    std::int64_t head_dim = 1;
    std::int64_t capacity = 1;  // slots a row
  };

  // Throws std::invalid_argument for sizes below 1, another precision or heads that no group
  // divides, std::bad_alloc.
  explicit KvCache(const Shape& shape);

  // Held while a forward or a copy uses the cache: what another thread calls then waits.
  std::recursive_mutex& mutex() const { return mutex_; }

  const Shape& shape() const { return shape_; }
  std::size_t bytes() const { return memory_.size() + means_.size(); }

  std::int64_t length(std::int64_t layer, std::int64_t row) const {
    return lengths_[at(layer, row)];
  }
  // Of the row's shortest layer.
  std::int64_t length(std::int64_t row) const;
  void set_length(std::int64_t layer, std::int64_t row, std::int64_t length) {
    lengths_[at(layer, row)] = length;
  }

  // Of the token in each slot of a row, less the tokens that the row has lost.
  std::int64_t* positions(std::int64_t row) { return positions_.data() + row * shape_.capacity; }
  const std::int64_t* positions(std::int64_t row) const {
    return positions_.data() + row * shape_.capacity;
  }

  // Of the slots from `start` on, keeps only start + slots[i], moved to start + i, in every layer
  // that holds them. Memory is given back as by trim(). Throws CacheError unless they ascend and
  // the longest layer holds them.
  void keep(std::int64_t row, std::int64_t start, const std::vector<std::int64_t>& slots);

  // Forgets all slots of a row from `length` on, in layers [first_layer, end_layer); an empty row
  // has lost no tokens. Where more than a segment is forgotten, and not only a draft, its memory is
  // given back. Throws CacheError for a negative length or layers that are not there.
  void trim(std::int64_t row, std::int64_t length, std::int64_t first_layer,
            std::int64_t end_layer);

  // Of all slots of a row, each layer and head keeps its own: `slots` [layers, kv_heads, count],
  // ascending, one or more, on all threads; memory that no slot needs any more is given back.
  // Throws CacheError for slots that do not ascend or that a layer does not hold, and layers of
  // different lengths.
  void evict(std::int64_t row, const std::int64_t* slots, std::int64_t count, ThreadPool& pool);
  // Tokens that a row has lost.
  std::int64_t dropped(std::int64_t row) const { return dropped_[static_cast<std::size_t>(row)]; }

  // Another cache that holds the same. Throws std::bad_alloc.
  std::unique_ptr<KvCache> copy() const;

  // Of the tiles that hold the first `length` slots of a row in one layer, all heads; throws
  // CacheError for a layer, a row or more slots than there are.
  std::int64_t row_bytes(std::int64_t layer, std::int64_t row, std::int64_t length) const;
  // Copies those tiles out, [kv_heads, tiles, tile_bytes], whatever they contain.
  void read_row(std::int64_t layer, std::int64_t row, std::int64_t length, std::uint8_t* out) const;
  // Copies them in: in this layer the row then holds the first `length` tokens of a text.
  void write_row(std::int64_t layer, std::int64_t row, std::int64_t length,
                 const std::uint8_t* tiles);

  // Throws CacheError for a row that is not there.
  void check_row(std::int64_t row) const;

  bool coded() const { return group_ != 0; }
  int planes() const { return shape_.precision == Precision::int8 ? 2 : 1; }
  std::int64_t group() const { return group_; }  // dimensions that share a scale, 0 unless coded
  // Of a tile's keys and values.
  std::int64_t scale_bytes() const {
    return 2 * (shape_.head_dim / group_) * kTileSlots *
           static_cast<std::int64_t>(sizeof(std::uint16_t));
  }
  // Of one plane of a block.
  std::int64_t key_plane_bytes() const { return shape_.head_dim * kBlockRows / 2; }
  std::int64_t value_plane_bytes() const { return kTileSlots * kBlockRows / 2; }
  // Of a tile's keys, or of its values, in all planes.
  std::int64_t code_bytes() const { return planes() * shape_.head_dim * kTileSlots / 2; }

  int slots_per_line() const { return shape_.precision == Precision::bf16 ? 2 : 1; }
  std::int64_t key_lines() const { return key_lines_; }  // in a block of 16 slots
  std::int64_t value_blocks() const { return value_blocks_; }
  std::int64_t tile_bytes() const { return tile_bytes_; }

  // The tile that holds a slot: its keys, then its values.
  std::uint8_t* tile(std::int64_t layer, std::int64_t row, std::int64_t head,
                     std::int64_t slot) const;
  // The keys of the block that holds a slot.
  std::uint8_t* keys(std::int64_t layer, std::int64_t row, std::int64_t head,
                     std::int64_t slot) const;
  ValueSlot values(std::int64_t layer, std::int64_t row, std::int64_t head,
                   std::int64_t slot) const;

  // Reads what is stored of a head, [head_dim] each; one of them may be null.
  void read(std::int64_t layer, std::int64_t row, std::int64_t head, std::int64_t slot, float* key,
            float* value) const;

  // Memory for means of keys. Throws std::bad_alloc.
  void reserve_means();
  // Computes the means of a head's first tiles, which are full, where they are not known yet; at
  // once with other heads and rows. Without memory for them it does nothing.
  void summarize(std::int64_t layer, std::int64_t row, std::int64_t head, std::int64_t tiles);
  // Of a head's tiles, [head_dim, mean_stride()]: a number for each tile that has been summarized.
  const float* means(std::int64_t layer, std::int64_t row, std::int64_t head) const;
  std::int64_t mean_stride() const { return mean_stride_; }

  // Stores one head's key and value [head_dim]. A value that is not finite becomes 0, and its key
  // NaN.
  void write(std::int64_t layer, std::int64_t row, std::int64_t head, std::int64_t slot,
             const float* key, const float* value);

 private:
  std::size_t at(std::int64_t layer, std::int64_t row) const {
    return static_cast<std::size_t>(layer * shape_.rows + row);
  }
  void move(std::int64_t layer, std::int64_t row, std::int64_t head, std::int64_t from,
            std::int64_t to);
  // Throws CacheError unless evict() may be called so.
  void check_evicted(std::int64_t row, const std::int64_t* slots, std::int64_t count) const;
  // Gives back the memory of the segments behind the one that holds the slot before `length`.
  void give_back(std::int64_t row, std::int64_t length);
  std::size_t segment_bytes() const {
    return static_cast<std::size_t>(shape_.layers * shape_.kv_heads *
                                    (segment_slots_ / kTileSlots) * tile_bytes_);
  }
  // Of means, those of tiles with slots from `length` on.
  void forget_means(std::int64_t layer, std::int64_t row, std::int64_t length);
  void write_codes(std::int64_t layer, std::int64_t row, std::int64_t head, std::int64_t slot,
                   const float* key, const float* value);
  // The key as it is stored: turned.
  void read_codes(std::int64_t layer, std::int64_t row, std::int64_t head, std::int64_t slot,
                  float* key, float* value) const;
  void turn_back(float* key) const;
  // A slot of a tile to one of another, or of the same.
  void copy_slot(const std::uint8_t* source, std::int64_t from, std::uint8_t* target,
                 std::int64_t to) const;
  void copy_coded_slot(const std::uint8_t* source, std::int64_t from, std::uint8_t* target,
                       std::int64_t to) const;

  mutable std::recursive_mutex mutex_;
  Shape shape_;
  std::int64_t group_ = 0;
  std::int64_t segments_ = 0;  // of a row
  std::int64_t segment_slots_ = 0;
  std::int64_t key_lines_ = 0;
  std::int64_t value_blocks_ = 0;
  std::int64_t key_bytes_ = 0;   // of a tile
  std::int64_t tile_bytes_ = 0;  // keys and values of it
  std::int64_t mean_stride_ = 0;
  Buffer memory_;
  Buffer means_;                          // [layers, rows, kv_heads, head_dim, mean_stride]
  std::vector<float> key_sums_;           // a key and a sum, by row and head
  std::vector<std::int64_t> summarized_;  // tiles, by layer, row and head
  std::vector<std::int64_t> lengths_;
  std::vector<std::int64_t> positions_;
  std::vector<std::int64_t> dropped_;  // by row
};

// Copies the values of one slot, `blocks` blocks of dimensions, to another slot.
void copy_value_slot(Precision precision, std::int64_t blocks, ValueSlot from, ValueSlot to);

}  // namespace forerun::cpu
