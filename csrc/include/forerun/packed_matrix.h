// Weights in the order in which the kernels read them.
//
// Rows are gathered in blocks of 16. A block is a run of 64-byte lines along k; a line holds, for
// each of its 16 rows, the 4 bytes that one lane of the instruction takes:
//   fp32  1 value      bf16  2 values (vdpbf16ps)      int8  4 values + 128 (vpdpbusd)
//   int4  8 nibbles + 8: the low ones are values 0..3, the high ones 4..7
// int8 and int4 have one fp16 scale for each group of columns and row. A line of scales stands
// before each pair of groups, so that a block is one stream.
//   int8_offset, int4_offset: the same with codes from 0 on and an fp16 offset beside each scale;
//   a line of scales and offsets stands before each group. A weight is scale * code + offset, as in
//   the blocks of llama.cpp's Q4_1.
//   q4_k, q5_k, q6_k: llama.cpp's blocks of 256 columns, number for number. Before each there is a
//   line of two fp16 factors for each row, before each 64 columns a line of 4 bytes for each row:
//   one for a group of 16 in q6_k, else two for a group of 32. The first byte times the first
//   factor is the group's scale, the second times the second its offset. Codes are nibbles as in
//   int4, behind a line of the upper bits of a whole group (32 of 1 bit, 16 of 2): in each byte
//   those of its column of each quad.
//   q5_0: the same, in llama.cpp's blocks of 32: before each 64 columns a line of two fp16 scales
//   for each row, and nothing else.
//   iq4_xs, iq4_nl: as q6_k and q5_0, but that nibbles stand for the values of kListed, groups have
//   32 columns, and a line of scales in iq4_xs stands before 128.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace forerun::cpu {

class ThreadPool;

enum class Precision {
  fp32,
  bf16,
  int8,
  int4,
  int8_offset,
  int4_offset,
  q4_k,
  q5_k,
  q6_k,
  q5_0,
  iq4_nl,
  iq4_xs
};
constexpr int kNumPrecisions = 12;

const char* precision_name(Precision precision);
// Throws std::invalid_argument for an unknown name.
Precision precision_named(const std::string& name);

constexpr int kBlockRows = 16;
constexpr std::size_t kLineBytes = 64;

// Of llama.cpp's blocks, columns that have a line of scales.
constexpr int part_columns(Precision p) { return p == Precision::iq4_xs ? 128 : 64; }

// Values of the codes of IQ4_NL and IQ4_XS.
constexpr std::int8_t kListed[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};

// What the shape of a matrix y = W x says about its storage. `group` (columns that share a scale:
// 32, 64 or 128) matters for integer formats only; 0 takes the default, llama.cpp's
// blocks have their own.
struct MatrixShape {
  Precision precision = Precision::fp32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  int group = 0;

  // Throws std::invalid_argument unless everything is in range; fills in the default group.
  static MatrixShape make(Precision precision, std::int64_t rows, std::int64_t cols, int group = 0);

