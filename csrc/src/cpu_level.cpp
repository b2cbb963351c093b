#include "forerun/cpu_level.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(FORERUN_AMX_KERNELS)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace forerun::cpu {
namespace {

#if defined(FORERUN_AMX_KERNELS)
// Linux keeps the registers of tiles only for processes that asked for it (arch/x86/xstate.rst);
// their threads, and those of their children, need not ask again.
bool permit_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILE_DATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool detect_amx() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  const bool tiles = (edx >> 24 & 1) != 0;
  const bool int8 = (edx >> 25 & 1) != 0;
  const bool bf16 = (edx >> 22 & 1) != 0;
  const bool permutes_bytes = (ecx >> 1 & 1) != 0;  // AVX512_VBMI, as all processors with AMX have
  return tiles && int8 && bf16 && permutes_bytes && permit_tiles();
}
#endif

// The highest level that FORERUN_KERNELS allows. Features above it are hidden, so that everything
// runs as on a processor without them.
Level allowed_level() {
  const char* asked = std::getenv("FORERUN_KERNELS");
  if (asked == nullptr || *asked == '\0') return Level::amx;
  for (const Level level : kLevels) {
    if (std::string(asked) == level_name(level)) return level;
  }
  throw std::invalid_argument(std::string("FORERUN_KERNELS names no instruction set: ") + asked);
}

CpuFeatures detect() {
  const Level allowed = allowed_level();
  (void)allowed;
  CpuFeatures f;
#if defined(FORERUN_X86_KERNELS)
  __builtin_cpu_init();
  f.intel = __builtin_cpu_is("intel");
  f.avx2 = allowed >= Level::avx2 && __builtin_cpu_supports("avx2") &&
           __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  f.avx512 = allowed >= Level::avx512 && f.avx2 && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512dq");
  f.avx512_vnni = f.avx512 && __builtin_cpu_supports("avx512vnni");
  f.avx512_bf16 = f.avx512 && __builtin_cpu_supports("avx512bf16");
#endif
#if defined(FORERUN_AMX_KERNELS)
  f.amx = allowed >= Level::amx && f.avx512_vnni && detect_amx();
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
  if (f.amx) return Level::amx;
  if (f.avx512) return Level::avx512;
  return f.avx2 ? Level::avx2 : Level::portable;
}

const char* level_name(Level level) {
  switch (level) {
    case Level::amx: return "amx";
    case Level::avx512: return "avx512";
    case Level::avx2: return "avx2";
    default: return "portable";
  }
}

}  // namespace forerun::cpu
