#include "forerun/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "coded_head.h"
#include "forerun/errors.h"
#include "numbers.h"
#include "vector/vector_set.h"

namespace forerun::cpu {
namespace {

constexpr auto kLine = static_cast<std::int64_t>(kLineBytes);
// Enough to be read as a stream, and little to begin a row with.
constexpr std::int64_t kMostSegmentSlots = 256;

std::int64_t blocks_of(std::int64_t count) { return (count + kBlockRows - 1) / kBlockRows; }

void write_fp32(const float* x, std::int64_t count, std::uint8_t* first, std::int64_t step) {
  for (std::int64_t i = 0; i < count; ++i) std::memcpy(first + i * step, &x[i], 4);
}

// As Python shows a list.
std::string shown(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers)
    text += (text.empty() ? "" : ", ") + std::to_string(number);
  return "[" + text + "]";
}

// Whether all values will be numbers in the cache.
bool are_numbers(const float* x, std::int64_t count, Precision precision) {
  constexpr float kTooLargeForBf16 = 3.3961775e38f;
  const float limit = precision == Precision::bf16 ? kTooLargeForBf16 : INFINITY;
  int others = 0;
  for (std::int64_t i = 0; i < count; ++i) others |= std::fabs(x[i]) < limit ? 0 : 1;
  return others == 0;
}

}  // namespace

KvCache::KvCache(const Shape& shape) : shape_(shape) {
  const bool codes = shape.precision == Precision::int8 || shape.precision == Precision::int4;
  const bool known =
      codes || shape.precision == Precision::fp32 || shape.precision == Precision::bf16;
  const std::int64_t least =
      std::min({shape.layers, shape.rows, shape.kv_heads, shape.head_dim, shape.capacity});
  const std::int64_t most =
      std::max({shape.layers, shape.rows, shape.kv_heads, shape.head_dim, shape.capacity});
  if (!known || least < 1 || most > (std::int64_t{1} << 31)) {
    throw std::invalid_argument(
        "a cache is of fp32, bf16, int8 or int4 and all its sizes are 1 to 2^31");
  }
  if (codes) group_ = coded_group(shape.head_dim);
  if (codes && group_ == 0) {
    throw std::invalid_argument("heads of " + std::to_string(shape.head_dim) +
                                " dimensions are not made of groups of 16");
  }
  const int per_line = slots_per_line();
  // Segments of one length, so that a small cache is not rounded up to a whole long one.
  segments_ = (shape.capacity + kMostSegmentSlots - 1) / kMostSegmentSlots;
  const std::int64_t slots = (shape.capacity + segments_ - 1) / segments_;
  segment_slots_ = (slots + kTileSlots - 1) / kTileSlots * kTileSlots;
  key_lines_ = (shape.head_dim + per_line - 1) / per_line;
  value_blocks_ = blocks_of(shape.head_dim);
  key_bytes_ = kTileSlots / kBlockRows * key_lines_ * kLine;
  tile_bytes_ = key_bytes_ + value_blocks_ * (kTileSlots / per_line) * kLine;
  if (codes) tile_bytes_ = scale_bytes() + 2 * code_bytes();
  const std::int64_t head_bytes = segment_slots_ / kTileSlots * tile_bytes_;
  const auto heads = static_cast<double>(shape.layers) * static_cast<double>(shape.rows) *
                     static_cast<double>(shape.kv_heads * segments_);
  if (heads * static_cast<double>(head_bytes) > 0x1p46) throw std::bad_alloc();
  memory_ = Buffer(static_cast<std::size_t>(shape.rows * segments_ * shape.layers * shape.kv_heads *
                                            head_bytes));
  lengths_.assign(static_cast<std::size_t>(shape.layers * shape.rows), 0);
  positions_.assign(static_cast<std::size_t>(shape.rows * shape.capacity), 0);
  dropped_.assign(static_cast<std::size_t>(shape.rows), 0);
}

std::uint8_t* KvCache::tile(std::int64_t layer, std::int64_t row, std::int64_t head,
                            std::int64_t slot) const {
  const std::int64_t segment = row * segments_ + slot / segment_slots_;
  const std::int64_t index = (segment * shape_.layers + layer) * shape_.kv_heads + head;
  const std::int64_t tiles = segment_slots_ / kTileSlots;
  return memory_.data() + (index * tiles + slot % segment_slots_ / kTileSlots) * tile_bytes_;
}

