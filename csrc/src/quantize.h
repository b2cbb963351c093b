// Groupwise quantization of one row of weights into its lane of a block (see packed_matrix.h).
#pragma once

#include <cstdint>

#include "forerun/packed_matrix.h"

namespace forerun::cpu {

// Both throw std::domain_error where a scale overflows.
void quantize_row_int8(const MatrixShape& shape, const float* row, std::size_t lane,
                       std::uint8_t* block);
void quantize_row_int4(const MatrixShape& shape, const float* row, std::size_t lane,
                       std::uint8_t* block);

// Throws std::domain_error for a finite value that rounds to infinity in bf16.
void check_bf16(const float* row, std::int64_t count);

}  // namespace forerun::cpu
