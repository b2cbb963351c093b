// The choice among levels, by what the processor has and what the caller allows.
#include "kernels/kernels.h"
#include "vector/vector_set.h"

namespace forerun::cpu {
namespace {

#if defined(FORERUN_X86_KERNELS)
#if defined(FORERUN_AMX_KERNELS)
const KernelSet* amx_set(Precision precision) {
  if (!cpu_features().amx) return nullptr;
  switch (precision) {
    case Precision::bf16: return &amx_bf16_set();
    case Precision::int8: return &amx_int8_set();
    case Precision::int4: return &amx_int4_set();
    case Precision::int8_offset: return &amx_int8_offset_set();
    case Precision::int4_offset: return &amx_int4_offset_set();
    default: break;
  }
  return nullptr;
}
#endif

const KernelSet* avx512_set(Precision precision) {
  const CpuFeatures& f = cpu_features();
  switch (precision) {
    case Precision::fp32: return f.avx512 ? &avx512_fp32_set() : nullptr;
    case Precision::bf16: return f.avx512_bf16 ? &avx512_bf16_set() : nullptr;
    case Precision::int8: return f.avx512_vnni ? &avx512_int8_set() : nullptr;
    case Precision::int4: return f.avx512_vnni ? &avx512_int4_set() : nullptr;
    case Precision::int8_offset: return f.avx512_vnni ? &avx512_int8_offset_set() : nullptr;
    case Precision::int4_offset: return f.avx512_vnni ? &avx512_int4_offset_set() : nullptr;
    default: return f.avx512_vnni ? &avx512_blocks_set(precision) : nullptr;
  }
}

const KernelSet& avx2_set(Precision precision) {
  switch (precision) {
    case Precision::fp32: return avx2_fp32_set();
    case Precision::bf16: return avx2_bf16_set();
    case Precision::int8: return avx2_int8_set();
    case Precision::int4: return avx2_int4_set();
    case Precision::int8_offset: return avx2_int8_offset_set();
    case Precision::int4_offset: return avx2_int4_offset_set();
    default: return avx2_blocks_set(precision);
  }
}
#endif

// From so many tokens on AMX takes less time than AVX-512 (measured on Granite Rapids): a tile
// takes as long for one token as for sixteen, and bytes take longer to read than to multiply.
std::int64_t least_for_tiles(Precision precision) {
  if (precision == Precision::bf16) return 1;  // all in one order
  const bool nibbles = precision == Precision::int4 || precision == Precision::int4_offset;
  return nibbles ? kLeastTileTokens : 11;
}

Level lower(Level a, Level b) { return a < b ? a : b; }

}  // namespace

std::ptrdiff_t near_bytes(bool slower_than_memory) {
  constexpr auto kNear = 32 * static_cast<std::ptrdiff_t>(kLineBytes);
  return slower_than_memory || cpu_features().intel ? kNear : 0;
}

const KernelSet& kernel_set(Precision precision, Level limit, std::int64_t tokens) {
#if defined(FORERUN_AMX_KERNELS)
  if (limit >= Level::amx && tokens >= least_for_tiles(precision)) {
    if (const KernelSet* set = amx_set(precision)) return *set;
  }
#endif
#if defined(FORERUN_X86_KERNELS)
  if (limit >= Level::avx512) {
    if (const KernelSet* set = avx512_set(precision)) return *set;
  }
  if (limit >= Level::avx2 && cpu_features().avx2) return avx2_set(precision);
#endif
  (void)limit, (void)tokens;
  return portable_set(precision);
}

const CodedSet& coded_set(Level limit) {
#if defined(FORERUN_AMX_KERNELS)
  if (limit >= Level::amx && cpu_features().amx) return amx_coded_set();
#endif
#if defined(FORERUN_X86_KERNELS)
  if (limit >= Level::avx512 && cpu_features().avx512_vnni) return avx512_coded_set();
  if (limit >= Level::avx2 && cpu_features().avx2) return avx2_coded_set();
#endif
  (void)limit;
  return portable_coded_set();
}

const VectorSet& vector_set(Level level) {
#if defined(FORERUN_X86_KERNELS)
  switch (lower(level, best_level())) {
    case Level::amx:
    case Level::avx512: return avx512_vector_set();
    case Level::avx2: return avx2_vector_set();
    default: break;
  }
#else
  (void)lower(level, best_level());
#endif
  return portable_vector_set();
}

const VectorOps& vector_ops(Level limit) { return vector_set(limit).ops; }

template <>
const RowOps<float>& row_ops() {
  return vector_set(best_level()).float_rows;
}

template <>
const RowOps<double>& row_ops() {
  return vector_set(best_level()).double_rows;
}

}  // namespace forerun::cpu
