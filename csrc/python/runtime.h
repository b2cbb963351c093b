// The threads that all models of a process share, one forward at a time.
#pragma once

#include <mutex>

#include "forerun/thread_pool.h"

namespace forerun::cpu {

struct Runtime {
  explicit Runtime(int threads) : pool(threads) {}

  ThreadPool pool;
  std::mutex mutex;
};

// From its construction on the caller has the threads, awake.
class Turn {
 public:
  explicit Turn(Runtime& runtime) : lock_(runtime.mutex), forward_(runtime.pool) {}

 private:
  std::lock_guard<std::mutex> lock_;
  Forward forward_;
};

}  // namespace forerun::cpu
