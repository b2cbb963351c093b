#include "forerun/gated_mlp.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "float_mode.h"
#include "forerun/vector_ops.h"

namespace forerun::cpu {
namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

}  // namespace

GatedMlp::GatedMlp(const GatedMlpSource& source, Precision precision, Level limit)
    : limit_(limit), norm_eps_(source.norm_eps), activations_(precision, 0, limit) {
  const std::int64_t most = std::int64_t{1} << 30;
  if (source.hidden < 1 || source.inner < 1 || source.hidden > most || source.inner > most) {
    throw std::invalid_argument("a size of the adapter is out of range");
  }
  norm_.assign(source.norm, source.norm + source.hidden);
  for (const float value : norm_) {
    if (!std::isfinite(value)) throw std::domain_error("a weight of the adapter is not finite");
  }
  const MatrixShape wide = MatrixShape::make(precision, 2 * source.inner, source.hidden);
  const MatrixShape narrow = MatrixShape::make(precision, source.hidden, source.inner);
  memory_ = Buffer(wide.bytes() + narrow.bytes());
  gate_up_ = PackedMatrix(wide, memory_.data());
  down_ = PackedMatrix(narrow, memory_.data() + wide.bytes());
  gate_up_.pack_rows(0, source.inner, source.gate, SourceType::fp32, source.hidden);
  gate_up_.pack_rows(source.inner, source.inner, source.up, SourceType::fp32, source.hidden);
  down_.pack_rows(0, source.hidden, source.down, SourceType::fp32, source.inner);
}

void GatedMlp::run(const float* x, std::int64_t tokens, float* y, ThreadPool& pool) {
  if (tokens < 1) return;
  const FloatMode mode(FloatMode::Subnormals::ieee);
  const VectorOps& ops = vector_ops(limit_);
  const std::int64_t width = hidden();
  const std::int64_t inner = gate_up_.shape().rows / 2;
  normed_.resize(size(tokens * width));
  gate_up_values_.resize(size(tokens * 2 * inner));
  inner_.resize(size(tokens * inner));
  for (std::int64_t i = 0; i < tokens; ++i) {
    ops.rms_norm(x + i * width, norm_.data(), norm_eps_, width, normed_.data() + i * width);
  }
  activations_.pack(normed_.data(), tokens, width, width, pool);
  linear(gate_up_, activations_, gate_up_values_.data(), 2 * inner, pool, {nullptr, false, &down_});
  for (std::int64_t i = 0; i < tokens; ++i) {
    const float* gate = gate_up_values_.data() + i * 2 * inner;
    ops.silu_mul(gate, gate + inner, inner, inner_.data() + i * inner);
  }
  activations_.pack(inner_.data(), tokens, inner, inner, pool);
  if (y != x) std::memcpy(y, x, size(tokens * width) * sizeof(float));
  linear(down_, activations_, y, width, pool, {nullptr, true, nullptr});
}

}  // namespace forerun::cpu
