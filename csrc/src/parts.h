// What a decoder is made of, each for hidden states [tokens, size] of any number of tokens. The
// result for a token depends on that token alone (in attention: on its path too), bit for bit. All
// run within one Forward of the pool and with subnormals as IEEE has them (float_mode.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention.h"
#include "floats.h"
#include "forerun/activation.h"
#include "forerun/linear.h"
#include "forerun/packed_matrix.h"
#include "forerun/thread_pool.h"
#include "rotary.h"
#include "row_mask.h"

namespace forerun::cpu {

// Items for each share of a loop over n items of `values` values.
std::int64_t grain(std::int64_t n, std::int64_t values, const ThreadPool& pool);

// Packs rows [first, first + count) of a matrix from row-major values, on all threads. Throws
// std::domain_error for a value that is not finite or too large.
void pack_rows(PackedMatrix& matrix, std::int64_t first, std::int64_t count, const void* data,
               SourceType type, ThreadPool& pool);

// The same from rows that are quantized already; also std::invalid_argument where they do not fit.
void pack_codes(PackedMatrix& matrix, std::int64_t first, std::int64_t count, const CodedRows& rows,
                ThreadPool& pool);

// Keys and values are kept in fp32 beside fp32 weights, else in bf16.
Precision cache_precision(Precision weights);

// Throws std::invalid_argument unless a cache has the layers and heads expected.
void check_cache(const KvCache::Shape& cache, const KvCache::Shape& expected);

// Activations for each format that a model's matrices have; kept between forwards.
class ActivationSet {
 public:
  explicit ActivationSet(Level limit) : limit_(limit) {}

  Activations& of(const MatrixShape& shape);
  // x [tokens, cols] for such a matrix.
  Activations& pack(const MatrixShape& shape, const float* x, std::int64_t tokens,
                    ThreadPool& pool);

 private:
  Level limit_;
  std::vector<std::unique_ptr<Activations>> made_;
};

struct Norm {
  std::vector<float> weight;
  std::vector<float> bias;  // empty: by the root mean square alone, without a mean
  float eps = 1e-6f;

  std::int64_t size() const { return static_cast<std::int64_t>(weight.size()); }
  void run(const float* x, std::int64_t tokens, float* y, Level limit, ThreadPool& pool) const;
};

struct Linear {
  PackedMatrix matrix;
  std::vector<PackedMatrix> more;  // of the rows after it, in other formats
  std::vector<float> bias;

  template <class Body>
  void for_parts(const Body& body) const {
    body(matrix);
    for (const PackedMatrix& part : more) body(part);
  }
  std::int64_t rows() const;
  std::size_t bytes() const;

  // x [tokens, cols], packed into `activations` on the way; y [tokens, rows], or half the rows with
  // a gate. Of the options the bias is its own.
  void run(const float* x, std::int64_t tokens, float* y, ActivationSet& activations,
           ThreadPool& pool, LinearOptions options = {}) const;
  // The same for tokens that are packed already, of a matrix in one format.
  void run(const Activations& x, float* y, ThreadPool& pool, LinearOptions options = {}) const;
};

// x [tokens, size] or, gated, [tokens, 2 size]: act(x) or act(first half) * second half, in y
// [tokens, size].
void activate(Activation activation, bool gated, const float* x, std::int64_t tokens,
              std::int64_t size, float* y, Level limit, ThreadPool& pool);

// Which experts the tokens of a forward go through, and what they compute in. A route is a token on
// its way through one expert; routes are sorted by expert, then by token.
struct ExpertSpace {
  Floats products;                   // [tokens, experts], of the router
  Floats weights;                    // [tokens, used]
  std::vector<std::int64_t> chosen;  // [tokens, used], rising
  std::vector<std::int64_t> begin;   // by expert, of its routes, and their end
  std::vector<std::int64_t> tokens;  // by route
  std::vector<std::int64_t> routes;  // [tokens, used]
  Floats up;                         // by route
  Floats inner;
  Floats out;
  std::vector<ActivationSet> packed;  // by expert
};

// What the layers of a model compute in; kept between forwards.
struct LayerSpace {
  explicit LayerSpace(Level level) : activations(level), packed_inner(level), limit(level) {}

