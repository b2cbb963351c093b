// Groupwise quantization of one row of weights into its lane of a block (see packed_matrix.h).
#pragma once

#include <cstdint>

#include "forerun/packed_matrix.h"

namespace forerun::cpu {

// One group of one row; the scale and the offset are fp16.
struct CodedGroup {
  const std::uint8_t* codes;
  std::uint16_t scale;
  std::uint16_t offset;
};

// Throws std::domain_error for a scale that is not finite or a code that does not fit.
void store_group(const MatrixShape& shape, std::int64_t index, std::size_t lane,
                 const CodedGroup& group, std::uint8_t* block);

// A whole row in llama.cpp's blocks, as CodedRows has it. Throws std::domain_error for a factor
// that is not finite or a code that does not fit.
void store_blocks(const MatrixShape& shape, std::size_t lane, const CodedRows& row,
                  std::uint8_t* block);

// Throws std::domain_error where a scale overflows.
void quantize_row(const MatrixShape& shape, const float* row, std::size_t lane,
                  std::uint8_t* block);

// Throws std::domain_error for a finite value that rounds to infinity in bf16.
void check_bf16(const float* row, std::int64_t count);

}  // namespace forerun::cpu
