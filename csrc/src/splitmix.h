// The finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) and the step between its states.
#pragma once

#include <cstdint>

namespace forerun::cpu {
namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15u;

inline std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

}  // namespace
}  // namespace forerun::cpu
