#include "forerun/decoder.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "decoder_weights.h"
#include "float_mode.h"
#include "forerun/errors.h"
#include "forerun/vector_ops.h"
#include "parts.h"

namespace forerun::cpu {
namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

}  // namespace

// What a forward computes in; kept between forwards.
struct Workspace {
  explicit Workspace(Level limit) : layers(limit) {}

  Floats x;       // [tokens, hidden], the residual stream
  Floats logits;  // [tokens, vocab], where they cannot go straight to the caller
  LayerSpace layers;
};

Decoder::Decoder(const DecoderShape& shape, Level limit)
    : limit_(limit),
      weights_(std::make_unique<DecoderWeights>(shape)),
      workspace_(std::make_unique<Workspace>(limit)) {}

Decoder::~Decoder() = default;

const DecoderShape& Decoder::shape() const { return weights_->shape; }

std::size_t Decoder::weight_bytes() const {
  return weights_->memory.size() + weights_->embedding.memory.size() +
         weights_->positions.memory.size();
}

std::size_t Decoder::layer_bytes() const {
  std::size_t bytes = 0;
  for (const DecoderLayer& layer : weights_->layers) {
    for (const Linear* part : {&layer.attention.qkv, &layer.attention.output, &layer.mlp.up,
                               &layer.mlp.down, &layer.experts.router})
      bytes += part->bytes();
    std::size_t experts = 0;
    for (const Mlp& expert : layer.experts.each) experts += expert.up.bytes() + expert.down.bytes();
    if (experts > 0) bytes += experts * size(shape().experts_used) / layer.experts.each.size();
  }
  return bytes;
}

std::size_t Decoder::head_bytes() const { return weights_->head.matrix.shape().bytes(); }

KvCache::Shape Decoder::cache_shape(std::int64_t rows, std::int64_t capacity) const {
  const DecoderShape& s = shape();
  return {cache_precision(s.precision), s.layers, rows, s.kv_heads, s.head_dim, capacity};
}

void Decoder::check_token(std::int64_t token) const {
  if (token < 0 || token >= shape().vocab) {
    throw std::invalid_argument(std::to_string(token) + " is not a token id; they end at " +
                                std::to_string(shape().vocab - 1));
  }
}

void Decoder::check(const ForwardCall& call) const {
  const DecoderShape& s = shape();
  check_cache(call.cache->shape(), cache_shape(1, 1));
  if (call.first_layer > 0 && call.hidden_in == nullptr) {
    throw std::invalid_argument("layers above the first need hidden_in");
  }
  const auto total = static_cast<std::int64_t>(call.rows.size()) * call.width;
  for (std::int64_t i = 0; i < total; ++i) {
    if (call.positions[i] >= s.max_context) {
      throw CacheError("position " + std::to_string(call.positions[i]) +
                       " lies beyond the context of " + std::to_string(s.max_context) +
                       " tokens; end the text or draft less far.");
    }
    if (call.positions[i] >= 0 && call.hidden_in == nullptr) check_token(call.token_ids[i]);
  }
}

void Decoder::forward(const ForwardCall& call, ThreadPool& pool) {
  check(call);
  const FloatMode mode(FloatMode::Subnormals::ieee);
  const NewTokens tokens = take_slots(call);
  if (tokens.count() == 0) return;
  enter(call, tokens, pool);
  run_layers(call, tokens, pool);
  const bool ended = call.end_layer == shape().layers;
  if (ended && call.logits_for != LogitsFor::none) make_logits(call, tokens, pool);
}

void Decoder::read_embedding(std::int64_t token, float* x) const {
  if (shape().tied) weights_->head.matrix.unpack_row(token, x);
  else if (weights_->embedding.rows > 0) weights_->embedding.read(token, x);
  else weights_->packed_embedding.matrix.unpack_row(token, x);
  const float scale = shape().embedding_scale;
  if (scale != 1.0f) vector_ops(limit_).scale(x, scale, shape().hidden, x);
}

void Decoder::embed(const std::int64_t* token_ids, std::int64_t tokens, float* out) const {
  for (std::int64_t i = 0; i < tokens; ++i) check_token(token_ids[i]);
  for (std::int64_t i = 0; i < tokens; ++i) read_embedding(token_ids[i], out + i * shape().hidden);
}

// The residual stream as the first layer to run finds it.
void Decoder::enter(const ForwardCall& call, const NewTokens& tokens, ThreadPool& pool) {
  const std::int64_t hidden = shape().hidden;
  const DecoderWeights& w = *weights_;
  Workspace& space = *workspace_;
  space.x.reserve(tokens.count() * hidden);
  space.layers.normed.reserve(tokens.count() * hidden);
  pool.for_ranges(tokens.count(), grain(tokens.count(), hidden, pool), [&](const Range& r) {
    for (std::int64_t i = r.begin; i < r.end; ++i) {
      const std::int64_t index = tokens.indices[size(i)];
      float* x = space.x.data() + i * hidden;
      if (call.hidden_in != nullptr) {
        std::memcpy(x, call.hidden_in + index * hidden, size(hidden) * 4);
        continue;
      }
      read_embedding(call.token_ids[index], x);
      if (!shape().learned_positions) continue;
      float* learned = space.layers.normed.data() + i * hidden;
      w.positions.read(call.positions[index], learned);
      vector_ops(limit_).add(learned, hidden, x);
    }
  });
}

