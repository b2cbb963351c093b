#include "forerun/decoder.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "attention.h"
#include "decoder_weights.h"
#include "float_mode.h"
#include "forerun/errors.h"
#include "forerun/vector_ops.h"
#include "sight.h"

namespace forerun::cpu {
namespace {

// Values below which a thread's help costs more than it brings.
constexpr std::int64_t kAlone = 8192;
// Tokens that go through the MLP at once: enough to be bound by computing, few enough that what lies
// between its two products stays small.
constexpr std::int64_t kMlpTokens = 96;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

const float* or_null(const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); }

// Items for each share of a loop over n items of `values` values.
std::int64_t grain(std::int64_t n, std::int64_t values, const ThreadPool& pool) {
  if (n * values <= kAlone) return n;
  return std::max<std::int64_t>(n / (4 * pool.size()), 1);
}

}  // namespace

// What a forward computes in; kept between forwards.
struct Workspace {
  Workspace(const DecoderShape& shape, Level limit)
      : activations(shape.precision, shape.group, limit),
        head_activations(shape.head_precision, shape.head_precision == shape.precision ? shape.group : 0, limit) {}

  std::vector<float> x;       // [tokens, hidden], the residual stream
  std::vector<float> normed;  // [tokens, hidden]
  std::vector<float> qkv;     // [tokens, qkv_rows]
  std::vector<float> mixed;   // [tokens, heads * head_dim]
  std::vector<float> up;      // [kMlpTokens, up_rows]
  std::vector<float> inner;   // [kMlpTokens, intermediate]
  std::vector<float> logits;  // [tokens, vocab], where they cannot go straight to the caller
  Activations activations;
  Activations head_activations;
  std::unique_ptr<Attention> attention;
};

struct ForwardRun {
  const ForwardCall& call;
  ThreadPool& pool;
  std::vector<RowSight> sights;
  std::vector<std::int64_t> places;  // of each token in [rows, width]
  std::int64_t tokens() const { return static_cast<std::int64_t>(places.size()); }
};

Decoder::Decoder(const DecoderShape& shape, Level limit)
    : limit_(limit),
      weights_(std::make_unique<DecoderWeights>(shape)),
      workspace_(std::make_unique<Workspace>(shape, limit)) {}

Decoder::~Decoder() = default;

const DecoderShape& Decoder::shape() const { return weights_->shape; }

std::size_t Decoder::weight_bytes() const {
  return weights_->memory.size() + weights_->embedding.memory.size() + weights_->positions.memory.size();
}

KvCache::Shape Decoder::cache_shape(std::int64_t rows, std::int64_t capacity) const {
  const DecoderShape& s = shape();
  const Precision precision = s.precision == Precision::fp32 ? Precision::fp32 : Precision::bf16;
  return {precision, s.layers, rows, s.kv_heads, s.head_dim, capacity};
}

void Decoder::check(const ForwardCall& call) const {
  const DecoderShape& s = shape();
  const KvCache::Shape& c = call.cache->shape();
  const bool same_precision = c.precision == cache_shape(1, 1).precision;
  if (c.layers != s.layers || c.kv_heads != s.kv_heads || c.head_dim != s.head_dim || !same_precision) {
    throw std::invalid_argument("the cache is of another model");
  }
  if (call.first_layer < 0 || call.first_layer >= call.end_layer || call.end_layer > s.layers) {
    throw std::invalid_argument("there are no such layers");
  }
  if (call.first_layer > 0 && call.hidden_in == nullptr) throw std::invalid_argument("layers above the first need hidden_in");
  if (call.rows.empty() || call.width < 1) throw std::invalid_argument("there is nothing to run");
  for (std::size_t i = 0; i < call.rows.size(); ++i) {
    call.cache->check_row(call.rows[i]);
    for (std::size_t j = 0; j < i; ++j) {
      if (call.rows[i] == call.rows[j]) throw std::invalid_argument("a row is named twice");
    }
  }
  const auto total = static_cast<std::int64_t>(call.rows.size()) * call.width;
  for (std::int64_t i = 0; i < total; ++i) {
    if (call.positions[i] >= s.max_context) {
      throw CacheError("position " + std::to_string(call.positions[i]) + " lies beyond the context of " +
                       std::to_string(s.max_context) + " tokens; end the text or draft less far.");
    }
    const bool token = call.token_ids[i] >= 0 && call.token_ids[i] < s.vocab;
    if (!token && call.positions[i] >= 0 && call.hidden_in == nullptr) {
      throw std::invalid_argument(std::to_string(call.token_ids[i]) + " is no token id; they end at " + std::to_string(s.vocab - 1));
    }
  }
}

