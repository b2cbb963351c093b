// A decoder-only transformer: Llama, Mistral, Qwen2, Qwen3 and GPT-2.
//
// The result for a token depends on its path of tokens alone, bit for bit: not on how many tokens, which
// tree, which row of a batch, which chunk of a prompt or how many threads it is computed with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forerun/buffer.h"
#include "forerun/kv_cache.h"
#include "forerun/linear.h"
#include "forerun/packed_matrix.h"
#include "forerun/thread_pool.h"

namespace forerun::cpu {

enum class Activation { silu, gelu_tanh, gelu_erf, relu };

struct DecoderShape {
  Precision precision = Precision::bf16;
  Precision head_precision = Precision::bf16;  // of the output head and, where tied, the embedding
  int group = 0;                               // columns that share a scale, for int8 and int4; 0: default
  std::int64_t vocab = 1;
  std::int64_t hidden = 1;
  std::int64_t intermediate = 1;
  std::int64_t layers = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 1;
  std::int64_t max_context = 1;
  float norm_eps = 1e-6f;
  Activation activation = Activation::silu;
  bool gated = true;               // down(act(gate x) * up x), else down(act(up x))
  bool layer_norm = false;         // with mean and bias, else the root mean square alone
  bool query_key_norm = false;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  bool tied = false;               // the head is the embedding
  std::vector<std::int64_t> windows;        // by layer, 0: none
  std::vector<float> inverse_frequencies;   // [head_dim / 2] of the rotary embedding; empty: learned positions
  float rotary_scale = 1.0f;                // on cosines and sines

  std::int64_t qkv_rows() const { return (heads + 2 * kv_heads) * head_dim; }
  std::int64_t up_rows() const { return (gated ? 2 : 1) * intermediate; }
};

enum class LogitsFor { all, last, none };

// One forward over a batch of rows, each with its own number of new tokens.
struct ForwardCall {
  KvCache* cache = nullptr;
  std::vector<std::int64_t> rows;           // of the cache, one for each row of the batch
  std::int64_t width = 0;                   // tokens of a row, padding included
  const std::int64_t* token_ids = nullptr;  // [rows, width]
  const std::int64_t* positions = nullptr;  // [rows, width]; -1 marks padding at the end of a row
  const std::uint8_t* tree_mask = nullptr;  // [rows, width, mask_columns] or null, as sight.h says
  std::int64_t mask_columns = 0;
  std::int64_t first_layer = 0;
  std::int64_t end_layer = 0;
  const float* hidden_in = nullptr;         // [rows, width, hidden] or null
  std::vector<std::pair<std::int64_t, float*>> hidden_out;  // layer, [rows, width, hidden]
  LogitsFor logits_for = LogitsFor::all;
  float* logits = nullptr;                  // [rows, width or 1, vocab]; padding is left as it is
};

struct DecoderWeights;
struct Workspace;
struct ForwardRun;

class Decoder {
 public:
  // Throws std::invalid_argument for a shape that fits no model, std::bad_alloc.
  Decoder(const DecoderShape& shape, Level limit = best_level());
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const DecoderShape& shape() const;
  std::size_t weight_bytes() const;

  // Fills rows [first, first + count) of a weight from row-major values; a vector has one row. Names are
  // those of layouts.py. Throws std::invalid_argument for a name or size that does not fit,
  // std::domain_error for a value that is not finite.
  void load(const std::string& name, std::int64_t first, std::int64_t count, std::int64_t cols,
            const void* data, SourceType type, ThreadPool& pool);

  KvCache::Shape cache_shape(std::int64_t rows, std::int64_t capacity) const;

  // Within one Forward of the pool. Throws CacheError for a full row, layers of different lengths or a
  // position beyond the context; std::invalid_argument for ids that are no tokens and other nonsense.
  void forward(const ForwardCall& call, ThreadPool& pool);

  // The final norm and the output head on hidden states [tokens, hidden] as `hidden_out` hands them out:
  // logits [tokens, vocab], those of a forward bit for bit. Within one Forward of the pool.
  void head(const float* hidden, std::int64_t tokens, float* logits, ThreadPool& pool);

 private:
  void check(const ForwardCall& call) const;
  void embed(ForwardRun& run);
  void layer(ForwardRun& run, std::int64_t index);
  void attend(ForwardRun& run, std::int64_t index);
  void prepare_heads(ForwardRun& run, std::int64_t index, std::int64_t sight, std::int64_t head);
  void mlp(ForwardRun& run, std::int64_t index);
  void make_logits(ForwardRun& run);
  void norm(ThreadPool& pool, const float* x, const std::vector<float>& weight, const std::vector<float>& bias,
            std::int64_t tokens, float* y);

  Level limit_;
  std::unique_ptr<DecoderWeights> weights_;
  std::unique_ptr<Workspace> workspace_;
};

}  // namespace forerun::cpu
