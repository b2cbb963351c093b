// Which instruction sets the kernels may use, decided once at run time.
#pragma once

namespace forerun::cpu {

// Ordered: a higher level may use everything below it.
enum class Level { portable = 0, avx2 = 1, avx512 = 2, amx = 3 };
constexpr Level kLevels[] = {Level::portable, Level::avx2, Level::avx512, Level::amx};

struct CpuFeatures {
  bool intel = false;
  bool avx2 = false;         // AVX2, FMA and F16C
  bool avx512 = false;       // F, BW, VL, DQ
  bool avx512_vnni = false;  // vpdpbusd: int8 and int4
  bool avx512_bf16 = false;  // vdpbf16ps
  bool amx = false;          // tiles of int8 and bf16, which the operating system must permit
};

const CpuFeatures& cpu_features();

// The highest level that this processor and operating system support and the variable
// FORERUN_KERNELS allows.
Level best_level();

const char* level_name(Level level);

}  // namespace forerun::cpu
