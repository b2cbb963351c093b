// A decoder-only transformer, described by data: its shape says what each family does otherwise.
//
// The result for a token depends on its path of tokens alone, bit for bit: not on how many tokens,
// which tree, which row of a batch, which chunk of a prompt or how many threads it is computed
// with.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forerun/activation.h"
#include "forerun/batch_rows.h"
#include "forerun/buffer.h"
#include "forerun/kv_cache.h"
#include "forerun/linear.h"
#include "forerun/packed_matrix.h"
#include "forerun/thread_pool.h"

namespace forerun::cpu {

// A rotary embedding, of some layers.
struct RopeShape {
  std::vector<float> inverse_frequencies;  // of half as many values of each head as it turns
  float scale = 1.0f;                      // on cosines and sines
};

// In what a layer differs from others.
struct LayerShape {
  std::int64_t window = 0;  // 0: none
  std::int64_t rope = -1;   // which of the rotary embeddings; -1: none
};

enum class HeadNorm { none, head, whole };

// Rows of a matrix in one precision.
struct RowsFormat {
  std::int64_t rows;
  Precision precision;
};

struct DecoderShape {
  Precision precision = Precision::bf16;
  Precision head_precision = Precision::bf16;  // of the output head and, where tied, the embedding
  // Of weights that differ, by name: of all their rows, from the first on.
  std::map<std::string, std::vector<RowsFormat>> precisions;
  int group = 0;  // columns that share a scale, for integer formats; 0: default
  std::int64_t vocab = 1;
  std::int64_t hidden = 1;
  std::int64_t intermediate = 1;  // of an MLP, or of one expert
  std::int64_t layers = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 1;
  std::int64_t max_context = 1;
  float norm_eps = 1e-6f;
  Activation activation = Activation::silu;
  std::int64_t experts = 0;                  // in place of each MLP; 0: none
  std::int64_t experts_used = 0;             // by a token
  bool norm_topk = false;                    // whether the weights of those sum to one
  bool gated = true;                         // down(act(gate x) * up x), else down(act(up x))
  bool layer_norm = false;                   // with mean and bias, else the root mean square alone
  bool norm_before = true;                   // of attention and MLP, of what they read
  bool norm_after = false;                   // of what they add
  bool parallel = false;                     // the MLP reads what the attention reads
  HeadNorm query_key_norm = HeadNorm::none;  // of each head, or of all together
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;           // of experts: of their router too
  bool sinks = false;              // scores by head of a value of zeros that all tokens see
  bool tied = false;               // the head is the embedding
  bool learned_positions = false;  // added to the embedding
  std::vector<LayerShape> each;    // by layer
  std::vector<RopeShape> ropes;
  bool rope_pairs = false;       // values that turn together lie side by side, else in two halves
  float attention_scale = 0.0f;  // 0: 1 / sqrt(head_dim)
  float score_cap = 0.0f;        // of attention scores, by tanh; 0: none
  float logit_cap = 0.0f;
  float embedding_scale = 1.0f;
  float residual_scale = 1.0f;  // of what attention and MLP add
  float logit_scale = 1.0f;     // before the cap

  std::int64_t qkv_rows() const { return (heads + 2 * kv_heads) * head_dim; }
  std::int64_t up_rows() const { return (gated ? 2 : 1) * intermediate; }
};

enum class LogitsFor { all, last, none };

// One forward over a batch of rows, each with its own number of new tokens.
struct ForwardCall : BatchRows {
  const std::int64_t* token_ids = nullptr;  // [rows, width]
  const float* hidden_in = nullptr;         // [rows, width, hidden] or null
  // By layer [rows, width, hidden]; from token to token are so many floats, 0: hidden.
  std::vector<std::pair<std::int64_t, float*>> hidden_out;
  std::int64_t hidden_stride = 0;
  LogitsFor logits_for = LogitsFor::all;
  float* logits = nullptr;  // [rows, width or 1, vocab]; padding is left as it is
  // Queries before their rotation, or null: [layers to run, tokens, heads * head_dim], padding left
  // out.
  float* queries = nullptr;
};

struct DecoderWeights;
struct NewTokens;
struct Workspace;

class Decoder {
 public:
  // Throws std::invalid_argument for an invalid shape, std::bad_alloc.
  Decoder(const DecoderShape& shape, Level limit = best_level());
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const DecoderShape& shape() const;
  std::size_t weight_bytes() const;
  // Of the matrices of all layers that a token reads, and of the output head.
  std::size_t layer_bytes() const;
  std::size_t head_bytes() const;

  // Fills rows [first, first + count) of a weight from row-major values; a vector has one row.
  // Names are those of layouts.py. Throws std::invalid_argument for a name or size that does not
  // fit, std::domain_error for a value that is not finite.
  void load(const std::string& name, std::int64_t first, std::int64_t count, std::int64_t cols,
            const void* data, SourceType type, ThreadPool& pool);

  // The same for a matrix from rows that are quantized already; also std::invalid_argument for a
  // matrix of another format.
  void load_codes(const std::string& name, std::int64_t first, std::int64_t count,
                  std::int64_t cols, const CodedRows& rows, ThreadPool& pool);

  // Of fp32 beside fp32 weights, else of bf16; a forward takes a cache of any precision.
  KvCache::Shape cache_shape(std::int64_t rows, std::int64_t capacity) const;

  // Within one Forward of the pool. Throws CacheError for a full row, layers of different lengths
  // or a position beyond the context; std::invalid_argument for ids outside the vocabulary and
  // calls that contradict themselves.
  void forward(const ForwardCall& call, ThreadPool& pool);

  // The embeddings [tokens, hidden] of token ids, scaled, without those of positions. Throws
  // std::invalid_argument for ids that are not tokens.
  void embed(const std::int64_t* token_ids, std::int64_t tokens, float* out) const;

  // What a forward does with hidden states [tokens, hidden] as `hidden_out` hands them out, bit for
  // bit: the final norm, then the output head, to logits [tokens, vocab]. Within one Forward of the
  // pool.
  void final_norm(const float* hidden, std::int64_t tokens, float* out, ThreadPool& pool);
  void lm_head(const float* normed, std::int64_t tokens, float* logits, ThreadPool& pool);

  // The head's matrix, and what it does with normed hidden states [tokens, hidden] on other rows
  // like its own, to logits [tokens, rows].
  const PackedMatrix& head() const;
  void run_head(const PackedMatrix& rows, const float* normed, std::int64_t tokens, float* logits,
                ThreadPool& pool);

 private:
  void check(const ForwardCall& call) const;
  void check_token(std::int64_t token) const;
  void read_embedding(std::int64_t token, float* x) const;
  void scale_logits(float* logits, std::int64_t count, ThreadPool& pool) const;
  void enter(const ForwardCall& call, const NewTokens& tokens, ThreadPool& pool);
  void run_layers(const ForwardCall& call, const NewTokens& tokens, ThreadPool& pool);
  void make_logits(const ForwardCall& call, const NewTokens& tokens, ThreadPool& pool);

  Level limit_;
  std::unique_ptr<DecoderWeights> weights_;
  std::unique_ptr<Workspace> workspace_;
};

}  // namespace forerun::cpu