std::uint8_t* KvCache::keys(std::int64_t layer, std::int64_t row, std::int64_t head,
                            std::int64_t slot) const {
  return tile(layer, row, head, slot) + slot % kTileSlots / kBlockRows * key_lines_ * kLine;
}

ValueSlot KvCache::values(std::int64_t layer, std::int64_t row, std::int64_t head,
                          std::int64_t slot) const {
  return {tile(layer, row, head, slot) + key_bytes_, kTileSlots / slots_per_line(),
          slot % kTileSlots};
}

std::int64_t KvCache::length(std::int64_t row) const {
  std::int64_t least = lengths_[at(0, row)];
  for (std::int64_t layer = 1; layer < shape_.layers; ++layer) {
    least = std::min(least, lengths_[at(layer, row)]);
  }
  return least;
}

void KvCache::check_row(std::int64_t row) const {
  if (row < 0 || row >= shape_.rows) {
    throw CacheError("row " + std::to_string(row) + " is not in this cache; it has rows 0 to " +
                     std::to_string(shape_.rows - 1) + ".");
  }
}

void KvCache::write(std::int64_t layer, std::int64_t row, std::int64_t head, std::int64_t slot,
                    const float* key, const float* value) {
  const std::int64_t dimensions = shape_.head_dim;
  // What a token does not see weighs 0, and 0 times infinity would be NaN: so values are always
  // numbers. A key that is NaN spoils the scores of the tokens that see it, and no others.
  std::vector<float> none;
  if (!are_numbers(value, dimensions, shape_.precision)) {
    none.assign(static_cast<std::size_t>(2 * dimensions), 0.0f);
    std::fill(none.begin(), none.begin() + dimensions, std::numeric_limits<float>::quiet_NaN());
    key = none.data();
    value = none.data() + dimensions;
  }
  if (coded()) return write_codes(layer, row, head, slot, key, value);
  std::uint8_t* k = keys(layer, row, head, slot) + slot % kBlockRows * 4;
  const ValueSlot v = values(layer, row, head, slot);
  if (shape_.precision == Precision::fp32) {
    write_fp32(key, dimensions, k, kLine);
    for (std::int64_t first = 0; first < dimensions; first += kBlockRows) {
      const std::int64_t count = std::min<std::int64_t>(kBlockRows, dimensions - first);
      std::memcpy(v.memory + (first / kBlockRows * v.lines + v.slot) * kLine, value + first,
                  static_cast<std::size_t>(count) * 4);
    }
    return;
  }
  const SlotPlace place = {k, v.memory + v.slot / 2 * kLine, v.lines * kLine,
                           static_cast<int>(v.slot % 2 * 16)};
  vector_set(best_level()).write_bf16(key, value, dimensions, place);
}

void copy_value_slot(Precision precision, std::int64_t blocks, ValueSlot from, ValueSlot to) {
  for (std::int64_t b = 0; b < blocks; ++b) {
    if (precision == Precision::fp32) {
      std::memcpy(to.memory + (b * to.lines + to.slot) * kLine,
                  from.memory + (b * from.lines + from.slot) * kLine, kLineBytes);
      continue;
    }
    const std::uint8_t* source =
        from.memory + (b * from.lines + from.slot / 2) * kLine + from.slot % 2 * 2;
    std::uint8_t* target = to.memory + (b * to.lines + to.slot / 2) * kLine + to.slot % 2 * 2;
    for (int lane = 0; lane < kBlockRows; ++lane)
      std::memcpy(target + lane * 4, source + lane * 4, 2);
  }
}

void KvCache::read(std::int64_t layer, std::int64_t row, std::int64_t head, std::int64_t slot,
                   float* key, float* value) const {
  if (coded()) {
    read_codes(layer, row, head, slot, key, value);
    if (key != nullptr) turn_back(key);
    return;
  }
  const std::uint8_t* k = keys(layer, row, head, slot) + slot % kBlockRows * 4;
  const ValueSlot v = values(layer, row, head, slot);
  const int per_line = slots_per_line();
  const auto number = [&](const std::uint8_t* at) {
    std::uint16_t half = 0;
    float whole = 0.0f;
    if (per_line == 1) std::memcpy(&whole, at, 4);
    else std::memcpy(&half, at, 2);
    return per_line == 1 ? whole : bf16_to_float(half);
  };
  for (std::int64_t i = 0; i < shape_.head_dim; ++i) {
    if (key != nullptr) key[i] = number(k + i / per_line * kLine + i % per_line * 2);
    if (value == nullptr) continue;
    const std::uint8_t* line = v.memory + (i / kBlockRows * v.lines + v.slot / per_line) * kLine;
    value[i] = number(line + i % kBlockRows * 4 + v.slot % per_line * 2);
  }
}

