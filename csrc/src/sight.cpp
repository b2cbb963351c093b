#include "sight.h"

#include <algorithm>
#include <stdexcept>

namespace forerun::cpu {
namespace {

// Slots before this one hold the positions that they are.
std::int64_t orderly(const KvCache& cache, std::int64_t row, std::int64_t end) {
  const std::int64_t* positions = cache.positions(row);
  // From the end: what is out of order is the newest.
  std::int64_t first = end;
  for (std::int64_t slot = end - 1; slot >= 0 && positions[slot] != slot; --slot) first = slot;
  return first;
}

bool sees(const TreeMask& mask, std::int64_t token, std::int64_t slot, std::int64_t start) {
  if (mask.seen == nullptr) return slot <= start + token;
  const std::int64_t column = slot - start + mask.columns - mask.width;
  return column < 0 || mask.seen[token * mask.columns + column] != 0;
}

}  // namespace

std::int64_t RowSight::first(std::int64_t token, std::int64_t window) const {
  if (window == 0) return 0;
  const std::int64_t lowest = std::max<std::int64_t>(positions[token] + 1 - window, 0);
  if (chain || lowest <= base) return lowest;
  // A mask may hide tokens, so that what the token sees lies at lower places than positions.
  const auto& tail = tails[static_cast<std::size_t>(token)];
  return base + std::count_if(tail.begin(), tail.end(),
                              [&](std::int64_t slot) { return slot_positions[slot] < lowest; });
}

void look(const KvCache& cache, const TreeMask& mask, RowSight& sight) {
  const std::int64_t end = sight.start + sight.count;
  const std::int64_t ordered = orderly(cache, sight.row, end);
  if (mask.seen == nullptr && ordered == end) return;
  sight.chain = false;
  sight.base = std::min(ordered, sight.start);
  if (mask.seen != nullptr) {
    sight.base = std::min(sight.base, std::max<std::int64_t>(sight.start - (mask.columns - mask.width), 0));
  }
  const std::int64_t* positions = cache.positions(sight.row);
  sight.slot_positions = positions;
  sight.tails.assign(static_cast<std::size_t>(sight.count), {});
  for (std::int64_t token = 0; token < sight.count; ++token) {
    auto& tail = sight.tails[static_cast<std::size_t>(token)];
    for (std::int64_t slot = sight.base; slot < end; ++slot) {
      if (sees(mask, token, slot, sight.start)) tail.push_back(slot);
    }
    if (std::find(tail.begin(), tail.end(), sight.start + token) == tail.end()) {
      throw std::invalid_argument("a tree mask must let every token see itself");
    }
    std::stable_sort(tail.begin(), tail.end(),
                     [&](std::int64_t a, std::int64_t b) { return positions[a] < positions[b]; });
  }
}

}  // namespace forerun::cpu