void Decoder::run_layers(const ForwardCall& call, const NewTokens& tokens, ThreadPool& pool) {
  const std::int64_t hidden = shape().hidden;
  std::vector<DecoderLayer>& layers = weights_->layers;
  float* x = workspace_->x.data();
  for (RotaryTable& rope : weights_->ropes) rope.reach(tokens.furthest);
  LayerRun run{*call.cache, tokens, workspace_->layers, pool};
  layers.front().attention.prepare(run);
  const std::int64_t stride = call.hidden_stride > 0 ? call.hidden_stride : hidden;
  const auto give_out = [&](std::int64_t layer) {
    for (const auto& [wanted, out] : call.hidden_out) {
      for (std::int64_t i = 0; wanted == layer && i < tokens.count(); ++i) {
        std::memcpy(out + tokens.indices[size(i)] * stride, x + i * hidden, size(hidden) * 4);
      }
    }
  };
  give_out(call.first_layer);
  for (std::int64_t i = call.first_layer; i < call.end_layer; ++i) {
    const bool last = i + 1 == shape().layers;
    const Linear& next = last ? weights_->head : layers[size(i + 1)].attention.qkv;
    if (call.queries != nullptr) {
      const std::int64_t of_layer = tokens.count() * shape().heads * shape().head_dim;
      run.queries = call.queries + (i - call.first_layer) * of_layer;
    }
    layers[size(i)].run(run, i, x, &next.matrix);
    give_out(i + 1);
  }
}

void Decoder::make_logits(const ForwardCall& call, const NewTokens& tokens, ThreadPool& pool) {
  const DecoderShape& s = shape();
  Workspace& space = *workspace_;
  // Where the logits of each token that has any belong, in rows of `vocab`.
  std::vector<std::int64_t> targets;
  float* x = space.x.data();
  if (call.logits_for == LogitsFor::all) {
    targets = tokens.indices;
  } else {
    std::int64_t n = 0;
    for (std::size_t row = 0; row < tokens.masks.size(); ++row) {
      const RowMask& mask = tokens.masks[row];
      if (mask.count == 0) continue;
      // Rows move towards the front, never over one that is still needed.
      const std::int64_t last = mask.first_token + mask.count - 1;
      std::memmove(x + n++ * s.hidden, x + last * s.hidden, size(s.hidden) * 4);
      targets.push_back(static_cast<std::int64_t>(row));
    }
  }
  const auto count = static_cast<std::int64_t>(targets.size());
  const bool gap = targets.back() != count - 1;
  if (gap) space.logits.reserve(count * s.vocab);
  float* y = gap ? space.logits.data() : call.logits;
  float* normed = space.layers.normed.data();
  final_norm(x, count, normed, pool);
  lm_head(normed, count, y, pool);
  for (std::int64_t i = 0; gap && i < count; ++i) {
    std::memcpy(call.logits + targets[size(i)] * s.vocab, y + i * s.vocab, size(s.vocab) * 4);
  }
}

void Decoder::final_norm(const float* hidden, std::int64_t tokens, float* out, ThreadPool& pool) {
  const FloatMode mode(FloatMode::Subnormals::ieee);
  weights_->norm.run(hidden, tokens, out, limit_, pool);
}

void Decoder::lm_head(const float* normed, std::int64_t tokens, float* logits, ThreadPool& pool) {
  if (tokens < 1) return;
  const FloatMode mode(FloatMode::Subnormals::ieee);
  weights_->head.run(normed, tokens, logits, workspace_->layers.activations, pool,
                     {nullptr, false, &weights_->layers.front().attention.qkv.matrix});
  scale_logits(logits, tokens * shape().vocab, pool);
}

void Decoder::scale_logits(float* logits, std::int64_t count, ThreadPool& pool) const {
  const float scale = shape().logit_scale;
  const float cap = shape().logit_cap;
  if (scale == 1.0f && cap == 0.0f) return;
  const VectorOps& ops = vector_ops(limit_);
  pool.for_ranges(count, grain(count, 1, pool), [&](const Range& r) {
    float* some = logits + r.begin;
    if (scale != 1.0f) ops.scale(some, scale, r.end - r.begin, some);
    if (cap > 0.0f) ops.soft_cap(some, cap, r.end - r.begin, some);
  });
}

const PackedMatrix& Decoder::head() const { return weights_->head.matrix; }

void Decoder::run_head(const PackedMatrix& rows, const float* normed, std::int64_t tokens,
                       float* logits, ThreadPool& pool) {
  const FloatMode mode(FloatMode::Subnormals::ieee);
  Linear{rows, {}, {}}.run(normed, tokens, logits, workspace_->layers.activations, pool);
  scale_logits(logits, tokens * rows.shape().rows, pool);
}

}  // namespace forerun::cpu
