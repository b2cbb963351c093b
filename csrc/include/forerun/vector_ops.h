// What a decoder does to one token's vector between the matrix products.
//
// Each function takes one vector. Sums run in 16 lanes that are added in a fixed order, and nothing
// is contracted: every level returns the same bits, whatever else the call computes.
#pragma once

#include <cstdint>

#include "forerun/cpu_level.h"

namespace forerun::cpu {

struct ColumnDigits;

// x = scale * (128 * high + low) nearly: the largest magnitude becomes 127 * 128 + 63.
struct Digits {
  float scale;       // 0 where all are next to nothing, NaN where one is not a number
  std::int32_t sum;  // of 128 * high + low
};

struct VectorOps {
  // y = x / sqrt(mean(x^2) + eps) * weight
  void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t n, float* y);
  // y = (x - mean) / sqrt(variance + eps) * weight + bias
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps,
                     std::int64_t n, float* y);
  // y = gate * sigmoid(gate) * up
  void (*silu_mul)(const float* gate, const float* up, std::int64_t n, float* y);
  // y = x * sigmoid(x)
  void (*silu)(const float* x, std::int64_t n, float* y);
  // y = gelu(x), the tanh form
  void (*gelu_tanh)(const float* x, std::int64_t n, float* y);
  // y = gelu(x) by the error function
  void (*gelu_erf)(const float* x, std::int64_t n, float* y);
  // y = gelu(gate) * up, the tanh form
  void (*gelu_tanh_mul)(const float* gate, const float* up, std::int64_t n, float* y);
  // y = g sigmoid(1.702 g) (u + 1), g being at most 7 and u in [-7, 7]
  void (*clamped_swiglu)(const float* gate, const float* up, std::int64_t n, float* y);
  // y = max(x, 0)
  void (*relu)(const float* x, std::int64_t n, float* y);
  // One head in place: halves a, b become a cos - b sin, b cos + a sin.
  void (*rotate)(float* x, const float* cosine, const float* sine, std::int64_t half);
  // The same of pairs that lie side by side.
  void (*rotate_pairs)(float* x, const float* cosine, const float* sine, std::int64_t half);
  // y *= x
  void (*multiply)(const float* x, std::int64_t n, float* y);
  // y += x
  void (*add)(const float* x, std::int64_t n, float* y);
  // y = factor * x
  void (*scale)(const float* x, float factor, std::int64_t n, float* y);
  // y = cap * tanh(x / cap)
  void (*soft_cap)(const float* x, float cap, std::int64_t n, float* y);
  // y = a y + b x
  void (*blend)(const float* x, float a, float b, std::int64_t n, float* y);
  // y = x rounded to bf16, x being in [0, 1] and not subnormal; of NaN, anything.
  void (*weights_to_bf16)(const float* x, std::int64_t n, std::uint16_t* y);
  // Softmax of scores that come in pieces, n of them, a multiple of 16: x = exp(x - top), `top`
  // being the largest score so far, -inf at first. The sums of exponentials so far, in 16 lanes,
  // are scaled by what is returned, the factor for what else was summed up before, and x is added.
  // -inf stands for a masked score and becomes exactly 0; a NaN becomes any NaN.
  float (*softmax_piece)(float* x, std::int64_t n, float* top, float* lanes);
  // Turns a group of 16, 32 or 64 numbers by a Hadamard matrix, in place: outliers of a few spread
  // over all (QuaRot, arXiv 2404.00456). It makes products of two vectors `count` times larger, and
  // twice it gives back `count` times what was there.
  void (*turn)(float* x, std::int64_t count);
  // Two digits for each of 64 numbers; anything where one is not a number.
  Digits (*split_digits)(const float* x, ColumnDigits* to);
  // Of the weights of a tile's 64 slots times the scales (bf16) that the slots' values have.
  Digits (*split_weights)(const float* weights, const std::uint16_t* scales, ColumnDigits* to);
};

const VectorOps& vector_ops(Level limit = best_level());

}  // namespace forerun::cpu
