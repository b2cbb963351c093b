// Two groups of 32 columns in int4 that go into AMX's tiles together, for few tokens: the rows of
// one tile are the first group's columns of each token, with zeros behind them, then zeros and the
// second group's. A tile of both groups' weights makes the products of both, apart, and moving
// tiles, which takes as long for few rows as for many, takes half as long.
//
// Of such a pair a panel holds the first group's sums and scales, then the second's, each with room
// for kMostPaired tokens, then those rows.
#pragma once

#include <cstdint>

namespace forerun::cpu {

constexpr int kMostPaired = 8;
constexpr int kPairedGroup = 32;                           // columns
constexpr std::int64_t kPairedRow = 2 * kPairedGroup / 4;  // units of 4 bytes
constexpr std::int64_t kPairedHead = 2 * kMostPaired;      // of a group: sums, scales

constexpr bool pairs_up(std::int64_t tokens, int group) {
  return tokens <= kMostPaired && group == kPairedGroup;
}

// Of a pair.
constexpr std::int64_t paired_units(std::int64_t tokens) {
  return 2 * (kPairedHead + tokens * kPairedRow);
}

}  // namespace forerun::cpu
