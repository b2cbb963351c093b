// The vector code, compiled once for each level with that level's flags; FORERUN_VECTOR_SET names
// the function that returns it. Loops are plain: what makes the levels agree is that none of them
// may be reordered.
#include "pack_token.h"
#include "row_impl.h"

namespace forerun::cpu {
namespace {

inline float root(float x) { return __builtin_sqrtf(x); }

void rms_norm(const float* x, const float* weight, float eps, std::int64_t n, float* y) {
  const float squares = sum(x, n, [](const Lanes& v) { return v * v; });
  const float factor = 1.0f / root(squares / static_cast<float>(n) + eps);
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * factor * weight[i];
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, std::int64_t n,
                float* y) {
  const float mean = sum(x, n, [](const Lanes& v) { return v; }) / static_cast<float>(n);
  // Subtracted first: y holds what the second sum reads, and its filling zeros count for nothing.
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] - mean;
  const float variance = sum(y, n, [](const Lanes& v) { return v * v; }) / static_cast<float>(n);
  const float factor = 1.0f / root(variance + eps);
  for (std::int64_t i = 0; i < n; ++i) y[i] = y[i] * factor * weight[i] + bias[i];
}

void silu_mul(const float* gate, const float* up, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

void silu(const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * sigmoid(x[i]);
}

void gelu_tanh(const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float v = x[i];
    // (1 + tanh(u)) / 2 = sigmoid(2 u)
    y[i] = v * sigmoid(1.59576912f * (v + 0.044715f * (v * v * v)));
  }
}

void gelu_erf(const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i)
    y[i] = 0.5f * x[i] * (1.0f + __builtin_erff(x[i] * 0.707106781f));
}

void relu(const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] > 0.0f ? x[i] : 0.0f;
}

void rotate(float* __restrict x, const float* cosine, const float* sine, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    x[i] = a * cosine[i] - b * sine[i];
    x[i + half] = b * cosine[i] + a * sine[i];
  }
}

void multiply(const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] *= x[i];
}

void add(const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] += x[i];
}

void scale(const float* x, float factor, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = factor * x[i];
}

float max(const float* x, std::int64_t n) {
  float best[kLanes];
  for (float& b : best) b = -__builtin_inff();
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) best[l] = x[i + l] > best[l] ? x[i + l] : best[l];
  }
  for (int l = 0; i + l < n; ++l) best[l] = x[i + l] > best[l] ? x[i + l] : best[l];
  for (int l = 1; l < kLanes; ++l) best[0] = best[l] > best[0] ? best[l] : best[0];
  return best[0];
}

float exp_sum(float* x, float shift, std::int64_t n) {
  Lanes total = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) x[i + l] = falling_exponential(x[i + l] - shift);
    total = total + load(x + i);
  }
  if (i == n) return sum_lanes(total);
  for (std::int64_t l = i; l < n; ++l) x[l] = falling_exponential(x[l] - shift);
  return sum_lanes(total + load_part(x + i, n - i));
}

}  // namespace

const VectorSet& FORERUN_VECTOR_SET() {
  static const VectorSet set = {
      {rms_norm, layer_norm, silu_mul, silu, gelu_tanh, gelu_erf, relu, rotate, multiply, add,
       scale, max, exp_sum},
      {pack_token_fp32, pack_token_bf16, pack_token_grouped<4, 128>, pack_token_grouped<8, 8>,
       pack_token_grouped<4, 0>, pack_token_grouped<8, 0>},
      row_ops_of<float>(),
      row_ops_of<double>(),
      fractions};
  return set;
}

}  // namespace forerun::cpu
