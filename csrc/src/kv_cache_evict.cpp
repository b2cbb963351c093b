// How a row of the cache loses tokens, and how it is copied.
#include <cstring>
#include <string>

#include "forerun/errors.h"
#include "forerun/kv_cache.h"

namespace forerun::cpu {

void KvCache::check_evicted(std::int64_t row, const std::int64_t* slots, std::int64_t count) const {
  check_row(row);
  const std::int64_t held = length(row);
  bool fits = count >= 1 && count <= held;
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer)
    fits = fits && length(layer, row) == held;
  for (std::int64_t i = 0; fits && i < shape_.layers * shape_.kv_heads * count; ++i) {
    const std::int64_t before = i % count == 0 ? -1 : slots[i - 1];
    fits = slots[i] > before && slots[i] < held;
  }
  if (fits) return;
  throw CacheError("cannot keep " + std::to_string(count) + " tokens of each head in row " +
                   std::to_string(row) +
                   ": their slots must ascend, and all layers must hold them; " +
                   "the shortest has " + std::to_string(held) + ".");
}

void KvCache::evict(std::int64_t row, const std::int64_t* slots, std::int64_t count,
                    ThreadPool& pool) {
  check_evicted(row, slots, count);
  pool.for_ranges(shape_.layers * shape_.kv_heads, 1, [&](const Range& r) {
    for (std::int64_t i = r.begin; i < r.end; ++i) {
      const std::int64_t* own = slots + i * count;
      for (std::int64_t slot = 0; slot < count; ++slot) {
        // Ascending, so nothing is overwritten before it has moved.
        if (own[slot] != slot) move(i / shape_.kv_heads, row, i % shape_.kv_heads, own[slot], slot);
      }
    }
  });
  dropped_[static_cast<std::size_t>(row)] += length(row) - count;
  for (std::int64_t slot = 0; slot < count; ++slot) positions(row)[slot] = slot;
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    set_length(layer, row, count);
    forget_means(layer, row, 0);
  }
  give_back(row, count);
}

void KvCache::give_back(std::int64_t row, std::int64_t length) {
  const std::int64_t used = (length + segment_slots_ - 1) / segment_slots_;
  const std::size_t bytes = segment_bytes();
  memory_.give_back(static_cast<std::size_t>(row * segments_ + used) * bytes,
                    static_cast<std::size_t>(segments_ - used) * bytes);
}

std::unique_ptr<KvCache> KvCache::copy() const {
  auto made = std::make_unique<KvCache>(shape_);
  made->lengths_ = lengths_;
  made->positions_ = positions_;
  made->dropped_ = dropped_;
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    for (std::int64_t row = 0; row < shape_.rows; ++row) {
      for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
        for (std::int64_t slot = 0; slot < length(layer, row); slot += kTileSlots)
          std::memcpy(made->tile(layer, row, head, slot), tile(layer, row, head, slot),
                      static_cast<std::size_t>(tile_bytes_));
      }
    }
  }
  return made;
}

}  // namespace forerun::cpu
