// A gated MLP beside the residual, hidden + down(silu(gate x) * up x) with x = rms_norm(hidden): what stands
// between an early exit and the output head.
#pragma once

#include <cstdint>
#include <vector>

#include "forerun/buffer.h"
#include "forerun/linear.h"
#include "forerun/packed_matrix.h"
#include "forerun/thread_pool.h"

namespace forerun::cpu {

// Row-major, as published: norm [hidden], gate and up [inner, hidden], down [hidden, inner].
struct GatedMlpSource {
  std::int64_t hidden = 0;
  std::int64_t inner = 0;
  const float* norm = nullptr;
  const float* gate = nullptr;
  const float* up = nullptr;
  const float* down = nullptr;
  float norm_eps = 1e-6f;
};

// The result for a token depends on that token alone, bit for bit, as linear.h says.
class GatedMlp {
 public:
  // Packs the weights. Throws std::invalid_argument for sizes below 1, std::domain_error for a weight that
  // is not finite, std::bad_alloc.
  GatedMlp(const GatedMlpSource& source, Precision precision, Level limit = best_level());

  std::int64_t hidden() const { return down_.shape().rows; }

  // x and y: [tokens, hidden], which may be the same. Within one Forward of the pool.
  void run(const float* x, std::int64_t tokens, float* y, ThreadPool& pool);

 private:
  Level limit_;
  float norm_eps_;
  std::vector<float> norm_;
  Buffer memory_;
  PackedMatrix gate_up_;
  PackedMatrix down_;
  Activations activations_;
  std::vector<float> normed_;   // [tokens, hidden]
  std::vector<float> gate_up_values_;  // [tokens, 2 inner]
  std::vector<float> inner_;    // [tokens, inner]
};

}  // namespace forerun::cpu
