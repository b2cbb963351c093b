// Floats to compute in, on cache lines and, where they are many, on huge pages: a product writes to
// as many rows as there are tokens, and so to as many pages.
#pragma once

#include <cstddef>
#include <cstdint>

#include "forerun/buffer.h"

namespace forerun::cpu {

class Floats {
 public:
  // For so many, and before it moves for as many again; what was there is lost then.
  void reserve(std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
    if (memory_.size() < bytes) memory_ = Buffer(2 * bytes);
  }
  float* data() const { return reinterpret_cast<float*>(memory_.data()); }

 private:
  Buffer memory_;
};

}  // namespace forerun::cpu
