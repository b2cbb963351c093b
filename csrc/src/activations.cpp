#include <algorithm>
#include <stdexcept>
#include <string>

#include "float_mode.h"
#include "forerun/linear.h"
#include "kernels/kernels.h"
#include "paired_groups.h"
#include "vector/vector_set.h"

namespace forerun::cpu {
namespace {

constexpr std::int64_t kPackAlone =
    4096;  // values: below this, handing out costs more than it saves

// Units of 4 bytes that one token takes in a panel.
std::int64_t panel_units(const MatrixShape& shape, const KernelSet& kernels) {
  const std::int64_t step = kernels.step_lines;
  if (!shape.grouped()) return (shape.lines() + step - 1) / step * step;
  if (kernels.token_major) return shape.groups() * (shape.group / 4 + 2);
  const std::int64_t quads = shape.blockwise() ? shape.groups() * shape.group / 4
                                               : shape.lines() * shape.values_per_line() / 4;
  return quads + 2 * shape.groups();
}

}  // namespace

Activations::Activations(Precision precision, int group, Level limit)
    : limit_(limit),
      shape_(MatrixShape::make(precision, 1, 1, group)),
      kernels_(&kernel_set(precision, limit, 1)) {}

void Activations::pack(const float* x, std::int64_t n, std::int64_t cols, std::int64_t stride,
                       ThreadPool& pool) {
  if (stride < cols) {
    throw std::invalid_argument("cannot pack tokens of " + std::to_string(cols) +
                                " values that are " + std::to_string(stride) + " apart");
  }
  resize(n, cols, pool);
  // Shared out by tiles and, in whole batches of groups, by columns, so that threads write to
  // different parts of a panel.
  const std::int64_t step = (shape_.grouped() ? kPackedScales : 2) * shape_.unit_columns();
  const std::int64_t parts = (cols + step - 1) / step;
  const std::int64_t count = tiles_ * parts;
  const std::int64_t shares = n * cols <= kPackAlone ? 1 : 2 * pool.size();
  pool.for_ranges(count, (count + shares - 1) / shares, [&](const Range& r) {
    const FloatMode mode(FloatMode::Subnormals::ieee);
    for (std::int64_t i = r.begin; i < r.end; ++i) {
      const std::int64_t first = tile_begin(i / parts);
      const std::int64_t begin = i % parts * step;
      pack_part(first, tile_tokens(i / parts), begin, std::min(begin + step, cols),
                x + first * stride + begin, stride);
    }
  });
}

void Activations::resize(std::int64_t n, std::int64_t cols, const ThreadPool& pool) {
  if (n < 1) throw std::invalid_argument("cannot pack " + std::to_string(n) + " tokens");
  shape_ = MatrixShape::make(shape_.precision, 1, cols, shape_.group);
  tokens_ = n;
  kernels_ = &kernel_set(shape_.precision, limit_, n);
  const int widest = n <= kernels_->max_tokens ? kernels_->max_tokens : kernels_->tile_tokens;
  tiles_ = (n + widest - 1) / widest;
  units_ = paired() ? ((shape_.groups() + 1) / 2 * paired_units(n) + n - 1) / n
                    : panel_units(shape_, *kernels_);
  const auto bytes = static_cast<std::size_t>(units_ * n) * sizeof(std::uint32_t) + kBehindPanel;
  if (memory_.size() < bytes) memory_ = Buffer(bytes);
  const auto room_bytes = static_cast<std::size_t>(2 * pool.size() * kRoomBytes);
  if (has_rooms() && rooms_.size() < room_bytes) rooms_ = Buffer(room_bytes);
}

void Activations::pack_part(std::int64_t first, std::int64_t count, std::int64_t begin,
                            std::int64_t end, const float* x, std::int64_t stride) {
  const PackToken pack_token =
      vector_set(kernels_->level).pack_token[static_cast<int>(shape_.precision)];
  const bool pairs = paired();
  std::int64_t tile = tile_of(first);
  for (std::int64_t token = first; token < first + count; ++tile) {
    const std::int64_t origin = tile_begin(tile);
    const int width = tile_tokens(tile);
    std::uint32_t* panel = panel_at(tile);
    for (; token < std::min(origin + width, first + count); ++token, x += stride) {
      pack_token({x, begin, end, shape_.group, width, static_cast<int>(token - origin), panel,
                  kernels_->token_major, pairs});
    }
  }
}

bool Activations::paired() const { return kernels_->pairs_up && pairs_up(tokens_, shape_.group); }

std::int64_t Activations::tile_begin(std::int64_t tile) const {
  return tile * (tokens_ / tiles_) + std::min(tile, tokens_ % tiles_);
}

std::int64_t Activations::tile_of(std::int64_t token) const {
  const std::int64_t tokens = tokens_ / tiles_;
  const std::int64_t in_longer = tokens_ % tiles_ * (tokens + 1);
  return token < in_longer ? token / (tokens + 1) : tokens_ % tiles_ + (token - in_longer) / tokens;
}

int Activations::tile_tokens(std::int64_t tile) const {
  return static_cast<int>(tokens_ / tiles_ + (tile < tokens_ % tiles_ ? 1 : 0));
}

// Laid out once for all, weights take longer to come: that pays from so many tiles on.
bool Activations::has_rooms() const {
  constexpr std::int64_t kLeastTiles = 6;
  return kernels_->lays_out && tiles_ >= kLeastTiles;
}

std::uint8_t* Activations::room(int thread, int half) const {
  const std::int64_t place = 2 * thread + half;
  const bool there = (place + 1) * kRoomBytes <= static_cast<std::int64_t>(rooms_.size());
  return has_rooms() && there ? rooms_.data() + place * kRoomBytes : nullptr;
}

std::uint32_t* Activations::panel_at(std::int64_t tile) const {
  return reinterpret_cast<std::uint32_t*>(memory_.data()) + tile_begin(tile) * units_;
}

}  // namespace forerun::cpu