namespace {

// Takes slots for the new tokens of each row, in the layers that run.
void append(ForwardRun& run) {
  const ForwardCall& call = run.call;
  KvCache& cache = *call.cache;
  for (std::size_t b = 0; b < call.rows.size(); ++b) {
    RowSight sight;
    sight.row = call.rows[b];
    sight.positions = call.positions + static_cast<std::int64_t>(b) * call.width;
    while (sight.count < call.width && sight.positions[sight.count] >= 0) ++sight.count;
    for (std::int64_t i = sight.count; i < call.width; ++i) {
      if (sight.positions[i] >= 0) throw std::invalid_argument("padding stands before a token");
    }
    sight.start = cache.length(call.first_layer, sight.row);
    for (std::int64_t layer = call.first_layer; layer < call.end_layer; ++layer) {
      if (cache.length(layer, sight.row) != sight.start) {
        throw CacheError("layers of row " + std::to_string(sight.row) +
                         " hold different numbers of tokens; trim the row or run the layers that lag behind first.");
      }
    }
    if (sight.start + sight.count > cache.shape().capacity) {
      throw CacheError("row " + std::to_string(sight.row) + " holds " + std::to_string(sight.start) +
                       " tokens and cannot take " + std::to_string(sight.count) + " more: its capacity is " +
                       std::to_string(cache.shape().capacity) + "; make the cache larger or trim the row.");
    }
    for (std::int64_t i = 0; i < sight.count; ++i) {
      // So a window never begins behind its token.
      if (sight.positions[i] > sight.start + i) {
        throw std::invalid_argument("position " + std::to_string(sight.positions[i]) +
                                    " lies beyond the tokens before it, " + std::to_string(sight.start + i));
      }
    }
    sight.first_token = run.tokens();
    for (std::int64_t i = 0; i < sight.count; ++i) run.places.push_back(static_cast<std::int64_t>(b) * call.width + i);
    run.sights.push_back(std::move(sight));
  }
  for (std::size_t b = 0; b < run.sights.size(); ++b) {
    RowSight& sight = run.sights[b];
    std::copy(sight.positions, sight.positions + sight.count, cache.positions(sight.row) + sight.start);
    const auto before = static_cast<std::int64_t>(b) * call.width * call.mask_columns;
    const std::uint8_t* seen = call.tree_mask == nullptr ? nullptr : call.tree_mask + before;
    if (sight.count > 0) look(cache, {seen, call.mask_columns, call.width}, sight);
  }
}

}  // namespace

void Decoder::forward(const ForwardCall& call, ThreadPool& pool) {
  check(call);
  const FloatMode mode(FloatMode::Subnormals::ieee);
  ForwardRun run{call, pool, {}, {}};
  append(run);
  if (run.tokens() == 0) return;
  Workspace& space = *workspace_;
  const DecoderShape& s = shape();
  const std::int64_t tokens = run.tokens();
  space.x.resize(size(tokens * s.hidden));
  space.normed.resize(size(tokens * s.hidden));
  space.qkv.resize(size(tokens * s.qkv_rows()));
  space.mixed.resize(size(tokens * s.heads * s.head_dim));
  space.up.resize(size(std::min(tokens, kMlpTokens) * s.up_rows()));
  space.inner.resize(size(std::min(tokens, kMlpTokens) * s.intermediate));
  if (space.attention == nullptr || space.attention->threads() < pool.size()) {
    const AttentionShape attention{s.heads, s.kv_heads, s.head_dim};
    space.attention = std::make_unique<Attention>(attention, cache_shape(1, 1).precision, limit_, pool.size());
  }
  space.attention->plan(run.sights);
  embed(run);
  const auto hand_out = [&](std::int64_t index) {
    for (const auto& [wanted, out] : call.hidden_out) {
      for (std::int64_t i = 0; wanted == index && i < tokens; ++i) {
        std::memcpy(out + run.places[size(i)] * s.hidden, space.x.data() + i * s.hidden, size(s.hidden) * 4);
      }
    }
  };
  hand_out(call.first_layer);
  for (std::int64_t index = call.first_layer; index < call.end_layer; ++index) {
    layer(run, index);
    hand_out(index + 1);
  }
  if (call.end_layer == s.layers && call.logits_for != LogitsFor::none) make_logits(run);
}

