// Parts of a model that own their weights, to compose heads and adapters of. A Decoder is made of
// the same parts.
//
// The result for a token depends on that token alone (in attention: on its path too), bit for bit.
// run() is called within one Forward of the pool. Constructors throw std::invalid_argument for
// sizes that do not fit, std::domain_error for a weight that is not finite or too large,
// std::bad_alloc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "forerun/activation.h"
#include "forerun/batch_rows.h"
#include "forerun/cpu_level.h"
#include "forerun/kv_cache.h"
#include "forerun/packed_matrix.h"
#include "forerun/thread_pool.h"

namespace forerun::cpu {

// How the matrices of a module are packed.
struct Packing {
  Precision precision = Precision::fp32;
  int group = 0;  // columns that share a scale, for int8 and int4; 0: default
  Level limit = best_level();
};

// A matrix [rows, cols], row-major, and perhaps a bias [rows].
struct LinearSource {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const float* weights = nullptr;
  const float* bias = nullptr;
};

// A matrix and, where it has weights, the norm before it.
class LinearModule {
 public:
  LinearModule(const LinearSource& source, const Packing& packing, ThreadPool& pool,
               std::vector<float> norm = {}, float eps = 0.0f);
  ~LinearModule();

  std::int64_t rows() const;
  std::int64_t cols() const;
  std::size_t weight_bytes() const;

  // y [tokens, rows] of x [tokens, cols].
  void run(const float* x, std::int64_t tokens, float* y, ThreadPool& pool);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Root mean square or, with a bias, layer norm.
class NormModule {
 public:
  NormModule(std::vector<float> weight, std::vector<float> bias, float eps, Level limit);
  ~NormModule();

  std::int64_t size() const;

  // x and y [tokens, size], which may be the same.
  void run(const float* x, std::int64_t tokens, float* y, ThreadPool& pool) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// What a decoder layer does besides its attention: it adds to the last input, norms, and adds the
// output of a gated MLP.
struct MlpSource {
  std::vector<float> norm;
  Activation activation = Activation::silu;
  LinearSource up;  // rows of the gate, then as many others
  LinearSource down;
};

struct LayerSource {
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 1;
  std::int64_t window = 0;  // 0: none
  float norm_eps = 1e-6f;   // of all norms
  LinearSource qkv;         // rows of all query heads, then keys, then values
  LinearSource output;
  std::vector<float> q_norm, k_norm;       // [head_dim], or empty for none
  std::vector<float> inverse_frequencies;  // [head_dim / 2] of the rotary embedding; empty: none
  float rotary_scale = 1.0f;               // on cosines and sines
  std::vector<std::vector<float>> input_norms;  // one for each input, each empty for none
  bool normed_residual = false;                 // what is added to is the last input, normed
  std::optional<MlpSource> mlp;                 // none: attention alone, added to nothing
};

// Some of what a layer reads of each token, [rows, width, size].
struct LayerInput {
  const float* values = nullptr;
  std::int64_t size = 0;
};

// Self-attention with a cache of one layer; with an MLP, a whole decoder layer. It reads its inputs
// side by side, each normed.
class LayerModule {
 public:
  LayerModule(LayerSource source, const Packing& packing, ThreadPool& pool);
  ~LayerModule();

  std::int64_t cols() const;    // of all inputs
  std::int64_t hidden() const;  // of what goes out
  std::size_t weight_bytes() const;
  KvCache::Shape cache_shape(std::int64_t rows, std::int64_t capacity) const;

  // y [rows, width, hidden]; y of padding is left as it is. Throws what Decoder::forward throws for
  // the batch, std::invalid_argument for inputs that do not fit.
  void run(const BatchRows& batch, const std::vector<LayerInput>& inputs, float* y,
           ThreadPool& pool);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// act(x) of x [tokens, size] or, gated, act(first half) * second half of x [tokens, 2 size], in y
// [tokens, size].
void run_activation(Activation activation, bool gated, const float* x, std::int64_t tokens,
                    std::int64_t size, float* y, Level limit, ThreadPool& pool);

}  // namespace forerun::cpu
