// Fetching what will be read, and what will be stored.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../unroll.h"

namespace forerun::cpu {
namespace {

// What passes by the large cache (prefetchnta) comes no sooner.
//
// In assembly because GCC 12 takes a function that only prefetches for one without effect, and
// drops the call before it is inlined.
FORERUN_INLINE void prefetch(const std::uint8_t* p) { asm volatile("prefetcht0 %a0" : : "p"(p)); }

// Into the second-level cache.
FORERUN_INLINE void prefetch_far(const std::uint8_t* p) {
  asm volatile("prefetcht1 %a0" : : "p"(p));
}

// The line at `ahead` and, as near_bytes() says, the one so near to `here`.
FORERUN_INLINE void prefetch(const std::uint8_t* ahead, const std::uint8_t* here,
                             std::ptrdiff_t near) {
  if (near == 0) return prefetch(ahead);
  prefetch_far(ahead);
  prefetch(here + near);
}

// What will be stored.
FORERUN_INLINE void prefetch_to_store(const float* p) { asm volatile("prefetchw %a0" : : "p"(p)); }

}  // namespace
}  // namespace forerun::cpu
