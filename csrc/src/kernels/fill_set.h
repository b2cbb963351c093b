// Fills a KernelSet's table with the instantiations of a kernel.
#pragma once

#include "kernels.h"
#include "unroll.h"

namespace forerun::cpu {
namespace {

constexpr auto kLine = static_cast<std::int64_t>(kLineBytes);

// A groupwise integer format as it is, with an offset beside each scale.
template <class Format>
struct WithOffset : Format {
  static constexpr bool kOffset = true;
};

// Kernels::run<T>(const TileArgs&), Kernels::kMaxTokens.
template <class Kernels>
KernelSet make_set(Level level, Precision precision) {
  static_assert(Kernels::kMaxTokens <= kMaxTileTokens);
  KernelSet set;
  set.level = level;
  set.precision = precision;
  set.max_tokens = Kernels::kMaxTokens;
  unroll<Kernels::kMaxTokens>([&](auto i) { set.kernel[i + 1] = &Kernels::template run<i + 1>; });
  return set;
}

}  // namespace
}  // namespace forerun::cpu
