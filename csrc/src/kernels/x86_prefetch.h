// Fetching lines ahead of a stream of weights.
#pragma once

#include <cstdint>

#include "unroll.h"

namespace forerun::cpu {
namespace {

// Tiles up to this many tokens are what a round of speculation checks: the weights pass by once,
// past the large cache, so that a draft model that lives there stays. More tokens take longer for
// each line than the first-level cache can hold what was fetched.
constexpr int kTokensPassing = 6;

// In assembly because GCC 12 takes a function that only prefetches for one without effect, and
// drops the call before it is inlined.
template <int T>
FORERUN_INLINE void prefetch(const std::uint8_t* p) {
  if constexpr (T <= kTokensPassing) {
    asm volatile("prefetchnta %a0" : : "p"(p));
  } else {
    asm volatile("prefetcht1 %a0" : : "p"(p));
  }
}

}  // namespace
}  // namespace forerun::cpu
