// The rotary embedding (arXiv 2104.09864): cosines and sines by position, made as far as they are
// needed. It turns the first 2 * half() values of a head.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "forerun/vector_ops.h"

namespace forerun::cpu {

class RotaryTable {
 public:
  RotaryTable(std::vector<float> inverse_frequencies, float scale, bool pairs = false)
      : frequencies_(std::move(inverse_frequencies)), scale_(scale), pairs_(pairs) {}

  bool used() const { return !frequencies_.empty(); }
  std::int64_t half() const { return static_cast<std::int64_t>(frequencies_.size()); }

  // Not while others read.
  void reach(std::int64_t position) {
    if (!used() || position < rows_) return;
    constexpr std::int64_t kStep = 512;
    const std::int64_t rows = (position / kStep + 1) * kStep;
    cosines_.resize(static_cast<std::size_t>(rows * half()));
    sines_.resize(cosines_.size());
    for (std::int64_t p = rows_; p < rows; ++p) {
      for (std::int64_t i = 0; i < half(); ++i) {
        // The angle in float, as others define it; its cosine rounded once.
        const float angle = static_cast<float>(p) * frequencies_[static_cast<std::size_t>(i)];
        const auto at = static_cast<std::size_t>(p * half() + i);
        cosines_[at] = static_cast<float>(std::cos(static_cast<double>(angle)) * scale_);
        sines_[at] = static_cast<float>(std::sin(static_cast<double>(angle)) * scale_);
      }
    }
    rows_ = rows;
  }

  // One head in place.
  void turn(float* x, std::int64_t position, const VectorOps& ops) const {
    if (!used()) return;
    const float* cosines = cosines_.data() + position * half();
    const float* sines = sines_.data() + position * half();
    (pairs_ ? ops.rotate_pairs : ops.rotate)(x, cosines, sines, half());
  }

 private:
  std::vector<float> frequencies_;
  double scale_;
  bool pairs_;  // values that turn together lie side by side, else half() apart
  std::int64_t rows_ = 0;
  std::vector<float> cosines_;
  std::vector<float> sines_;
};

}  // namespace forerun::cpu