void Decoder::embed(ForwardRun& run) {
  const DecoderShape& s = shape();
  const ForwardCall& call = run.call;
  DecoderWeights& w = *weights_;
  std::int64_t furthest = 0;
  for (const std::int64_t place : run.places) furthest = std::max(furthest, call.positions[place]);
  w.rotary.reach(furthest);
  run.pool.for_ranges(run.tokens(), grain(run.tokens(), s.hidden, run.pool), [&](const Range& r) {
    for (std::int64_t i = r.begin; i < r.end; ++i) {
      const std::int64_t place = run.places[size(i)];
      float* x = workspace_->x.data() + i * s.hidden;
      if (call.hidden_in != nullptr) {
        std::memcpy(x, call.hidden_in + place * s.hidden, size(s.hidden) * 4);
        continue;
      }
      if (s.tied) w.head.unpack_row(call.token_ids[place], x);
      else w.embedding.read(call.token_ids[place], x);
      if (w.rotary.used()) continue;
      float* learned = workspace_->normed.data() + i * s.hidden;
      w.positions.read(call.positions[place], learned);
      vector_ops(limit_).add(learned, s.hidden, x);
    }
  });
}

void Decoder::norm(ThreadPool& pool, const float* x, const std::vector<float>& weight,
                   const std::vector<float>& bias, std::int64_t tokens, float* y) {
  const DecoderShape& s = shape();
  const VectorOps& ops = vector_ops(limit_);
  pool.for_ranges(tokens, grain(tokens, s.hidden, pool), [&](const Range& r) {
    for (std::int64_t i = r.begin; i < r.end; ++i) {
      const float* in = x + i * s.hidden;
      float* out = y + i * s.hidden;
      if (s.layer_norm) ops.layer_norm(in, weight.data(), bias.data(), s.norm_eps, s.hidden, out);
      else ops.rms_norm(in, weight.data(), s.norm_eps, s.hidden, out);
    }
  });
}

void Decoder::layer(ForwardRun& run, std::int64_t index) {
  const DecoderShape& s = shape();
  Workspace& space = *workspace_;
  const LayerWeights& w = weights_->layers[size(index)];
  const std::int64_t tokens = run.tokens();
  norm(run.pool, space.x.data(), w.input_norm, w.input_norm_bias, tokens, space.normed.data());
  space.activations.pack(space.normed.data(), tokens, s.hidden, s.hidden, run.pool);
  linear(w.qkv, space.activations, space.qkv.data(), s.qkv_rows(), run.pool, {or_null(w.qkv_bias), false, &w.output});
  attend(run, index);
  space.activations.pack(space.mixed.data(), tokens, s.heads * s.head_dim, s.heads * s.head_dim, run.pool);
  linear(w.output, space.activations, space.x.data(), s.hidden, run.pool, {or_null(w.output_bias), true, &w.up});
  norm(run.pool, space.x.data(), w.mlp_norm, w.mlp_norm_bias, tokens, space.normed.data());
  mlp(run, index);
}

void Decoder::attend(ForwardRun& run, std::int64_t index) {
  const DecoderShape& s = shape();
  Workspace& space = *workspace_;
  Attention& attention = *space.attention;
  const AttentionCall call = {run.call.cache, index, s.windows[size(index)], space.qkv.data(),
                              s.qkv_rows(), space.mixed.data()};
  const auto rows = static_cast<std::int64_t>(run.sights.size());
  const auto prepare = [&](std::int64_t item) { prepare_heads(run, index, item / s.kv_heads, item % s.kv_heads); };
  if (attention.whole_heads()) {
    run.pool.for_ranges(rows * s.kv_heads, 1, [&](const Range& r) {
      for (std::int64_t i = r.begin; i < r.end; ++i) {
        prepare(i);
        attention.run(call, i, i + 1, r.thread);
      }
    });
  } else {
    run.pool.for_ranges(rows * s.kv_heads, 1, [&](const Range& r) {
      for (std::int64_t i = r.begin; i < r.end; ++i) prepare(i);
    });
    run.pool.for_ranges(attention.items(), 1, [&](const Range& r) { attention.run(call, r.begin, r.end, r.thread); });
  }
  for (const RowSight& sight : run.sights) run.call.cache->set_length(index, sight.row, sight.start + sight.count);
}

// Norms and turns one key head and the query heads that share it, and stores key and value.
void Decoder::prepare_heads(ForwardRun& run, std::int64_t index, std::int64_t row, std::int64_t head) {
  const DecoderShape& s = shape();
  const DecoderWeights& w = *weights_;
  const LayerWeights& layer = w.layers[size(index)];
  const VectorOps& ops = vector_ops(limit_);
  const RowSight& sight = run.sights[size(row)];
  const std::int64_t d = s.head_dim;
  const std::int64_t group = s.heads / s.kv_heads;
  for (std::int64_t i = 0; i < sight.count; ++i) {
    float* qkv = workspace_->qkv.data() + (sight.first_token + i) * s.qkv_rows();
    float* key = qkv + (s.heads + head) * d;
    const auto turn = [&](float* x, const std::vector<float>& weight) {
      if (!weight.empty()) ops.rms_norm(x, weight.data(), s.norm_eps, d, x);
      if (!w.rotary.used()) return;
      ops.rotate(x, w.rotary.cosines(sight.positions[i]), w.rotary.sines(sight.positions[i]), d / 2);
    };
    for (std::int64_t q = head * group; q < (head + 1) * group; ++q) turn(qkv + q * d, layer.q_norm);
    turn(key, layer.k_norm);
    run.call.cache->write(index, sight.row, head, sight.start + i, key, key + s.kv_heads * d);
  }
}

