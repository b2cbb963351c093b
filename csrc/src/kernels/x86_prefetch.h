// Fetching what will be read, and what will be stored.
#pragma once

#include <cstdint>

#include "unroll.h"

namespace forerun::cpu {
namespace {

// Into the second-level cache: more than a few tokens take longer for each line than the
// first-level cache can hold what was fetched, and what passes by the large cache (prefetchnta)
// comes later.
//
// In assembly because GCC 12 takes a function that only prefetches for one without effect, and
// drops the call before it is inlined.
FORERUN_INLINE void prefetch(const std::uint8_t* p) { asm volatile("prefetcht1 %a0" : : "p"(p)); }

// Into the first-level cache: the next tile of keys and values, with room beside this one: in int8
// both take 34 kB for 128 dimensions.
FORERUN_INLINE void prefetch_tile(const std::uint8_t* p) {
  asm volatile("prefetcht0 %a0" : : "p"(p));
}

// What will be stored.
FORERUN_INLINE void prefetch_to_store(const float* p) { asm volatile("prefetchw %a0" : : "p"(p)); }

}  // namespace
}  // namespace forerun::cpu