void KvCache::copy_slot(const std::uint8_t* source, std::int64_t from, std::uint8_t* target,
                        std::int64_t to) const {
  if (coded()) return copy_coded_slot(source, from, target, to);
  const auto key = [&](std::int64_t slot) {
    return slot / kBlockRows * key_lines_ * kLine + slot % kBlockRows * 4;
  };
  for (std::int64_t i = 0; i < key_lines_; ++i)
    std::memcpy(target + key(to) + i * kLine, source + key(from) + i * kLine, 4);
  const std::int64_t lines = kTileSlots / slots_per_line();
  copy_value_slot(shape_.precision, value_blocks_,
                  {const_cast<std::uint8_t*>(source) + key_bytes_, lines, from},
                  {target + key_bytes_, lines, to});
}

void KvCache::move(std::int64_t layer, std::int64_t row, std::int64_t head, std::int64_t from,
                   std::int64_t to) {
  copy_slot(tile(layer, row, head, from), from % kTileSlots, tile(layer, row, head, to),
            to % kTileSlots);
}

void KvCache::keep(std::int64_t row, std::int64_t start, const std::vector<std::int64_t>& slots) {
  check_row(row);
  std::int64_t longest = 0;
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    longest = std::max(longest, lengths_[at(layer, row)]);
  }
  std::int64_t before = -1;
  bool ascending = start >= 0;
  for (const std::int64_t slot : slots) {
    ascending = ascending && slot > before;
    before = slot;
  }
  if (!ascending || start > longest || (!slots.empty() && start + slots.back() >= longest)) {
    throw CacheError("cannot keep tokens " + shown(slots) + " after the first " +
                     std::to_string(start) + " in row " + std::to_string(row) +
                     ": they must ascend from 0 and the row holds " + std::to_string(longest) +
                     " tokens.");
  }
  const auto count = static_cast<std::int64_t>(slots.size());
  for (std::int64_t i = 0; i < count; ++i) {
    positions(row)[start + i] = positions(row)[start + slots[static_cast<std::size_t>(i)]];
  }
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    std::int64_t& length = lengths_[at(layer, row)];
    if (length <= start) continue;
    std::int64_t held = 0;
    for (; held < count && start + slots[static_cast<std::size_t>(held)] < length; ++held) {
      const std::int64_t from = start + slots[static_cast<std::size_t>(held)];
      // Ascending, so nothing is overwritten before it has moved.
      for (std::int64_t head = 0; from != start + held && head < shape_.kv_heads; ++head)
        move(layer, row, head, from, start + held);
    }
    length = start + held;
    forget_means(layer, row, start);
  }
  if (longest > start + count + segment_slots_) give_back(row, start + count);
}

void KvCache::trim(std::int64_t row, std::int64_t length, std::int64_t first_layer,
                   std::int64_t end_layer) {
  check_row(row);
  if (first_layer < 0 || first_layer > end_layer || end_layer > shape_.layers) {
    throw CacheError("cannot trim layers " + std::to_string(first_layer) + " to " +
                     std::to_string(end_layer - 1) + " of a cache of " +
                     std::to_string(shape_.layers) + " layers.");
  }
  if (length < 0) {
    throw CacheError("cannot trim row " + std::to_string(row) + " to " + std::to_string(length) +
                     " tokens; 0 empties it.");
  }
  std::int64_t longest = 0;
  for (std::int64_t layer = first_layer; layer < end_layer; ++layer) {
    std::int64_t& held = lengths_[at(layer, row)];
    longest = std::max(longest, held);
    held = std::min(held, length);
    forget_means(layer, row, length);
  }
  const bool whole = first_layer == 0 && end_layer == shape_.layers;
  if (whole && length == 0) dropped_[static_cast<std::size_t>(row)] = 0;
  if (whole && longest > length + segment_slots_) give_back(row, length);
}