  bool grouped() const { return precision >= Precision::int8; }
  bool has_offset() const {
    return precision >= Precision::int8_offset && precision < Precision::q6_k;
  }
  bool blockwise() const { return precision >= Precision::q4_k; }  // llama.cpp's own blocks
  // Of these: bits of each code beside its nibble, columns that share two factors, those parts of
  // them that have a line of scales, and whether there are factors.
  int upper_bits() const {
    if (precision == Precision::q6_k) return 2;
    return precision == Precision::q5_k || precision == Precision::q5_0 ? 1 : 0;
  }
  int groups_per_part() const { return part_columns(precision) / group; }
  int super_columns() const { return part_columns(precision) * super_parts(); }
  int super_parts() const { return has_factors() ? 256 / part_columns(precision) : 1; }
  bool has_factors() const {
    return blockwise() && precision != Precision::q5_0 && precision != Precision::iq4_nl;
  }
  bool listed() const { return precision == Precision::iq4_nl || precision == Precision::iq4_xs; }
  bool bytes_wide() const {
    return precision == Precision::int8 || precision == Precision::int8_offset;
  }
  int zero_code() const;  // the code of weight zero; 0 where there is an offset or a list
  int groups_per_scale_line() const { return has_offset() ? 1 : 2; }
  int values_per_line() const;  // columns that one line covers; not of blocks
  std::int64_t lines() const;   // of values in one block
  std::int64_t groups() const;  // along one row; 0 unless grouped
  int lines_per_group() const;  // of a full group; the last one may be shorter
  // Groups for which the activations share a scale, so that float sums are scaled by it less often:
  // two of 32 in int4, whose weights are much coarser than that makes the activations.
  int groups_per_scale() const { return precision == Precision::int4 && group == 32 ? 2 : 1; }
  // Of the activations' columns, what is packed in one piece: all that share a scale, or a step of
  // the float formats.
  static constexpr int kMostUnitColumns = 128;
  int unit_columns() const { return grouped() ? group * groups_per_scale() : 32; }
  std::int64_t all_lines() const {
    if (blockwise()) return supers() * super_lines();
    return lines() + (groups() + groups_per_scale_line() - 1) / groups_per_scale_line();
  }
  // In a row, lines of one, and its values' lines alone.
  std::int64_t supers() const { return (cols + super_columns() - 1) / super_columns(); }
  std::int64_t super_lines() const { return super_values() + super_parts() + has_factors(); }
  std::int64_t super_values() const { return super_columns() / group * lines_per_group(); }
  // Lines after which a kernel begins as at first.
  std::int64_t unit_lines() const {
    if (!grouped()) return 1;
    return blockwise() ? super_lines() : 2 * lines_per_group() + 2 / groups_per_scale_line();
  }
  // Numbers of a row in CodedRows::offsets.
  std::int64_t offsets() const {
    return has_factors() ? 2 * supers() : has_offset() ? groups() : 0;
  }
  std::int64_t blocks() const { return (rows + kBlockRows - 1) / kBlockRows; }
  std::size_t block_bytes() const { return static_cast<std::size_t>(all_lines()) * kLineBytes; }
  std::size_t bytes() const { return static_cast<std::size_t>(blocks()) * block_bytes(); }

  // Bytes from the start of a block.
  std::size_t line_offset(std::int64_t line) const;         // of values
  std::size_t scale_place(std::int64_t group_index) const;  // of the 16 scales, then offsets
};

enum class SourceType { fp32, bf16, fp16 };

// Rows that are quantized already, in groups of a matrix's own size: codes [rows, cols], one a
// byte, and fp16 scales and, where the format has them, offsets [rows, groups]. In blocks with
// factors the scales are two bytes each, `offsets` the two factors of each 256 columns.
struct CodedRows {
  const std::uint8_t* codes = nullptr;
  const std::uint16_t* scales = nullptr;
  const std::uint16_t* offsets = nullptr;

  // From a row on, of such a matrix.
  CodedRows from(std::int64_t row, const MatrixShape& shape) const {
    return {codes + row * shape.cols, scales + row * shape.groups(),
            offsets == nullptr ? nullptr : offsets + row * shape.offsets()};
  }
};

// A view: the memory (zero-filled, 64-byte aligned, shape.bytes() long) belongs to the caller, who
// keeps a model's matrices in one Buffer, in the order of use.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  PackedMatrix(const MatrixShape& shape, std::uint8_t* memory);

  const MatrixShape& shape() const { return shape_; }
  const std::uint8_t* block(std::int64_t index) const {
    return memory_ + static_cast<std::size_t>(index) * shape_.block_bytes();
  }

  // Packs rows [first, first + count) from row-major source rows that are `stride` elements apart.
  // Parts of one matrix may come from several tensors (q, k, v) and threads. Throws
  // std::invalid_argument for rows out of range, std::domain_error for a weight that is not finite
  // or, in int8 and int4, too large for an fp16 scale.
  void pack_rows(std::int64_t first, std::int64_t count, const void* source, SourceType type,
                 std::int64_t stride);

  // Packs rows [first, first + count) as they are quantized. Throws std::invalid_argument for rows
  // out of range, a format without groups, columns that are not whole groups, or offsets that are
  // missing or too many; std::domain_error for scales that are not finite and codes out of range.
  void pack_codes(std::int64_t first, std::int64_t count, const CodedRows& rows);

  // Row `row` of another matrix as row `to`: both of the same precision, columns and groups.
  void copy_row(std::int64_t to, const PackedMatrix& from, std::int64_t row);

  // A view of the first rows.
  PackedMatrix first_rows(std::int64_t count) const;

  // One row as float: what the kernels multiply with. For lookups in a tied embedding, and tests.
  void unpack_row(std::int64_t row, float* out) const;

 private:
  void check_rows(std::int64_t first, std::int64_t count) const;
  void unpack_grouped(std::int64_t row, const std::uint8_t* lane, float* out) const;
  void unpack_blocks(const std::uint8_t* lane, float* out) const;

  MatrixShape shape_;
  std::uint8_t* memory_ = nullptr;
};

}  // namespace forerun::cpu
