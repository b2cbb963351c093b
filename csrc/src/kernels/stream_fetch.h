// What kernels that stream blocks fetch while they work.
#pragma once

#include "fill_set.h"
#include "x86_prefetch.h"

namespace forerun::cpu {
namespace {

// kNear: into the first-level cache too, a little ahead. Nibbles, which are laid out first, then
// take less time; bytes, which tiles load, do not.
template <bool kNear>
class StreamFetch {
 public:
  FORERUN_INLINE explicit StreamFetch(const Ahead& ahead, const std::uint8_t* weights)
      : next_(ahead.first),
        turn_(weights + ahead.switch_line * kLine),
        second_(ahead.second),
        near_(ahead.near),
        every_(ahead.every) {}

  // With so many lines that begin at `w`, where the switch can be.
  FORERUN_INLINE void with(const std::uint8_t* w, std::int64_t lines) {
    if (w == turn_) next_ = second_;
    for (std::int64_t i = 0; i < lines; i += every_) fetch();
  }

  // With kLines in parts, as the processor waits for few at a time: this, then one part of kParts
  // after the other. Where few are fetched they come at once.
  template <int kLines>
  FORERUN_INLINE void begin(const std::uint8_t* w) {
    with(w, every_ == 1 ? 0 : kLines);
  }
  template <int kLines, int kParts, int kFrom, int kTo>
  FORERUN_INLINE void part(const std::uint8_t* w) {
    if (every_ != 1) return;
    constexpr int kFirst = kFrom * kLines / kParts;
    unroll<kTo * kLines / kParts - kFirst>([&](auto i) FORERUN_INLINE_BODY {
      if (kNear) prefetch(w + (kFirst + i) * kLine + near_);
      fetch();
    });
  }

 private:
  FORERUN_INLINE void fetch() {
    prefetch_far(next_);
    next_ += kLine;
  }

  const std::uint8_t* next_;
  const std::uint8_t* turn_;
  const std::uint8_t* second_;
  std::ptrdiff_t near_;
  std::int64_t every_;
};

}  // namespace
}  // namespace forerun::cpu
