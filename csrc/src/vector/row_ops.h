// What sampling and verification do to a whole row of the vocabulary.
//
// Sums are of blocks: 16 partial sums in T, in a fixed order; blocks add up in double.
#pragma once

#include <cstdint>

namespace forerun::cpu {

constexpr std::int64_t kBlock = 64;

constexpr std::int64_t num_blocks(std::int64_t n) { return (n + kBlock - 1) / kBlock; }

template <class T>
struct RowOps {
  // The largest value of each block; whether none is NaN.
  bool (*largest)(const T* x, std::int64_t n, T* blocks);
  // y = exp((x - shift) * factor), no x being above the shift; returns the sum.
  double (*exp_scaled)(const T* x, T shift, T factor, std::int64_t n, T* y);
  // y = max(weight * p - q, 0); returns the sum.
  double (*residual)(const T* p, const T* q, T weight, std::int64_t n, T* y);
  // y = x where x >= least, else 0; returns the sum.
  double (*keep_from)(const T* x, T least, std::int64_t n, T* y);
  // In double from the first addition on.
  void (*block_sums)(const T* x, std::int64_t n, double* blocks);
  // y = factor * x
  void (*scale)(const T* x, T factor, std::int64_t n, T* y);
};

}  // namespace forerun::cpu
