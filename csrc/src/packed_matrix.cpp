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

}  // namespace

const char* precision_name(Precision precision) {
  switch (precision) {
    case Precision::fp32: return "fp32";
    case Precision::bf16: return "bf16";
    case Precision::int8: return "int8";
    case Precision::int4: return "int4";
    case Precision::int8_offset: return "int8_offset";
    default: return "int4_offset";
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

int MatrixShape::zero_code() const { return has_offset() ? 0 : bytes_wide() ? 128 : 8; }

std::int64_t MatrixShape::lines() const {
  const int v = values_per_line();
  return (cols + v - 1) / v;
}

std::int64_t MatrixShape::groups() const { return grouped() ? (cols + group - 1) / group : 0; }

int MatrixShape::lines_per_group() const { return grouped() ? group / values_per_line() : 0; }

std::size_t MatrixShape::line_offset(std::int64_t line) const {
  const std::int64_t scales =
      grouped() ? line / lines_per_group() / groups_per_scale_line() + 1 : 0;
  return static_cast<std::size_t>(line + scales) * kLineBytes;
}

std::size_t MatrixShape::scale_place(std::int64_t group_index) const {
  const int n = groups_per_scale_line();
  const std::int64_t unit_lines = n * lines_per_group() + 1;
  return static_cast<std::size_t>(group_index / n * unit_lines) * kLineBytes +
         static_cast<std::size_t>(group_index % n) * (kLineBytes / 2);
}

PackedMatrix::PackedMatrix(const MatrixShape& shape, std::uint8_t* memory)
    : shape_(shape), memory_(memory) {
  // Rows past the end of the last block are never packed: zero weights, at the zero point.
  if (!shape.grouped() || shape.has_offset()) return;
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
      (rows.offsets != nullptr) != shape_.has_offset()) {
    throw std::invalid_argument(std::string("codes in groups of ") + std::to_string(shape_.group) +
                                " do not fit into " + precision_name(shape_.precision));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t r = first + i;
    const auto lane = static_cast<std::size_t>(r % kBlockRows);
    std::uint8_t* block = memory_ + static_cast<std::size_t>(r / kBlockRows) * shape_.block_bytes();
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
  for (std::int64_t i = 0; i < shape_.lines(); ++i) {
    const std::size_t line = shape_.line_offset(i);
    std::memcpy(here + line + 4 * target, there + line + 4 * source, 4);
  }
  for (std::int64_t g = 0; g < shape_.groups(); ++g) {
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
    default: unpack_grouped(row, lane, out); break;
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

}  // namespace forerun::cpu
