#include "quantize.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "numbers.h"

namespace forerun::cpu {
namespace {

constexpr int kMaxGroup = 128;

// Weights are divided by the scale as it is stored, so its rounding costs range, never consistency.
struct Scale {
  std::uint16_t stored;
  float value;
  float inverse;  // 0 where the group is zero or too small for fp16
};

Scale make_scale(float wanted) {
  const std::uint16_t stored = float_to_half(wanted);
  const float value = half_to_float(stored);
  if (!std::isfinite(value)) throw std::domain_error("a weight is too large for an fp16 scale");
  return {stored, value, value == 0.0f ? 0.0f : 1.0f / value};
}

inline int quantize(float x, float inverse, int low, int high) {
  const int q = round_to_int(x * inverse);
  return q < low ? low : q > high ? high : q;
}

// The largest magnitude.
float largest(const float* x, std::int64_t n) {
  float best = 0.0f;
  for (std::int64_t i = 0; i < n; ++i) best = std::max(best, std::fabs(x[i]));
  return best;
}

// The value of the largest magnitude, with its sign.
float extreme(const float* x, std::int64_t n) {
  float best = 0.0f;
  for (std::int64_t i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > std::fabs(best)) best = x[i];
  }
  return best;
}

// In lanes, which the compiler may keep side by side; n is a multiple of them but for a last group.
float squared_error(const float* x, std::int64_t n, const Scale& s) {
  constexpr int kLanes = 16;
  float sums[kLanes] = {};
  const auto add = [&](std::int64_t i, int lane) {
    const float d = x[i] - s.value * static_cast<float>(quantize(x[i], s.inverse, -8, 7));
    sums[lane] += d * d;
  };
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
  }
  for (int lane = 0; i + lane < n; ++lane) add(i + lane, lane);
  float total = 0.0f;
  for (const float sum : sums) total += sum;
  return total;
}

// int4 has one step more on the negative side: the extreme value goes there, by the sign of the
// scale. Saturating it a little may cost less than a coarser step costs all the others, so a few
// scales are tried and the least squared error wins.
Scale best_int4_scale(const float* x, std::int64_t n) {
  const float peak = extreme(x, n);
  Scale best{};
  float least = INFINITY;
  for (const float steps : {-8.0f, -8.5f, -9.0f, -7.5f, 7.5f}) {
    const Scale s = make_scale(peak / steps);
    const float error = squared_error(x, n, s);
    if (error < least) {
      least = error;
      best = s;
    }
  }
  return best;
}

}  // namespace

void check_bf16(const float* row, std::int64_t count) {
  constexpr float kLargest = 3.3895313e38f;  // 2^127 * (2 - 2^-7)
  constexpr float kHalfStep = 6.6461399e35f;
  if (largest(row, count) >= kLargest + kHalfStep)
    throw std::domain_error("a weight is too large for bf16");
}

void store_group(const MatrixShape& shape, std::int64_t index, std::size_t lane,
                 const CodedGroup& group, std::uint8_t* block) {
  if (!std::isfinite(half_to_float(group.scale)) || !std::isfinite(half_to_float(group.offset)))
    throw std::domain_error("a scale is not finite");
  const std::int64_t begin = index * shape.group;
  const std::int64_t count = std::min<std::int64_t>(shape.group, shape.cols - begin);
  std::uint8_t* scale = block + shape.scale_place(index) + lane * 2;
  std::memcpy(scale, &group.scale, 2);
  if (shape.has_offset()) std::memcpy(scale + kLineBytes / 2, &group.offset, 2);
  std::uint8_t* line = block + shape.line_offset(begin / shape.values_per_line()) + lane * 4;
  std::uint8_t q[kMaxGroup + 8];
  std::memcpy(q, group.codes, static_cast<std::size_t>(count));
  std::memset(q + count, shape.zero_code(), 8);
  if (shape.bytes_wide()) {
    for (std::int64_t i = 0; i < count; i += 4, line += kLineBytes) std::memcpy(line, q + i, 4);
    return;
  }
  int high = 0;
  for (std::int64_t i = 0; i < count; ++i) high |= q[i];
  if (high > 15) throw std::domain_error("a code does not fit into 4 bits");
  for (std::int64_t i = 0; i < count; i += 8, line += kLineBytes) {
    for (int j = 0; j < 4; ++j) line[j] = static_cast<std::uint8_t>(q[i + j] | q[i + j + 4] << 4);
  }
}

void store_blocks(const MatrixShape& shape, std::size_t lane, const CodedRows& row,
                  std::uint8_t* block) {
  std::uint8_t* to = block + lane * 4;
  for (std::int64_t i = 0; i < shape.offsets(); i += 2) {
    const std::uint16_t* factors = row.offsets + i;
    if (!std::isfinite(half_to_float(factors[0])) || !std::isfinite(half_to_float(factors[1])))
      throw std::domain_error("a scale is not finite");
    std::memcpy(to + i / 2 * shape.super_lines() * std::int64_t{kLineBytes}, factors, 4);
  }
  const int bits = shape.upper_bits();
  const std::int64_t in_part = shape.groups_per_part();
  const std::int64_t scale_bytes = 4 / in_part;
  for (std::int64_t g = 0; g < shape.groups(); ++g) {
    if (!shape.has_factors() && !std::isfinite(half_to_float(row.scales[g])))
      throw std::domain_error("a scale is not finite");
    std::memcpy(to + shape.scale_place(g) + g % in_part * scale_bytes, row.scales + g,
                static_cast<std::size_t>(scale_bytes));
    const std::uint8_t* codes = row.codes + g * shape.group;
    std::uint8_t* upper = to + shape.line_offset(g * shape.lines_per_group());
    std::uint8_t* line = upper + (bits > 0 ? kLineBytes : 0);
    for (int k = 0; k < shape.group; ++k) {
      if (codes[k] >> (4 + bits) != 0) throw std::domain_error("a code does not fit");
      line[k / 8 * static_cast<int>(kLineBytes) + k % 4] |=
          static_cast<std::uint8_t>((codes[k] & 15) << (k % 8 / 4 * 4));
      if (bits > 0) upper[k % 4] |= static_cast<std::uint8_t>(codes[k] >> 4 << (k / 4 * bits));
    }
  }
}

void quantize_row(const MatrixShape& shape, const float* row, std::size_t lane,
                  std::uint8_t* block) {
  for (std::int64_t g = 0; g < shape.groups(); ++g) {
    const std::int64_t begin = g * shape.group;
    const std::int64_t count = std::min<std::int64_t>(shape.group, shape.cols - begin);
    const float* x = row + begin;
    const int most = shape.bytes_wide() ? 255 : 15;
    const int zero = shape.zero_code();
    Scale offset{};
    Scale scale;
    if (shape.has_offset()) {
      const auto [low, high] = std::minmax_element(x, x + count);
      offset = make_scale(*low);
      scale = make_scale((*high - offset.value) / static_cast<float>(most));
    } else if (shape.bytes_wide()) {
      scale = make_scale(largest(x, count) / 127.0f);
    } else {
      scale = best_int4_scale(x, count);
    }
    // A symmetric byte never takes -128.
    const int least = zero == 128 ? 1 : 0;
    std::uint8_t q[kMaxGroup];
    for (std::int64_t i = 0; i < count; ++i) {
      const float centred = x[i] - offset.value;
      const int code = quantize(centred, scale.inverse, least - zero, most - zero);
      q[i] = static_cast<std::uint8_t>(code + zero);
    }
    store_group(shape, g, lane, {q, scale.stored, offset.stored}, block);
  }
}

}  // namespace forerun::cpu
