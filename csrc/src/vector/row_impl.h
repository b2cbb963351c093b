// RowOps in plain loops; compiled once for each level, as vector_impl.h is.
#pragma once

#include <limits>

#include "../splitmix.h"
#include "lanes.h"
#include "row_ops.h"

namespace forerun::cpu {
namespace {

inline double falling_exponential(double x) { return __builtin_exp(x); }

template <class T>
inline T sum_of_lanes(const T* lanes) {
  T half[kLanes / 2];
  for (int l = 0; l < kLanes / 2; ++l) half[l] = lanes[l] + lanes[l + kLanes / 2];
  for (int width = kLanes / 4; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) half[l] += half[l + width];
  }
  return half[0];
}

// Of a whole block; one that is not is filled with zeros.
template <class T>
inline double block_sum(const T* x) {
  T lanes[kLanes];
  for (int l = 0; l < kLanes; ++l) lanes[l] = (x[l] + x[l + 16]) + (x[l + 32] + x[l + 48]);
  return static_cast<double>(sum_of_lanes(lanes));
}

// y[i] = value(i), and the sum of all.
template <class T, class Value>
inline double fill_and_sum(std::int64_t n, T* y, Value value) {
  double total = 0.0;
  std::int64_t begin = 0;
  for (; begin + kBlock <= n; begin += kBlock) {
    T block[kBlock];
    for (int i = 0; i < kBlock; ++i) block[i] = value(begin + i);
    for (int i = 0; i < kBlock; ++i) y[begin + i] = block[i];
    total += block_sum(block);
  }
  if (begin < n) {
    T rest[kBlock] = {};
    for (std::int64_t i = begin; i < n; ++i) y[i] = rest[i - begin] = value(i);
    total += block_sum(rest);
  }
  return total;
}

template <class T>
struct BitsOf;
template <>
struct BitsOf<float> {
  using type = std::int32_t;
  static constexpr type infinity = 0x7f800000;
};
template <>
struct BitsOf<double> {
  using type = std::int64_t;
  static constexpr type infinity = 0x7ff0000000000000;
};

// The largest of a block as integers, which compilers can compare in any order. Their order is that
// of the values once negative ones are turned around; `magnitude` keeps the largest without its
// sign.
template <class T>
inline T block_largest(const T* x, int count, typename BitsOf<T>::type& magnitude) {
  using Bits = typename BitsOf<T>::type;
  constexpr Bits kNoSign = std::numeric_limits<Bits>::max();
  Bits best = std::numeric_limits<Bits>::min();
  Bits widest = magnitude;
  for (int i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, x + i, sizeof bits);
    const Bits absolute = bits & kNoSign;
    const Bits key = bits < 0 ? bits ^ kNoSign : bits;
    best = key > best ? key : best;
    widest = absolute > widest ? absolute : widest;
  }
  magnitude = widest;
  best = best < 0 ? best ^ kNoSign : best;
  T value;
  std::memcpy(&value, &best, sizeof value);
  return value;
}

template <class T>
bool row_largest(const T* x, std::int64_t n, T* blocks) {
  typename BitsOf<T>::type magnitude = 0;
  std::int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) *blocks++ = block_largest(x + i, kBlock, magnitude);
  if (i < n) *blocks = block_largest(x + i, static_cast<int>(n - i), magnitude);
  return magnitude <= BitsOf<T>::infinity;
}

template <class T>
double row_exp_scaled(const T* x, T shift, T factor, std::int64_t n, T* y) {
  return fill_and_sum(n, y,
                      [=](std::int64_t i) { return falling_exponential((x[i] - shift) * factor); });
}

template <class T>
double row_residual(const T* p, const T* q, T weight, std::int64_t n, T* y) {
  return fill_and_sum(n, y, [=](std::int64_t i) {
    const T rest = weight * p[i] - q[i];
    return rest > T(0) ? rest : T(0);
  });
}

template <class T>
double row_keep_from(const T* x, T least, std::int64_t n, T* y) {
  return fill_and_sum(n, y, [=](std::int64_t i) { return x[i] >= least ? x[i] : T(0); });
}

template <class T>
void row_block_sums(const T* x, std::int64_t n, double* blocks) {
  double wide[kBlock];
  std::int64_t begin = 0;
  for (; begin + kBlock <= n; begin += kBlock) {
    for (int i = 0; i < kBlock; ++i) wide[i] = static_cast<double>(x[begin + i]);
    *blocks++ = block_sum(wide);
  }
  if (begin == n) return;
  for (int i = 0; i < kBlock; ++i)
    wide[i] = begin + i < n ? static_cast<double>(x[begin + i]) : 0.0;
  *blocks = block_sum(wide);
}

template <class T>
void row_scale(const T* x, T factor, std::int64_t n, T* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = factor * x[i];
}

void fractions(std::uint64_t state, std::int64_t first, double* u) {
  for (int i = 0; i < kBlock; ++i) {
    const std::uint64_t counter = static_cast<std::uint64_t>(first + i) + 1;
    const std::uint64_t bits = mix(state + kGolden * counter);
    // As signed: most processors convert only those.
    u[i] = (static_cast<double>(static_cast<std::int64_t>(bits >> 12)) + 0.5) * 0x1p-52;
  }
}

template <class T>
constexpr RowOps<T> row_ops_of() {
  return {row_largest<T>,   row_exp_scaled<T>, row_residual<T>,
          row_keep_from<T>, row_block_sums<T>, row_scale<T>};
}

}  // namespace
}  // namespace forerun::cpu
