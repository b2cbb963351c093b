// One token into its lane of a panel; see activations in linear.h for the layout.
#pragma once

#include "../paired_groups.h"
#include "group_codes.h"
#include "vector_set.h"

namespace forerun::cpu {
namespace {

// `count` units of 4 bytes to every `width`-th place; returns the place that follows.
inline std::uint32_t* scatter(const void* units, std::int64_t count, std::int64_t width,
                              std::uint32_t* panel) {
  const auto* bytes = static_cast<const std::uint8_t*>(units);
  for (std::int64_t i = 0; i < count; ++i, panel += width) std::memcpy(panel, bytes + 4 * i, 4);
  return panel;
}

void pack_token_fp32(const PackTokenArgs& a) {
  scatter(a.values, a.end - a.begin, a.width, a.panel + a.begin * a.width + a.lane);
}

void pack_token_bf16(const PackTokenArgs& a) {
  constexpr std::int64_t kStep = 32;
  const std::int64_t width = a.width;
  std::uint32_t* panel = a.panel + a.begin / 2 * width + (a.token_major ? kStep / 2 : 1) * a.lane;
  for (std::int64_t k = a.begin; k < a.end; k += kStep) {
    float filled[kStep] = {};
    std::uint16_t rounded[kStep];
    const float* values = a.values + (k - a.begin);
    const std::int64_t count = a.end - k < kStep ? a.end - k : kStep;
    if (count < kStep) {
      std::memcpy(filled, values, static_cast<std::size_t>(count) * sizeof(float));
      values = filled;
    }
    for (std::int64_t i = 0; i < kStep; ++i) rounded[i] = float_to_bf16(values[i]);
    if (a.token_major) {
      std::memcpy(panel, rounded, sizeof rounded);
      panel += kStep / 2 * width;
    } else {
      panel = scatter(rounded, (count + 1) / 2, width, panel);
    }
  }
}

// A group of 32 as paired_groups.h says.
inline void pack_paired(const PackTokenArgs& a, std::int64_t group, const std::uint32_t (&head)[2],
                        const std::int8_t* codes) {
  const std::int64_t second = group % 2;
  std::uint32_t* pair = a.panel + group / 2 * paired_units(a.width);
  std::uint32_t* heads = pair + second * kPairedHead + a.lane;
  heads[0] = head[0];
  heads[kMostPaired] = head[1];
  std::uint32_t* row = pair + 2 * kPairedHead + (second * a.width + a.lane) * kPairedRow;
  std::memset(row + (1 - second) * kPairedRow / 2, 0, kPairedGroup);
  std::memcpy(row + second * kPairedRow / 2, codes, kPairedGroup);
}

// kUnit: columns that a line covers, up to which the last group is filled with zeros. kZeroPoint:
// of the weights; 0 where they have an offset. kTogether groups share a scale.
template <int kUnit, int kZeroPoint, int kGroup, int kTogether>
void pack_groups(const PackTokenArgs& a) {
  using Codes = GroupCodes<kTogether * kGroup, kGroup>;
  // Tiles multiply with 16 times the nibbles.
  const bool tiles = kUnit == 8 && a.token_major;
  const float times = tiles ? 16.0f : 1.0f;
  const float part = tiles ? 0x1p-4f : 1.0f;
  const std::int64_t width = a.width;
  std::uint32_t* panel = a.panel + a.begin / kGroup * (kGroup / 4 + 2) * width + a.lane;
  for (std::int64_t k = a.begin; k < a.end; k += Codes::kValues) {
    Codes of;
    const float* values = a.values + (k - a.begin);
    const std::int64_t count = a.end - k < Codes::kValues ? a.end - k : Codes::kValues;
    if (count < Codes::kValues) {
      float filled[Codes::kValues] = {};
      std::memcpy(filled, values, static_cast<std::size_t>(count) * sizeof(float));
      of.round(filled);
    } else {
      of.round(values);
    }
    for (std::int64_t first = 0, group = 0; first < count; first += kGroup, ++group) {
      const std::int8_t* codes = of.codes + first;
      const std::int32_t sum = of.sums[group];
      const std::uint32_t head[] = {
          kZeroPoint == 0
              ? bits_of(static_cast<float>(sum) * times)
              // Modulo 2^32: the sum of a group with a NaN is anything.
              : static_cast<std::uint32_t>(-kZeroPoint) * static_cast<std::uint32_t>(sum),
          bits_of(of.scales[group / kTogether] * part)};
      if (a.paired) {
        pack_paired(a, k / kGroup + group, head, codes);
        continue;
      }
      panel[0] = head[0];
      panel[width] = head[1];
      panel += 2 * width;
      if (a.token_major) {
        std::memcpy(panel + (kGroup / 4 - 1) * a.lane, codes, kGroup);
        panel += kGroup / 4 * width;
      } else {
        const std::int64_t there = count - first < kGroup ? count - first : kGroup;
        panel = scatter(codes, (there + kUnit - 1) / kUnit * (kUnit / 4), width, panel);
      }
    }
  }
}

template <int kUnit, int kZeroPoint>
void pack_token_grouped(const PackTokenArgs& a) {
  constexpr int kTogether = kUnit == 8 && kZeroPoint != 0 ? 2 : 1;  // MatrixShape::groups_per_scale
  switch (a.group) {
    case 16: return pack_groups<4, kZeroPoint, 16, 1>(a);
    case 32: return pack_groups<kUnit, kZeroPoint, 32, kTogether>(a);
    case 64: return pack_groups<kUnit, kZeroPoint, 64, 1>(a);
    default: return pack_groups<kUnit, kZeroPoint, 128, 1>(a);
  }
}

}  // namespace
}  // namespace forerun::cpu
