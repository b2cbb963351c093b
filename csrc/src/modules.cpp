#include "forerun/modules.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "float_mode.h"
#include "parts.h"

namespace forerun::cpu {
namespace {

std::size_t size_of(std::int64_t n) { return static_cast<std::size_t>(n); }

void check_finite(const std::vector<float>& values) {
  for (const float value : values) {
    if (!std::isfinite(value)) throw std::domain_error("a weight is not finite");
  }
}

// Packs a matrix at `memory`.
Linear make_linear(const LinearSource& source, const MatrixShape& shape, std::uint8_t* memory,
                   ThreadPool& pool) {
  Linear linear;
  linear.matrix = PackedMatrix(shape, memory);
  pack_rows(linear.matrix, 0, source.rows, source.weights, SourceType::fp32, pool);
  if (source.bias != nullptr) linear.bias.assign(source.bias, source.bias + source.rows);
  check_finite(linear.bias);
  return linear;
}

MatrixShape shape_of(const LinearSource& source, const Packing& packing) {
  return MatrixShape::make(packing.precision, source.rows, source.cols, packing.group);
}

}  // namespace

struct LinearModule::Parts {
  Buffer memory;
  Linear linear;
  ActivationSet activations;
};

LinearModule::LinearModule(const LinearSource& source, const Packing& packing, ThreadPool& pool) {
  const MatrixShape shape = shape_of(source, packing);
  Buffer memory(shape.bytes());
  Linear linear = make_linear(source, shape, memory.data(), pool);
  parts_.reset(new Parts{std::move(memory), std::move(linear), ActivationSet(packing.limit)});
}

LinearModule::~LinearModule() = default;

std::int64_t LinearModule::rows() const { return parts_->linear.matrix.shape().rows; }
std::int64_t LinearModule::cols() const { return parts_->linear.matrix.shape().cols; }
std::size_t LinearModule::weight_bytes() const { return parts_->memory.size(); }

void LinearModule::run(const float* x, std::int64_t tokens, float* y, ThreadPool& pool) {
  if (tokens < 1) return;
  const FloatMode mode(FloatMode::Subnormals::ieee);
  parts_->linear.run(x, tokens, y, parts_->activations, pool);
}

struct NormModule::Parts {
  Norm norm;
  Level limit;
};

NormModule::NormModule(std::vector<float> weight, std::vector<float> bias, float eps, Level limit)
    : parts_(new Parts{{std::move(weight), std::move(bias), eps}, limit}) {
  const Norm& norm = parts_->norm;
  if (norm.weight.empty() || (!norm.bias.empty() && norm.bias.size() != norm.weight.size())) {
    throw std::invalid_argument("a norm has a weight for each value, and as many biases or none");
  }
  if (!(eps >= 0.0f)) throw std::invalid_argument("the eps of a norm must be 0 or more");
  check_finite(norm.weight);
  check_finite(norm.bias);
}

NormModule::~NormModule() = default;

std::int64_t NormModule::size() const { return parts_->norm.size(); }

void NormModule::run(const float* x, std::int64_t tokens, float* y, ThreadPool& pool) const {
  const FloatMode mode(FloatMode::Subnormals::ieee);
  parts_->norm.run(x, tokens, y, parts_->limit, pool);
}

struct AttentionModule::Parts {
  Buffer memory;
  SelfAttention attention;
  RotaryTable rotary;
  LayerSpace space;
  Precision cache;
  std::vector<float> x;  // [tokens, cols], where there is padding between
  std::vector<float> y;  // [tokens, hidden]
};

namespace {

void check(const AttentionSource& source) {
  const std::int64_t sizes[] = {source.heads, source.kv_heads, source.head_dim};
  for (const std::int64_t size : sizes) {
    if (size < 1 || size > (1 << 20)) throw std::invalid_argument("a size is out of range");
  }
  if (source.heads % source.kv_heads != 0) {
    throw std::invalid_argument("heads do not share keys evenly");
  }
  if (source.qkv.rows != (source.heads + 2 * source.kv_heads) * source.head_dim ||
      source.output.cols != source.heads * source.head_dim) {
    throw std::invalid_argument("qkv and output do not fit the heads");
  }
  for (const auto* norm : {&source.q_norm, &source.k_norm}) {
    if (!norm->empty() && norm->size() != size_of(source.head_dim)) {
      throw std::invalid_argument("the norms of queries and keys have a weight for each dimension");
    }
    check_finite(*norm);
  }
  if (!source.inverse_frequencies.empty() &&
      2 * source.inverse_frequencies.size() != size_of(source.head_dim)) {
    throw std::invalid_argument("a rotary embedding turns half of head_dim pairs");
  }
  if (source.window < 0) throw std::invalid_argument("a window is 0 for none, or positive");
}

}  // namespace

AttentionModule::AttentionModule(AttentionSource source, const Packing& packing, ThreadPool& pool) {
  check(source);
  const MatrixShape qkv = shape_of(source.qkv, packing);
  const MatrixShape output = shape_of(source.output, packing);
  Buffer memory(qkv.bytes() + output.bytes());
  SelfAttention attention;
  attention.shape = {source.heads, source.kv_heads, source.head_dim};
  attention.window = source.window;
  attention.norm_eps = source.norm_eps;
  attention.qkv = make_linear(source.qkv, qkv, memory.data(), pool);
  attention.output = make_linear(source.output, output, memory.data() + qkv.bytes(), pool);
  attention.q_norm = std::move(source.q_norm);
  attention.k_norm = std::move(source.k_norm);
  parts_.reset(new Parts{std::move(memory),
                         std::move(attention),
                         RotaryTable(std::move(source.inverse_frequencies), source.rotary_scale),
                         LayerSpace(packing.limit),
                         cache_precision(packing.precision),
                         {},
                         {}});
}

AttentionModule::~AttentionModule() = default;

std::int64_t AttentionModule::cols() const { return parts_->attention.qkv.matrix.shape().cols; }
std::int64_t AttentionModule::hidden() const {
  return parts_->attention.output.matrix.shape().rows;
}
std::size_t AttentionModule::weight_bytes() const { return parts_->memory.size(); }

KvCache::Shape AttentionModule::cache_shape(std::int64_t rows, std::int64_t capacity) const {
  const AttentionShape& shape = parts_->attention.shape;
  return {parts_->cache, 1, rows, shape.kv_heads, shape.head_dim, capacity};
}

void AttentionModule::run(const BatchRows& batch, const float* x, float* y, ThreadPool& pool) {
  Parts& p = *parts_;
  check_cache(batch.cache->shape(), cache_shape(1, 1));
  const FloatMode mode(FloatMode::Subnormals::ieee);
  const NewTokens tokens = take_slots(batch);
  const std::int64_t count = tokens.count();
  if (count == 0) return;
  const bool gap = tokens.indices.back() != count - 1;
  if (gap) {
    p.x.resize(size_of(count * cols()));
    p.y.resize(size_of(count * hidden()));
    for (std::int64_t i = 0; i < count; ++i) {
      const float* from = x + tokens.indices[size_of(i)] * cols();
      std::memcpy(p.x.data() + i * cols(), from, size_of(cols()) * 4);
    }
  }
  p.rotary.reach(tokens.furthest);
  LayerRun run{*batch.cache, tokens, p.rotary, p.space, pool};
  p.attention.prepare(run);
  p.attention.run(run, 0, gap ? p.x.data() : x, gap ? p.y.data() : y);
  for (std::int64_t i = 0; gap && i < count; ++i) {
    float* to = y + tokens.indices[size_of(i)] * hidden();
    std::memcpy(to, p.y.data() + i * hidden(), size_of(hidden()) * 4);
  }
}

void run_activation(Activation activation, bool gated, const float* x, std::int64_t tokens,
                    std::int64_t size, float* y, Level limit, ThreadPool& pool) {
  const FloatMode mode(FloatMode::Subnormals::ieee);
  activate(activation, gated, x, tokens, size, y, limit, pool);
}

}  // namespace forerun::cpu