std::int64_t KvCache::row_bytes(std::int64_t layer, std::int64_t row, std::int64_t length) const {
  check_row(row);
  if (layer < 0 || layer >= shape_.layers || length < 0 || length > shape_.capacity) {
    throw CacheError("a cache of " + std::to_string(shape_.layers) + " layers and " +
                     std::to_string(shape_.capacity) + " tokens a row has no " +
                     std::to_string(length) + " tokens in layer " + std::to_string(layer) + ".");
  }
  return shape_.kv_heads * ((length + kTileSlots - 1) / kTileSlots) * tile_bytes_;
}

void KvCache::read_row(std::int64_t layer, std::int64_t row, std::int64_t length,
                       std::uint8_t* out) const {
  row_bytes(layer, row, length);
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    for (std::int64_t slot = 0; slot < length; slot += kTileSlots, out += tile_bytes_) {
      const std::uint8_t* source = tile(layer, row, head, slot);
      if (length - slot >= kTileSlots) {
        std::memcpy(out, source, static_cast<std::size_t>(tile_bytes_));
        continue;
      }
      // What else the tile holds is of other texts.
      std::memset(out, 0, static_cast<std::size_t>(tile_bytes_));
      for (std::int64_t i = 0; i < length - slot; ++i) copy_slot(source, i, out, i);
    }
  }
}

void KvCache::write_row(std::int64_t layer, std::int64_t row, std::int64_t length,
                        const std::uint8_t* tiles) {
  row_bytes(layer, row, length);
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    for (std::int64_t slot = 0; slot < length; slot += kTileSlots, tiles += tile_bytes_) {
      std::memcpy(tile(layer, row, head, slot), tiles, static_cast<std::size_t>(tile_bytes_));
    }
  }
  for (std::int64_t slot = 0; slot < length; ++slot) positions(row)[slot] = slot;
  set_length(layer, row, length);
  forget_means(layer, row, 0);
}

void KvCache::reserve_means() {
  if (!summarized_.empty()) return;
  const auto heads = static_cast<std::size_t>(shape_.layers * shape_.rows * shape_.kv_heads);
  mean_stride_ = blocks_of(shape_.capacity / kTileSlots) * kBlockRows;
  means_ = Buffer(heads * static_cast<std::size_t>(shape_.head_dim * mean_stride_) * sizeof(float));
  key_sums_.resize(static_cast<std::size_t>(2 * shape_.rows * shape_.kv_heads * shape_.head_dim));
  summarized_.assign(heads, 0);
}

void KvCache::summarize(std::int64_t layer, std::int64_t row, std::int64_t head,
                        std::int64_t tiles) {
  if (summarized_.empty()) return;
  const auto index = static_cast<std::int64_t>(at(layer, row)) * shape_.kv_heads + head;
  std::int64_t& known = summarized_[static_cast<std::size_t>(index)];
  const std::int64_t size = shape_.head_dim;
  float* means = reinterpret_cast<float*>(means_.data()) + index * size * mean_stride_;
  float* key = key_sums_.data() + 2 * (row * shape_.kv_heads + head) * size;
  float* sums = key + size;
  for (; known < tiles; ++known) {
    std::fill(sums, sums + size, 0.0f);
    for (std::int64_t slot = known * kTileSlots; slot < (known + 1) * kTileSlots; ++slot) {
      if (coded()) read_codes(layer, row, head, slot, key, nullptr);
      else read(layer, row, head, slot, key, nullptr);
      for (std::int64_t d = 0; d < size; ++d) sums[d] += key[d];
    }
    // Turned back once.
    if (coded()) turn_back(sums);
    for (std::int64_t d = 0; d < size; ++d) means[d * mean_stride_ + known] = sums[d] / kTileSlots;
  }
}

const float* KvCache::means(std::int64_t layer, std::int64_t row, std::int64_t head) const {
  const auto index = static_cast<std::int64_t>(at(layer, row)) * shape_.kv_heads + head;
  return reinterpret_cast<const float*>(means_.data()) + index * shape_.head_dim * mean_stride_;
}

void KvCache::forget_means(std::int64_t layer, std::int64_t row, std::int64_t length) {
  if (summarized_.empty()) return;
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    std::int64_t& known = summarized_[at(layer, row) * static_cast<std::size_t>(shape_.kv_heads) +
                                      static_cast<std::size_t>(head)];
    known = std::min(known, length / kTileSlots);
  }
}

}  // namespace forerun::cpu
