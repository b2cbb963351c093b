#include "forerun/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "numbers.h"
#include "quantize.h"
#include "source_values.h"

namespace forerun::cpu {
namespace {

constexpr std::int64_t kMaxSide = std::int64_t{1} << 31;

// Each group costs a multiply and an FMA beside its dot products: one operation in nine for int8 in
// groups of 64, half of that in 128. int4 needs the finer scale.
constexpr int kDefaultGroupInt8 = 64;
constexpr int kDefaultGroupInt4 = 32;

void pack_fp32(const std::vector<float>& row, std::uint8_t* lane) {
  for (std::size_t i = 0; i < row.size(); ++i) std::memcpy(lane + i * kLineBytes, &row[i], 4);
}

void pack_bf16(const std::vector<float>& row, std::uint8_t* lane) {
  check_bf16(row.data(), static_cast<std::int64_t>(row.size()));
  std::size_t i = 0;
  for (; i + 1 < row.size(); i += 2, lane += kLineBytes) {
    const std::uint32_t pair = float_to_bf16(row[i]) | std::uint32_t{float_to_bf16(row[i + 1])}
                                                           << 16;
    std::memcpy(lane, &pair, 4);
  }
  if (i < row.size()) {
    const std::uint16_t h = float_to_bf16(row[i]);
    std::memcpy(lane, &h, 2);
  }
}

void unpack_fp32(const std::uint8_t* lane, std::int64_t cols, float* out) {
  for (std::int64_t k = 0; k < cols; ++k)
    std::memcpy(&out[k], lane + k * std::int64_t{kLineBytes}, 4);
}

void unpack_bf16(const std::uint8_t* lane, std::int64_t cols, float* out) {
  for (std::int64_t k = 0; k < cols; ++k) {
    std::uint16_t h;
    std::memcpy(&h, lane + k / 2 * std::int64_t{kLineBytes} + k % 2 * 2, 2);
    out[k] = bf16_to_float(h);
  }
}

// Of one row, whose lane is `lane`.
void block_scale(const MatrixShape& shape, const std::uint8_t* lane, std::int64_t group,
                 float& scale, float& offset) {
  const std::int64_t index = group % shape.groups_per_part();
  const std::uint8_t* scales = lane + shape.scale_place(group);
  std::uint16_t halves[2];
  offset = 0.0f;
  if (!shape.has_factors()) {
    std::memcpy(halves, scales + 2 * index, sizeof halves[0]);
    scale = half_to_float(halves[0]);
    return;
  }
  const std::int64_t super = group * shape.group / shape.super_columns() * shape.super_lines();
  std::memcpy(halves, lane + super * std::int64_t{kLineBytes}, sizeof halves);
  if (!shape.has_offset()) {
    scale = static_cast<float>(static_cast<std::int8_t>(scales[index])) * half_to_float(halves[0]);
    return;
  }
  scale = static_cast<float>(scales[2 * index]) * half_to_float(halves[0]);
  offset = static_cast<float>(scales[2 * index + 1]) * half_to_float(halves[1]);
}

}  // namespace

const char* precision_name(Precision precision) {
  switch (precision) {
    case Precision::fp32: return "fp32";
    case Precision::bf16: return "bf16";
    case Precision::int8: return "int8";
    case Precision::int4: return "int4";
    case Precision::int8_offset: return "int8_offset";
    case Precision::int4_offset: return "int4_offset";
    case Precision::q4_k: return "q4_k";
    case Precision::q5_k: return "q5_k";
    case Precision::q6_k: return "q6_k";
    case Precision::q5_0: return "q5_0";
    case Precision::iq4_nl: return "iq4_nl";
    default: return "iq4_xs";
  }
}

Precision precision_named(const std::string& name) {
  for (int i = 0; i < kNumPrecisions; ++i) {
    const auto precision = static_cast<Precision>(i);
    if (name == precision_name(precision)) return precision;
  }
  throw std::invalid_argument("no precision " + name);
}

MatrixShape MatrixShape::make(Precision precision, std::int64_t rows, std::int64_t cols,
                              int group) {
  if (rows < 1 || cols < 1 || rows >= kMaxSide || cols >= kMaxSide) {
    throw std::invalid_argument("a matrix needs 1 to 2^31 - 1 rows and columns, not " +
                                std::to_string(rows) + " x " + std::to_string(cols));
  }
  MatrixShape shape{precision, rows, cols, 0};
  if (!shape.grouped()) return shape;
  if (shape.blockwise()) {
    shape.group = precision == Precision::q6_k ? 16 : 32;
    return shape;
  }
  if (group == 0) group = shape.bytes_wide() ? kDefaultGroupInt8 : kDefaultGroupInt4;
  if (group != 32 && group != 64 && group != 128) {
    throw std::invalid_argument("a group has 32, 64 or 128 columns, not " + std::to_string(group));
  }
  shape.group = group;
  return shape;
}

int MatrixShape::values_per_line() const {
  switch (precision) {
    case Precision::fp32: return 1;
    case Precision::bf16: return 2;
    default: return bytes_wide() ? 4 : 8;
  }
}

int MatrixShape::zero_code() const {
  if (has_offset() || listed()) return 0;
  return blockwise() ? 8 << upper_bits() : bytes_wide() ? 128 : 8;
}

std::int64_t MatrixShape::lines() const {
  if (blockwise()) return supers() * super_values();
  const int v = values_per_line();
  return (cols + v - 1) / v;
}

std::int64_t MatrixShape::groups() const { return grouped() ? (cols + group - 1) / group : 0; }

int MatrixShape::lines_per_group() const {
  if (blockwise()) return group / 8 + (upper_bits() > 0 ? 1 : 0);
  return grouped() ? group / values_per_line() : 0;
}

std::size_t MatrixShape::line_offset(std::int64_t line) const {
  if (blockwise()) {
    const std::int64_t part = line / (super_values() / super_parts());
    const std::int64_t heads = has_factors() ? part / super_parts() + 1 : 0;
    return static_cast<std::size_t>(line + part + 1 + heads) * kLineBytes;
  }
  const std::int64_t scales =
      grouped() ? line / lines_per_group() / groups_per_scale_line() + 1 : 0;
  return static_cast<std::size_t>(line + scales) * kLineBytes;
}

std::size_t MatrixShape::scale_place(std::int64_t group_index) const {
  if (blockwise()) {
    const std::int64_t in_part = groups_per_part();
    const std::int64_t first = group_index / in_part * in_part * lines_per_group();
    return line_offset(first) - kLineBytes;
  }
  const int n = groups_per_scale_line();
  const std::int64_t unit_lines = n * lines_per_group() + 1;
  return static_cast<std::size_t>(group_index / n * unit_lines) * kLineBytes +
         static_cast<std::size_t>(group_index % n) * (kLineBytes / 2);
}

PackedMatrix::PackedMatrix(const MatrixShape& shape, std::uint8_t* memory)
    : shape_(shape), memory_(memory) {
  if (shape.blockwise() && shape.cols % shape.super_columns() != 0) {
    throw std::invalid_argument(std::string(precision_name(shape.precision)) + " takes " +
                                std::to_string(shape.super_columns()) + " columns at a time, not " +
                                std::to_string(shape.cols));
  }
  // Rows past the end of the last block are never packed: zero weights, at the zero point.
  if (!shape.grouped() || shape.has_offset() || shape.blockwise()) return;
  // Their scales stay zero.
  const int zero = shape.bytes_wide() ? 128 : 0x88;
  std::uint8_t* last = memory + static_cast<std::size_t>(shape.blocks() - 1) * shape.block_bytes();
  for (std::int64_t i = 0; i < shape.lines(); ++i)
    std::memset(last + shape.line_offset(i), zero, kLineBytes);
}

void PackedMatrix::check_rows(std::int64_t first, std::int64_t count) const {
  if (first < 0 || count < 0 || first + count > shape_.rows) {
    throw std::invalid_argument("rows " + std::to_string(first) + " + " + std::to_string(count) +
                                " do not lie in a matrix of " + std::to_string(shape_.rows));
  }
}

void PackedMatrix::pack_rows(std::int64_t first, std::int64_t count, const void* source,
                             SourceType type, std::int64_t stride) {
  check_rows(first, count);
  if (stride < shape_.cols) throw std::invalid_argument("the stride is shorter than a row");
  if (shape_.blockwise()) {
    throw std::invalid_argument(std::string("weights are not quantized to ") +
                                precision_name(shape_.precision) + " here");
  }
  std::vector<float> row(static_cast<std::size_t>(shape_.cols));
  for (std::int64_t i = 0; i < count; ++i) {
    read_values(source, type, i * stride, shape_.cols, row.data());
    const std::int64_t r = first + i;
    const auto lane = static_cast<std::size_t>(r % kBlockRows);
    std::uint8_t* block = memory_ + static_cast<std::size_t>(r / kBlockRows) * shape_.block_bytes();
    switch (shape_.precision) {
      case Precision::fp32: pack_fp32(row, block + lane * 4); break;
      case Precision::bf16: pack_bf16(row, block + lane * 4); break;
      default: quantize_row(shape_, row.data(), lane, block); break;
    }
  }
}

void PackedMatrix::pack_codes(std::int64_t first, std::int64_t count, const CodedRows& rows) {
  check_rows(first, count);
  if (!shape_.grouped() || shape_.cols % shape_.group != 0 ||
      (rows.offsets != nullptr) != (shape_.offsets() > 0)) {
    throw std::invalid_argument(std::string("codes in groups of ") + std::to_string(shape_.group) +
                                " do not fit into " + precision_name(shape_.precision));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t r = first + i;
    const auto lane = static_cast<std::size_t>(r % kBlockRows);
    std::uint8_t* block = memory_ + static_cast<std::size_t>(r / kBlockRows) * shape_.block_bytes();
    if (shape_.blockwise()) {
      store_blocks(shape_, lane,
                   {rows.codes + i * shape_.cols, rows.scales + i * shape_.groups(),
                    rows.offsets + i * shape_.offsets()},
                   block);
      continue;
    }
    for (std::int64_t g = 0; g < shape_.groups(); ++g) {
      const std::int64_t at = i * shape_.groups() + g;
      const std::uint16_t offset = rows.offsets == nullptr ? std::uint16_t{0} : rows.offsets[at];
      store_group(shape_, g, lane, {rows.codes + at * shape_.group, rows.scales[at], offset},
                  block);
    }
  }
}

void PackedMatrix::copy_row(std::int64_t to, const PackedMatrix& from, std::int64_t row) {
  const auto source = static_cast<std::size_t>(row % kBlockRows);
  const auto target = static_cast<std::size_t>(to % kBlockRows);
  const std::uint8_t* there = from.block(row / kBlockRows);
  std::uint8_t* here = memory_ + static_cast<std::size_t>(to / kBlockRows) * shape_.block_bytes();
  const bool all = shape_.blockwise();  // lines are alike
  for (std::int64_t i = 0; i < (all ? shape_.all_lines() : shape_.lines()); ++i) {
    const std::size_t line = all ? static_cast<std::size_t>(i) * kLineBytes : shape_.line_offset(i);
    std::memcpy(here + line + 4 * target, there + line + 4 * source, 4);
  }
  for (std::int64_t g = 0; !all && g < shape_.groups(); ++g) {
    std::size_t place = shape_.scale_place(g);
    std::memcpy(here + place + 2 * target, there + place + 2 * source, 2);
    if (!shape_.has_offset()) continue;
    place += kLineBytes / 2;
    std::memcpy(here + place + 2 * target, there + place + 2 * source, 2);
  }
}

PackedMatrix PackedMatrix::first_rows(std::int64_t count) const {
  PackedMatrix part = *this;
  part.shape_.rows = count;
  return part;
}

void PackedMatrix::unpack_row(std::int64_t row, float* out) const {
  const std::uint8_t* lane =
      block(row / kBlockRows) + static_cast<std::size_t>(row % kBlockRows) * 4;
  const std::int64_t cols = shape_.cols;
  switch (shape_.precision) {
    case Precision::fp32: unpack_fp32(lane, cols, out); break;
    case Precision::bf16: unpack_bf16(lane, cols, out); break;
    default: shape_.blockwise() ? unpack_blocks(lane, out) : unpack_grouped(row, lane, out); break;
  }
}

void PackedMatrix::unpack_grouped(std::int64_t row, const std::uint8_t* lane, float* out) const {
  const bool bytes = shape_.bytes_wide();
  const int zero = shape_.zero_code();
  const int per_line = shape_.values_per_line();
  const std::uint8_t* scales =
      block(row / kBlockRows) + static_cast<std::size_t>(row % kBlockRows) * 2;
  for (std::int64_t g = 0; g < shape_.groups(); ++g) {
    std::uint16_t h;
    std::memcpy(&h, scales + shape_.scale_place(g), 2);
    const float scale = half_to_float(h);
    float offset = 0.0f;
    if (shape_.has_offset()) {
      std::memcpy(&h, scales + shape_.scale_place(g) + kLineBytes / 2, 2);
      offset = half_to_float(h);
    }
    const std::int64_t begin = g * shape_.group;
    const std::int64_t end = std::min<std::int64_t>(begin + shape_.group, shape_.cols);
    const std::uint8_t* line = lane + shape_.line_offset(begin / per_line);
    for (std::int64_t k = begin; k < end; ++k) {
      const std::int64_t at = k % per_line;
      if (at == 0 && k != begin) line += kLineBytes;
      const int code = bytes ? line[at] : at < 4 ? line[at] & 15 : line[at - 4] >> 4;
      out[k] = scale * static_cast<float>(code - zero) + offset;
    }
  }
}

void PackedMatrix::unpack_blocks(const std::uint8_t* lane, float* out) const {
  const int group = shape_.group;
  const int bits = shape_.upper_bits();
  for (std::int64_t g = 0; g < shape_.groups(); ++g) {
    float scale;
    float offset;
    block_scale(shape_, lane, g, scale, offset);
    const std::uint8_t* upper = lane + shape_.line_offset(g * shape_.lines_per_group());
    const std::uint8_t* line = upper + (bits > 0 ? kLineBytes : 0);
    for (int k = 0; k < group; ++k) {
      const int nibble = line[k / 8 * static_cast<int>(kLineBytes) + k % 4] >> (k % 8 / 4 * 4) & 15;
      const int high = bits == 0 ? 0 : upper[k % 4] >> (k / 4 * bits) & ((1 << bits) - 1);
      const int value =
          shape_.listed() ? kListed[nibble] : (nibble | high << 4) - shape_.zero_code();
      out[g * group + k] = scale * static_cast<float>(value) + offset;
    }
  }
}

}  // namespace forerun::cpu
