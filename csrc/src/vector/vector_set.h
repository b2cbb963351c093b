// The vector code of one level: what is public, the packing of activations, and rows of the
// vocabulary.
#pragma once

#include <cstdint>

#include "forerun/packed_matrix.h"
#include "forerun/vector_ops.h"
#include "row_ops.h"

namespace forerun::cpu {

// Scales that packing finds together: fewer take as long.
constexpr int kPackedScales = 8;

// Columns [begin, end) of one token, which has lane `lane` in a panel of `width` tokens;
// `token_major` not in fp32.
struct PackTokenArgs {
  const float* token;
  std::int64_t begin;
  std::int64_t end;
  int group;
  int width;
  int lane;
  std::uint32_t* panel;
  bool token_major = false;
  bool paired = false;  // paired_groups.h
};

using PackToken = void (*)(const PackTokenArgs&);

struct VectorSet {
  VectorOps ops;
  PackToken pack_token[kNumPrecisions];  // by Precision
  RowOps<float> float_rows;
  RowOps<double> double_rows;
  // Those of Noise in randomness.h for a block of tokens from `first` on.
  void (*fractions)(std::uint64_t state, std::int64_t first, double* u);
};

const VectorSet& vector_set(Level level);

template <class T>
const RowOps<T>& row_ops();

// vector_impl.h, compiled once for each level
const VectorSet& portable_vector_set();
#if defined(FORERUN_X86_KERNELS)
const VectorSet& avx2_vector_set();
const VectorSet& avx512_vector_set();
#endif

}  // namespace forerun::cpu
