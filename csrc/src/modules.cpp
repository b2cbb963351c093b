#include "forerun/modules.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "float_mode.h"
#include "floats.h"
#include "forerun/vector_ops.h"
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
  Norm norm;
  Level limit;
  Floats normed;  // [tokens, cols]
};

LinearModule::LinearModule(const LinearSource& source, const Packing& packing, ThreadPool& pool,
                           std::vector<float> norm, float eps) {
  if (!norm.empty() && norm.size() != size_of(source.cols)) {
    throw std::invalid_argument("norm has a shape that does not fit");
  }
  check_finite(norm);
  const MatrixShape shape = shape_of(source, packing);
  Buffer memory(shape.bytes());
  Linear linear = make_linear(source, shape, memory.data(), pool);
  parts_.reset(new Parts{std::move(memory),
                         std::move(linear),
                         ActivationSet(packing.limit),
                         {std::move(norm), {}, eps},
                         packing.limit,
                         {}});
}

LinearModule::~LinearModule() = default;

std::int64_t LinearModule::rows() const { return parts_->linear.matrix.shape().rows; }
std::int64_t LinearModule::cols() const { return parts_->linear.matrix.shape().cols; }
std::size_t LinearModule::weight_bytes() const { return parts_->memory.size(); }

void LinearModule::run(const float* x, std::int64_t tokens, float* y, ThreadPool& pool) {
  if (tokens < 1) return;
  const FloatMode mode(FloatMode::Subnormals::ieee);
  Parts& p = *parts_;
  if (!p.norm.weight.empty()) {
    p.normed.reserve(tokens * cols());
    p.norm.run(x, tokens, p.normed.data(), p.limit, pool);
    x = p.normed.data();
  }
  p.linear.run(x, tokens, y, p.activations, pool);
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

struct LayerModule::Parts {
  explicit Parts(const Packing& packing, LayerSource& source)
      : rotary(std::move(source.inverse_frequencies), source.rotary_scale),
        space(packing.limit),
        cache(cache_precision(packing.precision)),
        normed_residual(source.normed_residual),
        whole(source.mlp.has_value()) {}

  // The inputs of each token that is not padding, by `norms`, side by side in `x`; what is added to
  // in `residual`, where it is given.
  void read(const std::vector<LayerInput>& inputs, const std::vector<Norm>& norms,
            const NewTokens& tokens, float* residual, ThreadPool& pool);

  Buffer memory;
  SelfAttention attention;
  std::vector<Norm> input_norms;
  Norm mlp_norm;
  Mlp mlp;
  RotaryTable rotary;
  LayerSpace space;
  Precision cache;
  bool normed_residual;
  bool whole;
  Floats x;  // [tokens, cols]
  Floats y;  // [tokens, hidden], where there is padding between
};

namespace {

void fit(bool fits, const char* what) {
  if (!fits) throw std::invalid_argument(what);
}

void check(const MlpSource& mlp, std::int64_t hidden) {
  fit(mlp.down.cols > 0 && mlp.up.rows == 2 * mlp.down.cols && mlp.up.cols == hidden &&
          mlp.down.rows == hidden && mlp.norm.size() == size_of(hidden),
      "the matrices and the norm of the MLP do not fit each other");
  check_finite(mlp.norm);
}

void check(const LayerSource& source) {
  for (const std::int64_t size : {source.heads, source.kv_heads, source.head_dim}) {
    fit(size >= 1 && size <= (1 << 20), "a size is out of range");
  }
  fit(source.heads % source.kv_heads == 0, "heads do not share keys evenly");
  fit(source.qkv.rows == (source.heads + 2 * source.kv_heads) * source.head_dim &&
          source.output.cols == source.heads * source.head_dim,
      "qkv and output do not fit the heads");
  for (const auto* norm : {&source.q_norm, &source.k_norm}) {
    fit(norm->empty() || norm->size() == size_of(source.head_dim),
        "the norms of queries and keys have a weight for each dimension");
    check_finite(*norm);
  }
  fit(source.inverse_frequencies.empty() ||
          2 * source.inverse_frequencies.size() == size_of(source.head_dim),
      "a rotary embedding turns half of head_dim pairs");
  fit(source.window >= 0, "a window is 0 for none, or positive");
  fit(!source.input_norms.empty(), "a layer has at least one input");
  for (const auto& norm : source.input_norms) check_finite(norm);
  if (source.mlp) check(*source.mlp, source.output.rows);
}

void check(const std::vector<LayerInput>& inputs, const std::vector<Norm>& norms, std::int64_t cols,
           std::int64_t residual) {
  bool fits = inputs.size() == norms.size();
  for (std::size_t i = 0; fits && i < inputs.size(); ++i) {
    fits = inputs[i].size > 0 && (norms[i].size() == 0 || norms[i].size() == inputs[i].size);
    cols -= inputs[i].size;
  }
  fit(fits && cols == 0 && (residual == 0 || inputs.back().size == residual),
      "x has a shape that does not fit");
}

}  // namespace

LayerModule::LayerModule(LayerSource source, const Packing& packing, ThreadPool& pool) {
  check(source);
  auto parts = std::make_unique<Parts>(packing, source);
  SelfAttention& attention = parts->attention;
  std::vector<std::pair<const LinearSource*, Linear*>> matrices = {
      {&source.qkv, &attention.qkv}, {&source.output, &attention.output}};
  if (source.mlp) {
    matrices.emplace_back(&source.mlp->up, &parts->mlp.up);
    matrices.emplace_back(&source.mlp->down, &parts->mlp.down);
    parts->mlp_norm = {std::move(source.mlp->norm), {}, source.norm_eps};
    parts->mlp.activation = source.mlp->activation;
  }
  std::size_t bytes = 0;
  for (const auto& [from, to] : matrices) bytes += shape_of(*from, packing).bytes();
  parts->memory = Buffer(bytes);
  std::uint8_t* at = parts->memory.data();
  for (const auto& [from, to] : matrices) {
    const MatrixShape shape = shape_of(*from, packing);
    *to = make_linear(*from, shape, at, pool);
    at += shape.bytes();
  }
  attention.shape = {source.heads, source.kv_heads, source.head_dim};
  attention.window = source.window;
  attention.norm_eps = source.norm_eps;
  attention.rotary = &parts->rotary;
  attention.q_norm = std::move(source.q_norm);
  attention.k_norm = std::move(source.k_norm);
  for (auto& norm : source.input_norms) {
    parts->input_norms.push_back({std::move(norm), {}, source.norm_eps});
  }
  parts_ = std::move(parts);
}

LayerModule::~LayerModule() = default;

std::int64_t LayerModule::cols() const { return parts_->attention.qkv.matrix.shape().cols; }
std::int64_t LayerModule::hidden() const { return parts_->attention.output.matrix.shape().rows; }
std::size_t LayerModule::weight_bytes() const { return parts_->memory.size(); }

KvCache::Shape LayerModule::cache_shape(std::int64_t rows, std::int64_t capacity) const {
  const AttentionShape& shape = parts_->attention.shape;
  return {parts_->cache, 1, rows, shape.kv_heads, shape.head_dim, capacity};
}

void LayerModule::Parts::read(const std::vector<LayerInput>& inputs, const std::vector<Norm>& norms,
                              const NewTokens& tokens, float* residual, ThreadPool& pool) {
  const std::int64_t cols = attention.qkv.matrix.shape().cols;
  const std::int64_t count = tokens.count();
  const VectorOps& ops = vector_ops(space.limit);
  x.reserve(count * cols);
  pool.for_ranges(count, grain(count, cols, pool), [&](const Range& r) {
    for (std::int64_t i = r.begin; i < r.end; ++i) {
      float* to = x.data() + i * cols;
      for (std::size_t k = 0; k < inputs.size(); ++k) {
        const std::int64_t size = inputs[k].size;
        const float* from = inputs[k].values + tokens.indices[size_of(i)] * size;
        const Norm& norm = norms[k];
        if (norm.weight.empty()) std::memcpy(to, from, size_of(size) * 4);
        else ops.rms_norm(from, norm.weight.data(), norm.eps, size, to);
        if (residual != nullptr && k + 1 == inputs.size()) {
          std::memcpy(residual + i * size, normed_residual ? to : from, size_of(size) * 4);
        }
        to += size;
      }
    }
  });
}

void LayerModule::run(const BatchRows& batch, const std::vector<LayerInput>& inputs, float* y,
                      ThreadPool& pool) {
  Parts& p = *parts_;
  check_cache(batch.cache->shape(), cache_shape(1, 1));
  check(inputs, p.input_norms, cols(), p.whole ? hidden() : 0);
  const FloatMode mode(FloatMode::Subnormals::ieee);
  const NewTokens tokens = take_slots(batch);
  const std::int64_t count = tokens.count();
  if (count == 0) return;
  const bool gap = tokens.indices.back() != count - 1;
  if (gap) p.y.reserve(count * hidden());
  float* out = gap ? p.y.data() : y;
  p.read(inputs, p.input_norms, tokens, p.whole ? out : nullptr, pool);
  p.rotary.reach(tokens.furthest);
  LayerRun run{*batch.cache, tokens, p.space, pool};
  p.attention.prepare(run);
  if (p.whole) {
    p.space.normed.reserve(count * hidden());
    p.attention.run(run, 0, p.x.data(), out, true, &p.mlp.up.matrix);
    p.mlp_norm.run(out, count, p.space.normed.data(), p.space.limit, pool);
    p.mlp.run(run, p.space.normed.data(), out, true, nullptr);
  } else {
    p.attention.run(run, 0, p.x.data(), out);
  }
  for (std::int64_t i = 0; gap && i < count; ++i) {
    float* to = y + tokens.indices[size_of(i)] * hidden();
    std::memcpy(to, out + i * hidden(), size_of(hidden()) * 4);
  }
}

void run_activation(Activation activation, bool gated, const float* x, std::int64_t tokens,
                    std::int64_t size, float* y, Level limit, ThreadPool& pool) {
  if (activation == Activation::clamped_swiglu && !gated)
    throw std::invalid_argument("the activation is a gate and takes twice as many values");
  const FloatMode mode(FloatMode::Subnormals::ieee);
  activate(activation, gated, x, tokens, size, y, limit, pool);
}

}  // namespace forerun::cpu
