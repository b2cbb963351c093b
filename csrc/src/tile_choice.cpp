#include "tile_choice.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace forerun::cpu {

void TileChoice::reserve(const KvCache& cache, std::int64_t sets) {
  tiles_ = static_cast<std::size_t>(cache.shape().capacity / kTileSlots + 1);
  sets_.resize(std::max(sets_.size(), tiles_ * static_cast<std::size_t>(sets)));
  query_.resize(static_cast<std::size_t>(cache.shape().head_dim));
  scores_.resize(tiles_);
  sorted_.resize(tiles_);
}

void TileChoice::begin(const KvCache& cache, std::int64_t row, std::int64_t layer,
                       std::int64_t head) {
  means_ = cache.means(layer, row, head);
  stride_ = cache.mean_stride();
  head_dim_ = cache.shape().head_dim;
  taken_ = 0;
}

std::uint8_t* TileChoice::take() { return sets_.data() + tiles_ * taken_++; }

Visible TileChoice::copy(const Visible& seen) {
  Visible copied = seen;
  copied.chosen = take();
  std::copy_n(seen.chosen, tiles_, copied.chosen);
  return copied;
}

Visible TileChoice::choose(const Visible& seen, std::int64_t count, std::int64_t tiles,
                           const float* queries, std::int64_t group, const VectorOps& ops) {
  Visible chosen = seen;
  chosen.chosen = take();
  std::fill_n(chosen.chosen, tiles_, std::uint8_t{0});
  const std::int64_t first = seen.sinks / kTileSlots;
  const std::int64_t n = std::min(seen.first / kTileSlots, tiles) - first;
  if (n <= 0) return chosen;
  std::copy_n(queries, head_dim_, query_.begin());
  for (std::int64_t q = 1; q < group; ++q)
    ops.add(queries + q * head_dim_, head_dim_, query_.data());
  const auto end = scores_.begin() + n;
  std::fill(scores_.begin(), end, 0.0f);
  for (std::int64_t d = 0; d < head_dim_; ++d) {
    const float factor = query_[static_cast<std::size_t>(d)];
    ops.blend(means_ + d * stride_ + first, 1.0f, factor, n, scores_.data());
  }
  // What is not a number cannot be sorted, and is not chosen.
  std::replace_if(scores_.begin(), end, [](float s) { return std::isnan(s); }, -INFINITY);
  const std::int64_t most = std::min(count, n);
  std::copy(scores_.begin(), end, sorted_.begin());
  std::nth_element(sorted_.begin(), sorted_.begin() + (most - 1), sorted_.begin() + n,
                   std::greater<>());
  const float least = sorted_[static_cast<std::size_t>(most - 1)];
  std::int64_t equal =
      most - std::count_if(scores_.begin(), end, [&](float s) { return s > least; });
  for (std::int64_t i = 0; i < n; ++i) {
    const float score = scores_[static_cast<std::size_t>(i)];
    if (score == -INFINITY) continue;
    if (score > least || (score == least && equal-- > 0)) chosen.chosen[first + i] = 1;
  }
  return chosen;
}

}  // namespace forerun::cpu
