// Sixteen lanes in plain C++, and the functions that run in them.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "../numbers.h"

namespace forerun::cpu {
namespace {

constexpr int kLanes = 16;

// Quarters of four, which every processor with vectors has as they are.
typedef float Quarter __attribute__((vector_size(16)));

#if defined(__AVX512F__)
struct Lanes {
  __m512 all;
};

inline Lanes operator*(const Lanes& a, const Lanes& b) { return {_mm512_mul_ps(a.all, b.all)}; }
inline Lanes operator+(const Lanes& a, const Lanes& b) { return {_mm512_add_ps(a.all, b.all)}; }
// The larger ones; b where a is NaN.
inline Lanes larger(const Lanes& a, const Lanes& b) { return {_mm512_max_ps(a.all, b.all)}; }
#else
struct Lanes {
  Quarter part[4];
};

inline Lanes operator*(const Lanes& a, const Lanes& b) {
  return {
      {a.part[0] * b.part[0], a.part[1] * b.part[1], a.part[2] * b.part[2], a.part[3] * b.part[3]}};
}

inline Lanes operator+(const Lanes& a, const Lanes& b) {
  return {
      {a.part[0] + b.part[0], a.part[1] + b.part[1], a.part[2] + b.part[2], a.part[3] + b.part[3]}};
}

// The larger ones; b where a is NaN.
inline Lanes larger(const Lanes& a, const Lanes& b) {
  Lanes y;
  for (int i = 0; i < 4; ++i) y.part[i] = a.part[i] > b.part[i] ? a.part[i] : b.part[i];
  return y;
}
#endif

inline Lanes load(const float* p) {
  Lanes v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline Lanes load_part(const float* p, std::int64_t count) {
  float filled[kLanes] = {};
  std::memcpy(filled, p, static_cast<std::size_t>(count) * sizeof(float));
  return load(filled);
}

inline Lanes in_all(float x) {
  float filled[kLanes];
  for (float& lane : filled) lane = x;
  return load(filled);
}

inline Quarter quarter(const Lanes& v, int index) {
  Quarter q[4];
  std::memcpy(q, &v, sizeof q);
  return q[index];
}

inline float sum_lanes(const Lanes& v) {
  const Quarter q = (quarter(v, 0) + quarter(v, 2)) + (quarter(v, 1) + quarter(v, 3));
  return (q[0] + q[2]) + (q[1] + q[3]);
}

// Of lanes without NaN.
inline float largest_lane(const Lanes& v) {
  const auto larger_of = [](const Quarter& a, const Quarter& b) { return a > b ? a : b; };
  const Quarter q =
      larger_of(larger_of(quarter(v, 0), quarter(v, 1)), larger_of(quarter(v, 2), quarter(v, 3)));
  const float a = q[0] > q[1] ? q[0] : q[1];
  const float b = q[2] > q[3] ? q[2] : q[3];
  return a > b ? a : b;
}

// The sum of term(x lanes) over a vector; term must give 0 for the zeros that fill the last part.
template <class Term>
inline float sum(const float* x, std::int64_t n, Term term) {
  Lanes total = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) total = total + term(load(x + i));
  if (i < n) total = total + term(load_part(x + i, n - i));
  return sum_lanes(total);
}

// exp(x) as a factor and the bits that hold the power of two in their lowest places; |x| below 89.
struct Exponential {
  float factor;
  std::uint32_t power;
};

inline Exponential split_exponential(float x) {
  const float shifted = x * 1.44269504f + 12582912.0f;
  const float steps = shifted - 12582912.0f;
  const float r = (x - steps * 0.693359375f) - steps * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return {p, bits_of(shifted) - 0x4b400000u};
}

// Within 1.5 units in the last place of the true exp; 0 below -86.9, infinity above 88.7.
inline float exponential(float x) {
  const Exponential e = split_exponential(x > 88.8f ? 88.8f : x < -86.9f ? -86.9f : x);
  // In two factors: 2^128 has no float of its own.
  const float y = e.factor * float_of((e.power + 126u) << 23) * 2.0f;
  return x < -86.9f ? 0.0f : y;
}

// The same for x <= 0, where less can happen.
inline float falling_exponential(float x) {
  const Exponential e = split_exponential(x < -86.9f ? -86.9f : x);
  const float y = e.factor * float_of((e.power + 127u) << 23);
  return x < -86.9f ? 0.0f : y;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

}  // namespace
}  // namespace forerun::cpu
