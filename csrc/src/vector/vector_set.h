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
  const float* values;  // of these columns
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

// Where a slot of a tile has its key and value.
struct SlotPlace {
  std::uint8_t* keys;       // its lane in the first line; each line has the next dimensions
  std::uint8_t* values;     // its line of the first 16 dimensions
  std::int64_t value_step;  // bytes to the next 16
  int shift;                // of its bits in each lane of such a line
};

// The same for codes: `keys` and `values` lie in the plane of upper nibbles, in int4 the only one.
struct CodedSlot : SlotPlace {
  std::int64_t group;
  std::uint16_t* scales;    // of the key's first group, then of each other and of the value's
  std::int64_t scale_step;  // from one to the next
  std::int64_t lower_key;   // bytes from a key's upper nibble to its lower one; 0 in int4
  std::int64_t lower_value;
};

struct VectorSet {
  VectorOps ops;
  PackToken pack_token[kNumPrecisions];  // by Precision
  RowOps<float> float_rows;
  RowOps<double> double_rows;
  // A head's key and value into a slot.
  void (*write_bf16)(const float* key, const float* value, std::int64_t dimensions,
                     const SlotPlace& to);
  void (*write_codes)(const float* key, const float* value, std::int64_t dimensions,
                      const CodedSlot& to);
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
