// The processor's floating-point mode for as long as an object lives.
#pragma once

#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

namespace forerun::cpu {

// A host program may treat subnormal numbers as zero, in some of its threads. Results must not
// depend on that: `ieee` keeps them, `flush` takes them as zero, as vdpbf16ps does in any mode.
class FloatMode {
 public:
  enum class Subnormals { ieee, flush };

#if defined(__x86_64__) || defined(__i386__)
  explicit FloatMode(Subnormals subnormals) : saved_(_mm_getcsr()) {
    constexpr unsigned kDefault = 0x1f80;           // round to nearest, all exceptions masked
    constexpr unsigned kFlush = 0x8000u | 0x0040u;  // results and operands
    _mm_setcsr(subnormals == Subnormals::flush ? kDefault | kFlush : kDefault);
  }
  ~FloatMode() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  explicit FloatMode(Subnormals) {}
#endif

 public:
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;
};

}  // namespace forerun::cpu
