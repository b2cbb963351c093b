#include "parts.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

#include "forerun/vector_ops.h"

namespace forerun::cpu {
namespace {

// Values below which a thread's help costs more than it brings.
constexpr std::int64_t kAlone = 8192;
// Tokens that go through the MLP at once: enough to be bound by computing, few enough that what
// lies between its two products stays small.
constexpr std::int64_t kMlpTokens = 96;

std::size_t size_of(std::int64_t n) { return static_cast<std::size_t>(n); }

}  // namespace

std::int64_t grain(std::int64_t n, std::int64_t values, const ThreadPool& pool) {
  if (n * values <= kAlone) return n;
  return std::max<std::int64_t>(n / (4 * pool.size()), 1);
}

namespace {

// `pack` for ranges of `count` rows on all threads. A body of the pool must not throw: the first
// error is thrown afterwards.
template <class Pack>
void pack_ranges(std::int64_t count, ThreadPool& pool, Pack pack) {
  std::atomic<bool> failed{false};
  std::string message;
  pool.for_ranges(count, 16, [&](const Range& r) {
    try {
      pack(r.begin, r.end - r.begin);
    } catch (const std::exception& error) {
      if (!failed.exchange(true)) message = error.what();
    }
  });
  if (failed) throw std::domain_error(message);
}

}  // namespace

void pack_rows(PackedMatrix& matrix, std::int64_t first, std::int64_t count, const void* data,
               SourceType type, ThreadPool& pool) {
  const std::int64_t cols = matrix.shape().cols;
  const std::size_t row_bytes = size_of(cols) * (type == SourceType::fp32 ? 4 : 2);
  pack_ranges(count, pool, [&](std::int64_t begin, std::int64_t n) {
    const auto* source = static_cast<const std::uint8_t*>(data) + size_of(begin) * row_bytes;
    matrix.pack_rows(first + begin, n, source, type, cols);
  });
}

void pack_codes(PackedMatrix& matrix, std::int64_t first, std::int64_t count, const CodedRows& rows,
                ThreadPool& pool) {
  pack_ranges(count, pool, [&](std::int64_t begin, std::int64_t n) {
    matrix.pack_codes(first + begin, n, rows.from(begin, matrix.shape()));
  });
}

Activations& ActivationSet::of(const MatrixShape& shape) {
  for (const auto& made : made_) {
    if (made->shape().precision == shape.precision && made->shape().group == shape.group)
      return *made;
  }
  made_.push_back(std::make_unique<Activations>(shape.precision, shape.group, limit_));
  return *made_.back();
}

Activations& ActivationSet::pack(const MatrixShape& shape, const float* x, std::int64_t tokens,
                                 ThreadPool& pool) {
  Activations& packed = of(shape);
  packed.pack(x, tokens, shape.cols, shape.cols, pool);
  return packed;
}

Precision cache_precision(Precision weights) {
  return weights == Precision::fp32 ? Precision::fp32 : Precision::bf16;
}

void check_cache(const KvCache::Shape& cache, const KvCache::Shape& expected) {
  if (cache.layers != expected.layers || cache.kv_heads != expected.kv_heads ||
      cache.head_dim != expected.head_dim) {
    throw std::invalid_argument("the cache is of another model");
  }
}

void Norm::run(const float* x, std::int64_t tokens, float* y, Level limit, ThreadPool& pool) const {
  const VectorOps& ops = vector_ops(limit);
  pool.for_ranges(tokens, grain(tokens, size(), pool), [&](const Range& r) {
    for (std::int64_t i = r.begin; i < r.end; ++i) {
      const float* in = x + i * size();
      float* out = y + i * size();
      if (bias.empty()) ops.rms_norm(in, weight.data(), eps, size(), out);
      else ops.layer_norm(in, weight.data(), bias.data(), eps, size(), out);
    }
  });
}

std::int64_t Linear::rows() const {
  std::int64_t rows = 0;
  for_parts([&](const PackedMatrix& part) { rows += part.shape().rows; });
  return rows;
}

std::size_t Linear::bytes() const {
  std::size_t bytes = 0;
  for_parts([&](const PackedMatrix& part) { bytes += part.shape().bytes(); });
  return bytes;
}

void Linear::run(const float* x, std::int64_t tokens, float* y, ActivationSet& activations,
                 ThreadPool& pool, LinearOptions options) const {
  if (more.empty()) return run(activations.pack(matrix.shape(), x, tokens, pool), y, pool, options);
  const PackedMatrix* next = options.next;
  const std::int64_t stride = rows();
  std::int64_t first = 0;
  for_parts([&](const PackedMatrix& part) {
    options.bias = bias.empty() ? nullptr : bias.data() + first;
    options.next = &part == &more.back() ? next : &part == &matrix ? more.data() : &part + 1;
    linear(part, activations.pack(part.shape(), x, tokens, pool), y + first, stride, pool, options);
    first += part.shape().rows;
  });
}

void Linear::run(const Activations& x, float* y, ThreadPool& pool, LinearOptions options) const {
  const std::int64_t rows = matrix.shape().rows;
  options.bias = bias.empty() ? nullptr : bias.data();
  linear(matrix, x, y, options.gate == nullptr ? rows : rows / 2, pool, options);
}

void activate(Activation activation, bool gated, const float* x, std::int64_t tokens,
              std::int64_t size, float* y, Level limit, ThreadPool& pool) {
  const VectorOps& ops = vector_ops(limit);
  pool.for_ranges(tokens, grain(tokens, size, pool), [&](const Range& r) {
    for (std::int64_t i = r.begin; i < r.end; ++i) {
      const float* in = x + i * (gated ? 2 : 1) * size;
      float* out = y + i * size;
      switch (activation) {
        case Activation::silu:
          if (gated) {
            ops.silu_mul(in, in + size, size, out);
            continue;
          }
          ops.silu(in, size, out);
          break;
        case Activation::gelu_tanh: ops.gelu_tanh(in, size, out); break;
        case Activation::gelu_erf: ops.gelu_erf(in, size, out); break;
        case Activation::relu: ops.relu(in, size, out); break;
        case Activation::clamped_swiglu: ops.clamped_swiglu(in, in + size, size, out); continue;
      }
      if (gated) ops.multiply(in + size, size, out);
    }
  });
}

void SelfAttention::prepare(LayerRun& run) const {
  LayerSpace& space = run.space;
  const std::int64_t tokens = run.tokens.count();
  space.qkv.reserve(tokens * qkv_rows());
  space.mixed.reserve(tokens * shape.heads * shape.head_dim);
  const Precision precision = run.cache.shape().precision;
  if (space.attention == nullptr || space.attention->threads() < run.pool.size() ||
      space.attention->precision() != precision) {
    space.attention = std::make_unique<Attention>(shape, precision, space.limit, run.pool.size());
  }
  if (run.tokens.view.blocks > 0) run.cache.reserve_means();
  space.attention->begin();
}

void SelfAttention::run(LayerRun& run, std::int64_t index, const float* x, float* y,
                        bool accumulate, const PackedMatrix* next) const {
  LayerSpace& space = run.space;
  const std::int64_t tokens = run.tokens.count();
  qkv.run(x, tokens, space.qkv.data(), space.activations, run.pool,
          {nullptr, false, &output.matrix});
  attend(run, index);
  output.run(space.mixed.data(), tokens, y, space.activations, run.pool,
             {nullptr, accumulate, next});
}

// What a layer's own window hides is no sink.
View SelfAttention::layer_view(const View& view) const {
  if (window == 0) return view;
  return {0, view.window == 0 ? window : std::min(window, view.window), view.coarse, 0};
}

// Where a norm has weights for all heads together; those by head follow in prepare_head().
void SelfAttention::norm_whole(LayerRun& run) const {
  const std::int64_t d = shape.head_dim;
  const VectorOps& ops = vector_ops(run.space.limit);
  const std::int64_t tokens = run.tokens.count();
  const auto all = [&](const std::vector<float>& weight, std::int64_t heads) {
    return heads > 1 && weight.size() == size_of(heads * d);
  };
  if (!all(q_norm, shape.heads) && !all(k_norm, shape.kv_heads)) return;
  run.pool.for_ranges(tokens, grain(tokens, qkv_rows(), run.pool), [&](const Range& r) {
    for (std::int64_t i = r.begin; i < r.end; ++i) {
      float* x = run.space.qkv.data() + i * qkv_rows();
      for (const auto& [weight, heads] :
           {std::pair(&q_norm, shape.heads), std::pair(&k_norm, shape.kv_heads)}) {
        if (all(*weight, heads)) ops.rms_norm(x, weight->data(), norm_eps, heads * d, x);
        x += shape.heads * d;
      }
    }
  });
}

void SelfAttention::attend(LayerRun& run, std::int64_t index) const {
  LayerSpace& space = run.space;
  Attention& attention = *space.attention;
  attention.plan(run.tokens, run.cache, layer_view(run.tokens.view));
  norm_whole(run);
  const AttentionCall call = {&run.cache,
                              index,
                              layer_view(run.tokens.view),
                              space.qkv.data(),
                              qkv_rows(),
                              space.mixed.data(),
                              sinks.empty() ? nullptr : sinks.data()};
  if (attention.whole_heads()) {
    run.pool.for_ranges(attention.items(), 1, [&](const Range& r) {
      for (std::int64_t i = r.begin; i < r.end; ++i) {
        prepare_head(run, index, i / shape.kv_heads, i % shape.kv_heads);
        attention.run(call, {r.thread, i, i + 1, r.stop});
      }
    });
  } else {
    prepare_heads(run, index);
    run.pool.for_ranges(attention.items(), 1, [&](const Range& r) { attention.run(call, r); });
    run.pool.for_ranges(attention.merges(), 1, [&](const Range& r) { attention.merge(call, r); });
  }
  for (const RowMask& mask : run.tokens.masks) {
    run.cache.set_length(index, mask.row, mask.start + mask.count);
  }
}

void SelfAttention::prepare_heads(LayerRun& run, std::int64_t index) const {
  const auto heads = static_cast<std::int64_t>(run.tokens.masks.size()) * shape.kv_heads;
  run.pool.for_ranges(heads, 1, [&](const Range& r) {
    for (std::int64_t i = r.begin; i < r.end; ++i) {
      prepare_head(run, index, i / shape.kv_heads, i % shape.kv_heads);
    }
  });
}

// Norms and turns one key head and the query heads that share it, and stores key and value.
void SelfAttention::prepare_head(LayerRun& run, std::int64_t index, std::int64_t row,
                                 std::int64_t head) const {
  const VectorOps& ops = vector_ops(run.space.limit);
  const RowMask& mask = run.tokens.masks[size_of(row)];
  const std::int64_t d = shape.head_dim;
  const std::int64_t group = shape.group();
  for (std::int64_t i = 0; i < mask.count; ++i) {
    float* heads = run.space.qkv.data() + (mask.first_token + i) * qkv_rows();
    float* key = heads + (shape.heads + head) * d;
    const auto norm = [&](float* x, const std::vector<float>& weight) {
      if (weight.size() == size_of(d)) ops.rms_norm(x, weight.data(), norm_eps, d, x);
    };
    const auto turn = [&](float* x) {
      if (rotary != nullptr) rotary->turn(x, mask.positions[i], ops);
    };
    float* queries = heads + head * group * d;
    for (std::int64_t q = 0; q < group; ++q) norm(queries + q * d, q_norm);
    if (run.queries != nullptr) {
      std::copy(queries, queries + group * d,
                run.queries + ((mask.first_token + i) * shape.heads + head * group) * d);
    }
    for (std::int64_t q = 0; q < group; ++q) turn(queries + q * d);
    norm(key, k_norm);
    turn(key);
    run.cache.write(index, mask.row, head, mask.start + i, key, key + shape.kv_heads * d);
  }
  if (layer_view(run.tokens.view).blocks > 0)
    run.cache.summarize(index, mask.row, head, mask.orderly_tiles());
}

Gate Mlp::gate(Level limit) const {
  if (!gated || !up.more.empty() || down.matrix.shape().cols % kBlockRows != 0) return nullptr;
  const VectorOps& ops = vector_ops(limit);
  if (activation == Activation::silu) return ops.silu_mul;
  if (activation == Activation::clamped_swiglu) return ops.clamped_swiglu;
  return activation == Activation::gelu_tanh ? ops.gelu_tanh_mul : nullptr;
}

// The inner values for x, packed for `down`.
const Activations& Mlp::inner(LayerRun& run, const float* x, std::int64_t tokens) const {
  LayerSpace& space = run.space;
  const MatrixShape& then = down.matrix.shape();
  const std::int64_t size = then.cols;
  LinearOptions options = {nullptr, false, &down.matrix, gate(space.limit)};
  space.inner.reserve(tokens * size);
  float* y = space.inner.data();
  if (options.gate != nullptr) {
    const Activations& packed = space.activations.pack(up.matrix.shape(), x, tokens, run.pool);
    if (packs_at_once(packed, then, run.pool)) options.packed = &space.packed_inner.of(then);
    up.run(packed, y, run.pool, options);
    if (options.packed != nullptr) return *options.packed;
  } else {
    space.up.reserve(tokens * up.rows());
    up.run(x, tokens, space.up.data(), space.activations, run.pool, options);
    activate(activation, gated, space.up.data(), tokens, size, y, space.limit, run.pool);
  }
  return space.activations.pack(then, y, tokens, run.pool);
}

void Mlp::run(LayerRun& run, const float* x, float* y, bool accumulate,
              const PackedMatrix* next) const {
  const std::int64_t hidden = up.matrix.shape().cols;
  for (std::int64_t first = 0; first < run.tokens.count(); first += kMlpTokens) {
    const std::int64_t tokens = std::min(kMlpTokens, run.tokens.count() - first);
    down.run(inner(run, x + first * hidden, tokens), y + first * hidden, run.pool,
             {nullptr, accumulate, next});
  }
}

const float* DecoderLayer::normed(LayerRun& run, const Norm& norm, const float* x) const {
  if (norm.size() == 0) return x;
  const std::int64_t tokens = run.tokens.count();
  run.space.normed.reserve(tokens * norm.size());
  norm.run(x, tokens, run.space.normed.data(), run.space.limit, run.pool);
  return run.space.normed.data();
}

void DecoderLayer::add_branch(LayerRun& run, const Norm& after, float* x) const {
  if (adds_at_once(after)) return;
  const std::int64_t hidden = attention.output.rows();
  const std::int64_t tokens = run.tokens.count();
  const VectorOps& ops = vector_ops(run.space.limit);
  float* branch = run.space.branch.data();
  if (after.size() > 0) after.run(branch, tokens, branch, run.space.limit, run.pool);
  run.pool.for_ranges(tokens, grain(tokens, hidden, run.pool), [&](const Range& r) {
    const std::int64_t first = r.begin * hidden;
    const std::int64_t count = (r.end - r.begin) * hidden;
    if (residual_scale == 1.0f) ops.add(branch + first, count, x + first);
    else ops.blend(branch + first, 1.0f, residual_scale, count, x + first);
  });
}

void DecoderLayer::run(LayerRun& run, std::int64_t index, float* x,
                       const PackedMatrix* next) const {
  const bool attention_adds = adds_at_once(post_attention_norm);
  const bool mlp_adds = adds_at_once(post_mlp_norm);
  Floats& branch = run.space.branch;
  if (!attention_adds || !mlp_adds) branch.reserve(run.tokens.count() * attention.output.rows());
  const bool dense = experts.each.empty();
  const PackedMatrix& then = dense ? mlp.up.matrix : experts.router.matrix;
  const float* in = normed(run, input_norm, x);
  attention.run(run, index, in, attention_adds ? x : branch.data(), attention_adds, &then);
  add_branch(run, post_attention_norm, x);
  if (!parallel) in = normed(run, mlp_norm, x);
  float* to = mlp_adds ? x : branch.data();
  if (dense) mlp.run(run, in, to, mlp_adds, next);
  else experts.run(run, in, to, mlp_adds);
  add_branch(run, post_mlp_norm, x);
}

}  // namespace forerun::cpu