  Floats normed;  // [tokens, hidden]
  Floats branch;  // [tokens, hidden], of a layer that does not add at once
  Floats qkv;     // [tokens, qkv_rows]
  Floats mixed;   // [tokens, heads * head_dim]
  Floats up;      // [some tokens, up_rows]
  Floats inner;   // [some tokens, intermediate], where it is not packed at once
  ActivationSet activations;
  ActivationSet packed_inner;  // written while `activations` are read
  ExpertSpace experts;
  std::unique_ptr<Attention> attention;
  Level limit;
};

// One forward through layers.
struct LayerRun {
  KvCache& cache;
  const NewTokens& tokens;
  LayerSpace& space;
  ThreadPool& pool;
  float* queries = nullptr;  // of the layer, before their rotation: [tokens, heads * head_dim]
};

struct SelfAttention {
  AttentionShape shape;
  std::int64_t window = 0;              // 0: none
  float norm_eps = 1e-6f;               // of the norms of queries and keys
  const RotaryTable* rotary = nullptr;  // it reaches the furthest position; null: none
  Linear qkv;
  // [head_dim], or of all heads together, or empty
  std::vector<float> q_norm, k_norm;
  std::vector<float> sinks;  // [heads] or empty: scores of a value of zeros that all tokens see
  Linear output;

  std::int64_t qkv_rows() const { return (shape.heads + 2 * shape.kv_heads) * shape.head_dim; }

  // Makes room, for all layers of one shape and cache.
  void prepare(LayerRun& run) const;
  // x [tokens, cols] to y [tokens, hidden], by and into layer `index` of the cache.
  void run(LayerRun& run, std::int64_t index, const float* x, float* y, bool accumulate = false,
           const PackedMatrix* next = nullptr) const;

 private:
  View layer_view(const View& view) const;
  void norm_whole(LayerRun& run) const;
  void attend(LayerRun& run, std::int64_t index) const;
  void prepare_heads(LayerRun& run, std::int64_t index) const;
  void prepare_head(LayerRun& run, std::int64_t index, std::int64_t row, std::int64_t head) const;
};

struct Mlp {
  Activation activation = Activation::silu;
  bool gated = true;
  Linear up;  // gate and up, where gated
  Linear down;

  // What the first product does to its two halves at once; null where it does nothing.
  Gate gate(Level limit) const;
  // y = the output for x, [tokens, hidden] both, or += it.
  void run(LayerRun& run, const float* x, float* y, bool accumulate,
           const PackedMatrix* next) const;

 private:
  const Activations& inner(LayerRun& run, const float* x, std::int64_t tokens) const;
};

// MLPs of which each token goes through a few, by the products of a router. A forward groups its
// tokens by expert, so that each one that is chosen is read once; what a token gets is added up by
// rising expert, whoever else chose it.
struct Experts {
  Linear router;  // [experts, hidden]
  std::vector<Mlp> each;
  std::int64_t used = 1;   // by each token: those of the largest products, of equals the first
  bool norm_topk = false;  // whether the weights of those that are used sum to one
  std::vector<float> up_bias, down_bias;  // [experts, rows of the matrix], or empty

  // y = the output for x, [tokens, hidden] both, or += it.
  void run(LayerRun& run, const float* x, float* y, bool accumulate) const;

 private:
  void choose(const float* products, std::int64_t* experts, float* weights) const;
  void route(LayerRun& run, const float* x) const;
  void multiply(LayerRun& run, Linear Mlp::* part, const float* x, bool of_tokens, float* y,
                Gate gate) const;
  void add_biases(LayerRun& run, const std::vector<float>& biases, std::int64_t rows,
                  float* y) const;
};

// x += residual_scale * norm(attention(norm(x))), then the same with the MLP. A norm without
// weights is none.
struct DecoderLayer {
  Norm input_norm;
  SelfAttention attention;
  Norm post_attention_norm;
  Norm mlp_norm;
  Mlp mlp;
  Experts experts;  // instead of the MLP, where there are any
  Norm post_mlp_norm;
  bool parallel = false;  // the MLP reads what the attention reads
  float residual_scale = 1.0f;

  void run(LayerRun& run, std::int64_t index, float* x, const PackedMatrix* next) const;

 private:
  // Where a branch is added by its last product, that goes to x, else to the room for branches.
  bool adds_at_once(const Norm& after) const { return after.size() == 0 && residual_scale == 1.0f; }
  const float* normed(LayerRun& run, const Norm& norm, const float* x) const;
  void add_branch(LayerRun& run, const Norm& after, float* x) const;
};

}  // namespace forerun::cpu
