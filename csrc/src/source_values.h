// Weights as they are stored, read as floats.
#pragma once

#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "forerun/packed_matrix.h"
#include "numbers.h"

namespace forerun::cpu {
namespace {

// Whole rows at a time, without a choice inside of the loops: they run over billions of values.
template <class Value, class Convert>
void convert_values(const Value* source, std::int64_t count, float* out, Convert convert) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = convert(source[i]);
}

// `count` values from the one at `offset` on. Throws std::domain_error for one that is not finite.
inline void read_values(const void* source, SourceType type, std::int64_t offset,
                        std::int64_t count, float* out) {
  const auto* halves = static_cast<const std::uint16_t*>(source) + offset;
  switch (type) {
    case SourceType::bf16: convert_values(halves, count, out, bf16_to_float); break;
    case SourceType::fp16: convert_values(halves, count, out, half_to_float); break;
    case SourceType::fp32:
      convert_values(static_cast<const float*>(source) + offset, count, out,
                     [](float x) { return x; });
      break;
  }
  // x - x is 0 for numbers alone.
  float sum = 0.0f;
  for (std::int64_t i = 0; i < count; ++i) sum += out[i] - out[i];
  if (sum != 0.0f || std::isnan(sum)) throw std::domain_error("a weight is not finite");
}

}  // namespace
}  // namespace forerun::cpu
