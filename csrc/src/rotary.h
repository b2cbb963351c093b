// Cosines and sines of the rotary embedding (arXiv 2104.09864), by position, made as far as they
// are needed.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace forerun::cpu {

class RotaryTable {
 public:
  RotaryTable(std::vector<float> inverse_frequencies, float scale)
      : frequencies_(std::move(inverse_frequencies)), scale_(scale) {}

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

  const float* cosines(std::int64_t position) const { return cosines_.data() + position * half(); }
  const float* sines(std::int64_t position) const { return sines_.data() + position * half(); }

 private:
  std::vector<float> frequencies_;
  double scale_;
  std::int64_t rows_ = 0;
  std::vector<float> cosines_;
  std::vector<float> sines_;
};

}  // namespace forerun::cpu
