#include "forerun/machine.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "forerun/cpu_level.h"

#if defined(FORERUN_AMX_KERNELS)
#include "kernels/amx_tiles.h"
#endif

#if defined(__linux__)
#include <dirent.h>
#include <sched.h>
#endif

namespace forerun::cpu::machine {
namespace {

bool processor_clock = false;

constexpr std::int64_t kPieces = 256;
constexpr std::int64_t kStep = 256;  // bytes
constexpr std::int64_t kTurns = 20000;
constexpr int kChains = 24;

#if defined(__x86_64__)

__attribute__((target("avx512f"))) void read_piece(const std::uint8_t* p, const std::uint8_t* end) {
  for (; p < end; p += 256) {
    asm volatile(
        "prefetcht1 4096(%0)\n prefetcht1 4160(%0)\n prefetcht1 4224(%0)\n prefetcht1 4288(%0)\n"
        "vmovdqu64 (%0), %%zmm0\n vmovdqu64 64(%0), %%zmm1\n"
        "vmovdqu64 128(%0), %%zmm2\n vmovdqu64 192(%0), %%zmm3\n"
        :
        : "r"(p)
        : "xmm0", "xmm1", "xmm2", "xmm3");
  }
}

// clang-format off
#define FORERUN_CHAIN(instruction, i) instruction " %%zmm30, %%zmm31, %%zmm" #i "\n"
#define FORERUN_CHAINS(x)                                                                          \
  FORERUN_CHAIN(x, 0) FORERUN_CHAIN(x, 1) FORERUN_CHAIN(x, 2) FORERUN_CHAIN(x, 3)                  \
  FORERUN_CHAIN(x, 4) FORERUN_CHAIN(x, 5) FORERUN_CHAIN(x, 6) FORERUN_CHAIN(x, 7)                  \
  FORERUN_CHAIN(x, 8) FORERUN_CHAIN(x, 9) FORERUN_CHAIN(x, 10) FORERUN_CHAIN(x, 11)                \
  FORERUN_CHAIN(x, 12) FORERUN_CHAIN(x, 13) FORERUN_CHAIN(x, 14) FORERUN_CHAIN(x, 15)              \
  FORERUN_CHAIN(x, 16) FORERUN_CHAIN(x, 17) FORERUN_CHAIN(x, 18) FORERUN_CHAIN(x, 19)              \
  FORERUN_CHAIN(x, 20) FORERUN_CHAIN(x, 21) FORERUN_CHAIN(x, 22) FORERUN_CHAIN(x, 23)
// clang-format on
#define FORERUN_PEAK(name, instruction)                                                          \
  __attribute__((target("avx512f"))) void name() {                                               \
    asm volatile("vpxord %%zmm30, %%zmm30, %%zmm30\n vpxord %%zmm31, %%zmm31, %%zmm31\n" ::      \
                     : "xmm30", "xmm31");                                                        \
    for (std::int64_t i = 0; i < kTurns; ++i) {                                                  \
      asm volatile(FORERUN_CHAINS(instruction)::                                                 \
                       : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
                         "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16",  \
                         "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23");         \
    }                                                                                            \
  }

FORERUN_PEAK(peak_fp32, "vfmadd231ps")
FORERUN_PEAK(peak_bf16, "vdpbf16ps")
FORERUN_PEAK(peak_int8, "vpdpbusd")

#endif

#if defined(FORERUN_AMX_KERNELS)
constexpr double kTileProducts = kTileRows * kBlockRows * 32;

void peak_bf16_tiles() {
  constexpr int kSums = 4;
  TileConfig config;
  for (int tile = 0; tile < kSums + 2; ++tile) config.describe(tile, kTileRows, kLine);
  config.load();
  unroll<kSums + 2>([](auto tile) { zero_tile<tile>(); });
  for (std::int64_t i = 0; i < kTurns; ++i)
    unroll<kChains>([](auto chain) { multiply_bf16_tiles<chain % kSums, kSums, kSums + 1>(); });
  end();
}
#endif

// Whole steps, in order.
void read_all(const std::uint8_t* p, const std::uint8_t* end) {
#if defined(__x86_64__)
  if (cpu_features().avx512) return read_piece(p, end);
#endif
  const auto* words = reinterpret_cast<const std::uint64_t*>(p);
  std::uint64_t sum = 0;
  for (; words < reinterpret_cast<const std::uint64_t*>(end); ++words) sum += *words;
  volatile std::uint64_t sink = sum;
  (void)sink;
}

}  // namespace

void pin_threads() {
#if defined(__linux__)
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return;
  unsigned processor = 0;
  const unsigned processors = std::max(std::thread::hardware_concurrency(), 1u);
  while (const dirent* task = readdir(tasks)) {
    if (task->d_name[0] == '.') continue;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor++ % processors, &set);
    sched_setaffinity(std::atoi(task->d_name), sizeof set, &set);
  }
  closedir(tasks);
#endif
}

void use_processor_clock() { processor_clock = true; }

double seconds() {
#if defined(__linux__)
  if (processor_clock) {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
#endif
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double read_stream(const std::uint8_t* memory, std::size_t bytes, ThreadPool& pool) {
  const auto piece = static_cast<std::int64_t>(bytes / kPieces / kStep * kStep);
  const double start = seconds();
  pool.for_ranges(kPieces, 1, [&](const Range& r) {
    read_all(memory + r.begin * piece, memory + r.end * piece);
  });
  return seconds() - start;
}

double read_again(const std::uint8_t* memory, std::size_t bytes, int times, ThreadPool& pool) {
  const std::int64_t threads = pool.size();
  const auto share = static_cast<std::int64_t>(bytes) / threads / kStep * kStep;
  const double start = seconds();
  pool.for_ranges(threads, 1, [&](const Range& r) {
    for (std::int64_t thread = r.begin; thread < r.end; ++thread) {
      for (int i = 0; i < times; ++i)
        read_all(memory + thread * share, memory + (thread + 1) * share);
    }
  });
  return (seconds() - start) / times;
}

double peak_rate(Precision precision, ThreadPool& pool) {
#if defined(__x86_64__)
  const CpuFeatures& f = cpu_features();
  void (*loop)() = nullptr;
  double lanes = 16.0;
  if (precision == Precision::fp32 && f.avx512) loop = peak_fp32;
  if (precision == Precision::bf16 && f.avx512_bf16) loop = peak_bf16, lanes = 32.0;
  if (precision >= Precision::int8 && f.avx512_vnni) loop = peak_int8, lanes = 64.0;
#if defined(FORERUN_AMX_KERNELS)
  if (precision == Precision::bf16 && f.amx) loop = peak_bf16_tiles, lanes = kTileProducts;
#endif
  if (loop == nullptr) return 0.0;
  const double start = seconds();
  pool.for_ranges(pool.size(), 1, [&](const Range&) { loop(); });
  return static_cast<double>(kTurns * kChains * pool.size()) * lanes / (seconds() - start);
#else
  (void)precision;
  (void)pool;
  return 0.0;
#endif
}

}  // namespace forerun::cpu::machine