void Decoder::mlp(ForwardRun& run, std::int64_t index) {
  const DecoderShape& s = shape();
  Workspace& space = *workspace_;
  const LayerWeights& w = weights_->layers[size(index)];
  const VectorOps& ops = vector_ops(limit_);
  const bool last = index + 1 == s.layers;
  const PackedMatrix* next = last ? &weights_->head : &weights_->layers[size(index + 1)].qkv;
  for (std::int64_t first = 0; first < run.tokens(); first += kMlpTokens) {
    const std::int64_t tokens = std::min(kMlpTokens, run.tokens() - first);
    space.activations.pack(space.normed.data() + first * s.hidden, tokens, s.hidden, s.hidden, run.pool);
    linear(w.up, space.activations, space.up.data(), s.up_rows(), run.pool, {or_null(w.up_bias), false, &w.down});
    run.pool.for_ranges(tokens, grain(tokens, s.intermediate, run.pool), [&](const Range& r) {
      for (std::int64_t i = r.begin; i < r.end; ++i) {
        const float* up = space.up.data() + i * s.up_rows();
        float* inner = space.inner.data() + i * s.intermediate;
        switch (s.activation) {
          case Activation::silu:
            if (s.gated) { ops.silu_mul(up, up + s.intermediate, s.intermediate, inner); continue; }
            ops.silu(up, s.intermediate, inner);
            break;
          case Activation::gelu_tanh: ops.gelu_tanh(up, s.intermediate, inner); break;
          case Activation::gelu_erf: ops.gelu_erf(up, s.intermediate, inner); break;
          case Activation::relu: ops.relu(up, s.intermediate, inner); break;
        }
        if (s.gated) ops.multiply(up + s.intermediate, s.intermediate, inner);
      }
    });
    space.activations.pack(space.inner.data(), tokens, s.intermediate, s.intermediate, run.pool);
    linear(w.down, space.activations, space.x.data() + first * s.hidden, s.hidden, run.pool, {or_null(w.down_bias), true, next});
  }
}

void Decoder::make_logits(ForwardRun& run) {
  const DecoderShape& s = shape();
  Workspace& space = *workspace_;
  const ForwardCall& call = run.call;
  // Where the logits of each token that has any belong, in rows of `vocab`.
  std::vector<std::int64_t> targets;
  const float* x = space.x.data();
  if (call.logits_for == LogitsFor::all) {
    targets = run.places;
  } else {
    std::int64_t n = 0;
    for (std::size_t b = 0; b < run.sights.size(); ++b) {
      const RowSight& sight = run.sights[b];
      if (sight.count == 0) continue;
      // Rows move towards the front, never over one that is still needed.
      std::memmove(space.x.data() + n++ * s.hidden, x + (sight.first_token + sight.count - 1) * s.hidden, size(s.hidden) * 4);
      targets.push_back(static_cast<std::int64_t>(b));
    }
  }
  const auto tokens = static_cast<std::int64_t>(targets.size());
  const bool gap = targets.back() != tokens - 1;
  if (gap) space.logits.resize(size(tokens * s.vocab));
  float* y = gap ? space.logits.data() : call.logits;
  head(x, tokens, y, run.pool);
  for (std::int64_t i = 0; gap && i < tokens; ++i) {
    std::memcpy(call.logits + targets[size(i)] * s.vocab, y + i * s.vocab, size(s.vocab) * 4);
  }
}

void Decoder::head(const float* hidden, std::int64_t tokens, float* logits, ThreadPool& pool) {
  if (tokens < 1) return;
  const FloatMode mode(FloatMode::Subnormals::ieee);
  const DecoderShape& s = shape();
  Workspace& space = *workspace_;
  if (space.normed.size() < size(tokens * s.hidden)) space.normed.resize(size(tokens * s.hidden));
  norm(pool, hidden, weights_->norm, weights_->norm_bias, tokens, space.normed.data());
  space.head_activations.pack(space.normed.data(), tokens, s.hidden, s.hidden, pool);
  linear(weights_->head, space.head_activations, logits, s.vocab, pool, {nullptr, false, &weights_->layers[0].qkv});
}

}  // namespace forerun::cpu
