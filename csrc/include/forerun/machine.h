// What the machine can do at best, measured beside the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "forerun/packed_matrix.h"
#include "forerun/thread_pool.h"

namespace forerun::cpu::machine {

double seconds();  // a monotonic clock

// From now on seconds() is the calling thread's processor time: with one thread, a measure that
// other processes do not disturb except through memory and caches.
void use_processor_clock();

// One processor for each thread of this process: on a busy machine the system may else put two of
// them on one, for as long as a measurement takes.
void pin_threads();

// Seconds for all threads to read `bytes` once, in order.
double read_stream(const std::uint8_t* memory, std::size_t bytes, ThreadPool& pool);

// The same of a working set that stays in the threads' own caches: each thread has a share of its
// own, and reads it `times` times. Seconds for one of them.
double read_again(const std::uint8_t* memory, std::size_t bytes, int times, ThreadPool& pool);

// Multiply-adds per second of the precision's instruction (int4 uses int8's) with all operands in
// registers, on all threads; 0 where the processor lacks it. In bf16 that of tiles where there are
// any; in int8 never, as there scales bound kernels and not tiles.
double peak_rate(Precision precision, ThreadPool& pool);

}  // namespace forerun::cpu::machine
