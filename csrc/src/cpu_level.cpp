#include "forerun/cpu_level.h"

namespace forerun::cpu {
namespace {

CpuFeatures detect() {
  CpuFeatures f;
#if defined(FORERUN_X86_KERNELS)
  __builtin_cpu_init();
  f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
  f.avx512 = f.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  f.avx512_vnni = f.avx512 && __builtin_cpu_supports("avx512vnni");
  f.avx512_bf16 = f.avx512 && __builtin_cpu_supports("avx512bf16");
#endif
  return f;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

Level best_level() {
  const CpuFeatures& f = cpu_features();
  if (f.avx512) return Level::avx512;
  return f.avx2 ? Level::avx2 : Level::portable;
}

const char* level_name(Level level) {
  switch (level) {
    case Level::avx512: return "avx512";
    case Level::avx2: return "avx2";
    default: return "portable";
  }
}

}  // namespace forerun::cpu
