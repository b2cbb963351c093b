// The vector code, compiled once for each level with that level's flags; FORERUN_VECTOR_SET names
// the function that returns it. Loops are plain: what makes the levels agree is that none of them
// may be reordered.
#include "../coded_panel.h"
#include "pack_token.h"
#include "row_impl.h"
#include "slot.h"

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

inline float gelu(float v) {
  // (1 + tanh(u)) / 2 = sigmoid(2 u)
  return v * sigmoid(1.59576912f * (v + 0.044715f * (v * v * v)));
}

void gelu_tanh(const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = gelu(x[i]);
}

void gelu_tanh_mul(const float* gate, const float* up, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = gelu(gate[i]) * up[i];
}

void gelu_erf(const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i)
    y[i] = 0.5f * x[i] * (1.0f + __builtin_erff(x[i] * 0.707106781f));
}

void clamped_swiglu(const float* gate, const float* up, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = gate[i] > 7.0f ? 7.0f : gate[i];
    const float below = up[i] > 7.0f ? 7.0f : up[i];
    const float u = below < -7.0f ? -7.0f : below;
    y[i] = g * sigmoid(1.702f * g) * (u + 1.0f);
  }
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

void rotate_pairs(float* __restrict x, const float* cosine, const float* sine, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * cosine[i] - b * sine[i];
    x[2 * i + 1] = b * cosine[i] + a * sine[i];
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

void soft_cap(const float* x, float cap, std::int64_t n, float* y) {
  // tanh(u) = 2 sigmoid(2 u) - 1
  for (std::int64_t i = 0; i < n; ++i) y[i] = cap * (2.0f * sigmoid(2.0f * (x[i] / cap)) - 1.0f);
}

void blend(const float* x, float a, float b, std::int64_t n, float* __restrict y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = a * y[i] + b * x[i];
}

void weights_to_bf16(const float* x, std::int64_t n, std::uint16_t* __restrict y) {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t u = bits_of(x[i]);
    y[i] = static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
}

float softmax_piece(float* x, std::int64_t n, float* top, float* lanes) {
  const float before = *top;
  Lanes best = in_all(before);
  for (std::int64_t i = 0; i < n; i += kLanes) best = larger(load(x + i), best);
  const float now = largest_lane(best);
  // Where nothing is seen, or NaN alone, exponentials are of -inf and NaN whatever is subtracted.
  const float shift = now == -__builtin_inff() ? 0.0f : now;
  float factor = 1.0f;
  Lanes total = load(lanes);
  if (now > before) {
    factor = falling_exponential(before - shift);
    total = total * in_all(factor);
    *top = now;
  }
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const Lanes weights = falling_exponential(load(x + i) - in_all(shift));
    std::memcpy(x + i, &weights, sizeof weights);
    total = total + weights;
  }
  std::memcpy(lanes, &total, sizeof total);
  return factor;
}

constexpr float kMostOfDigits = 127.0f * 128.0f + 63.0f;

#if defined(__AVX512BW__)
Digits split_digits(const float* x, ColumnDigits* to) {
  const GroupScale s = scale_for(largest_magnitude<kDigitsOfColumn>(x), kMostOfDigits);
  __m512i whole[4];
  for (int i = 0; i < 4; ++i) {
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x + i * kLanes), _mm512_set1_ps(s.factor));
    whole[i] = _mm512_cvtps_epi32(scaled);
  }
  __m512i high[2];
  __m512i low[2];
  __m512i sums = _mm512_setzero_si512();
  for (int i = 0; i < 2; ++i) {
    // As words, a quarter of four numbers from each in turn.
    const __m512i words = _mm512_packs_epi32(whole[2 * i], whole[2 * i + 1]);
    high[i] = _mm512_srai_epi16(_mm512_add_epi16(words, _mm512_set1_epi16(64)), 7);
    low[i] = _mm512_sub_epi16(words, _mm512_slli_epi16(high[i], 7));
    sums = _mm512_add_epi32(sums, _mm512_madd_epi16(words, _mm512_set1_epi16(1)));
  }
  _mm512_storeu_si512(to->high, in_order(high[0], high[1]));
  _mm512_storeu_si512(to->low, in_order(low[0], low[1]));
  return {s.scale, _mm512_reduce_add_epi32(sums)};
}
#else
Digits split_digits(const float* x, ColumnDigits* to) {
  const GroupScale s = scale_for(largest_magnitude<kDigitsOfColumn>(x), kMostOfDigits);
  const bool finite = s.scale == s.scale;
  std::int32_t sum = 0;
  for (int i = 0; i < kDigitsOfColumn; ++i) {
    const std::int32_t whole = finite ? round_to_int(x[i] * s.factor) : 0;
    const std::int32_t upper = (whole + 64) >> 7;
    to->high[i] = static_cast<std::int8_t>(upper);
    to->low[i] = static_cast<std::int8_t>(whole - upper * 128);
    sum += whole;
  }
  return {s.scale, sum};
}
#endif

Digits split_weights(const float* weights, const std::uint16_t* scales, ColumnDigits* to) {
  float scaled[kDigitsOfColumn];
  for (int i = 0; i < kDigitsOfColumn; ++i) scaled[i] = weights[i] * bf16_to_float(scales[i]);
  return split_digits(scaled, to);
}

}  // namespace

const VectorSet& FORERUN_VECTOR_SET() {
  static const VectorSet set = {
      {rms_norm,      layer_norm,     silu_mul,     silu,   gelu_tanh,       gelu_erf,
       gelu_tanh_mul, clamped_swiglu, relu,         rotate, rotate_pairs,    multiply,
       add,           scale,          soft_cap,     blend,  weights_to_bf16, softmax_piece,
       turn,          split_digits,   split_weights},
      {pack_token_fp32, pack_token_bf16, pack_token_grouped<4, 128>, pack_token_grouped<8, 8>,
       pack_token_grouped<4, 0>, pack_token_grouped<8, 0>, pack_token_grouped<8, 0>,
       pack_token_grouped<8, 0>, pack_token_grouped<4, 32>, pack_token_grouped<4, 16>,
       pack_token_grouped<4, 128>, pack_token_grouped<4, 128>},
      row_ops_of<float>(),
      row_ops_of<double>(),
      write_bf16,
      write_codes,
      fractions};
  return set;
}

}  // namespace forerun::cpu
