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
inline Lanes operator-(const Lanes& a, const Lanes& b) { return {_mm512_sub_ps(a.all, b.all)}; }
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

inline Lanes operator-(const Lanes& a, const Lanes& b) {
  return {
      {a.part[0] - b.part[0], a.part[1] - b.part[1], a.part[2] - b.part[2], a.part[3] - b.part[3]}};
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

// exp(x) = factor * 2^steps; `shifted` holds the steps in its lowest bits. |x| below 89.
template <class T>
struct Exponential {
  T factor;
  T shifted;
  T steps;
};

constexpr float kToWhole = 12582912.0f;  // what it is added to becomes a whole number
constexpr float kLeastExponent = -86.9f;

inline Exponential<float> split_exponential(float x) {
  const float shifted = __builtin_fmaf(x, 1.44269504f, kToWhole);
  const float steps = shifted - kToWhole;
  const float r = __builtin_fmaf(steps, 2.12194440e-4f, __builtin_fmaf(steps, -0.693359375f, x));
  float p = 1.9875691500e-4f;
  p = __builtin_fmaf(p, r, 1.3981999507e-3f);
  p = __builtin_fmaf(p, r, 8.3334519073e-3f);
  p = __builtin_fmaf(p, r, 4.1665795894e-2f);
  p = __builtin_fmaf(p, r, 1.6666665459e-1f);
  p = __builtin_fmaf(p, r, 5.0000001201e-1f);
  return {__builtin_fmaf(p, r * r, r) + 1.0f, shifted, steps};
}

// 2^(steps + more)
inline float power_of_two(const Exponential<float>& e, int more) {
  return float_of((bits_of(e.shifted) - bits_of(kToWhole) + 127u + static_cast<std::uint32_t>(more))
                  << 23);
}

// Within 1.5 units in the last place of the true exp; 0 below -86.9, infinity above 88.7.
inline float exponential(float x) {
  const float near = x > 88.8f ? 88.8f : x < kLeastExponent ? kLeastExponent : x;
  const Exponential<float> e = split_exponential(near);
  // In two factors: 2^128 has no float of its own.
  const float y = e.factor * power_of_two(e, -1) * 2.0f;
  return x < kLeastExponent ? 0.0f : y;
}

// exp(x) for x <= 0 as 2^(x log2 e), in fewer operations, of a number or of many; `fma` and `all`,
// which repeats a number, are theirs.
template <class T, class Fma, class All>
inline Exponential<T> split_falling(T x, Fma fma, All all) {
  const T shifted = fma(x, all(1.44269504f), all(kToWhole));
  const T steps = shifted - all(kToWhole);
  const T r = fma(x, all(1.92596299e-8f), fma(x, all(1.44269504f), -steps));
  T p = all(1.32647203e-3f);
  p = fma(p, r, all(9.67151299e-3f));
  p = fma(p, r, all(5.55073358e-2f));
  p = fma(p, r, all(2.40222424e-1f));
  p = fma(p, r, all(6.93147004e-1f));
  return {fma(p, r, all(1.0f)), shifted, steps};
}

// Within 2 units in the last place for x <= 0; 0 below -86.9.
inline float falling_exponential(float x) {
  const Exponential<float> e = split_falling(
      x < kLeastExponent ? kLeastExponent : x,
      [](float a, float b, float c) { return __builtin_fmaf(a, b, c); }, [](float a) { return a; });
  const float y = e.factor * power_of_two(e, 0);
  return x < kLeastExponent ? 0.0f : y;
}

// The same in all lanes.
inline Lanes falling_exponential(const Lanes& x) {
#if defined(__AVX512F__)
  const auto e = split_falling(
      x.all, [](__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); },
      [](float a) { return _mm512_set1_ps(a); });
  const __m512 least = _mm512_set1_ps(kLeastExponent);
  const __mmask16 counts = _mm512_cmp_ps_mask(x.all, least, _CMP_NLT_UQ);
  return {_mm512_maskz_scalef_ps(counts, e.factor, e.steps)};
#else
  float lanes[kLanes];
  std::memcpy(lanes, &x, sizeof lanes);
  for (float& lane : lanes) lane = falling_exponential(lane);
  return load(lanes);
#endif
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

}  // namespace
}  // namespace forerun::cpu
