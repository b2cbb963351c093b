#include "forerun/thread_pool.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace forerun::cpu {
namespace {

constexpr int kMaxThreads = 1024;
constexpr std::uint64_t kOpen = std::uint64_t{1} << 31;
constexpr std::uint64_t kInside = kOpen - 1;

std::uint32_t job_number(std::uint64_t state) { return static_cast<std::uint32_t>(state >> 32); }

// What the caller chose for subnormal numbers and rounding holds for its workers too.
unsigned float_mode() {
#if defined(__x86_64__) || defined(__i386__)
  return _mm_getcsr();
#else
  return 0;
#endif
}

void set_float_mode([[maybe_unused]] unsigned mode) {
#if defined(__x86_64__) || defined(__i386__)
  _mm_setcsr(mode);
#endif
}

// Spins for some tens of microseconds, longer than any gap between two layers, then lets others run:
// on a crowded machine the thread that is waited for may need this very core.
class Spinner {
 public:
  void wait() {
    if (++turns_ < kTurns) {
#if defined(__x86_64__) || defined(__i386__)
      _mm_pause();
#endif
    } else {
      std::this_thread::yield();
    }
  }

 private:
  static constexpr int kTurns = 2000;
  int turns_ = 0;
};

}  // namespace

ThreadPool::ThreadPool(int threads) : size_(threads) {
  if (threads < 1 || threads > kMaxThreads) {
    throw std::invalid_argument("a pool has 1 to " + std::to_string(kMaxThreads) + " threads, not " +
                                std::to_string(threads));
  }
  shares_ = std::make_unique<Share[]>(static_cast<std::size_t>(threads));
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { serve(i); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    active_.store(false);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::begin() {
  if (size_ == 1) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    active_.store(true);
  }
  wake_.notify_all();
  spinning_ = true;
}

void ThreadPool::end() {
  spinning_ = false;
  active_.store(false);
}

void ThreadPool::set_shares(std::int64_t count, std::int64_t grain) {
  work_.grain = std::max<std::int64_t>(grain, 1);
  for (int i = 0; i < size_; ++i) {
    shares_[static_cast<std::size_t>(i)].next.store(count * i / size_, std::memory_order_relaxed);
    shares_[static_cast<std::size_t>(i)].end = count * (i + 1) / size_;
  }
}

// Half of what is left of a share, so that there are few ranges: an atomic operation waits for all reads
// under way, which costs as much as memory's latency each time.
bool ThreadPool::next_range(int thread, Range& range) {
  for (int i = 0; i < size_; ++i) {
    Share& share = shares_[static_cast<std::size_t>((thread + i) % size_)];
    std::int64_t begin = share.next.load(std::memory_order_relaxed);
    while (begin < share.end) {
      const std::int64_t count = std::min(std::max(work_.grain, (share.end - begin) / 2), share.end - begin);
      if (share.next.compare_exchange_weak(begin, begin + count, std::memory_order_relaxed)) {
        range = {thread, begin, begin + count, share.end};
        return true;
      }
    }
  }
  return false;
}

void ThreadPool::run(Job job, const void* context) {
  work_.job = job;
  work_.context = context;
  work_.float_mode = float_mode();
  const std::uint64_t number = std::uint64_t{job_number(work_.state.load(std::memory_order_relaxed))} + 1;
  work_.state.store(number << 32 | kOpen, std::memory_order_release);
  job(*this, context, 0);
  work_.state.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (Spinner spinner; (work_.state.load(std::memory_order_acquire) & kInside) != 0;) spinner.wait();
}

bool ThreadPool::wait_until_active() {
  if (active_.load(std::memory_order_relaxed)) return true;
  std::unique_lock<std::mutex> lock(mutex_);
  wake_.wait(lock, [this] { return stopping_ || active_.load(); });
  return !stopping_;
}

void ThreadPool::serve(int thread) {
  std::uint32_t last = 0;
  while (wait_until_active()) {
    for (Spinner spinner; active_.load(std::memory_order_relaxed);) {
      std::uint64_t state = work_.state.load(std::memory_order_acquire);
      const bool fresh = (state & kOpen) != 0 && job_number(state) != last;
      if (fresh && work_.state.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) {
        last = job_number(state);
        set_float_mode(work_.float_mode);
        work_.job(*this, work_.context, thread);
        work_.state.fetch_sub(1, std::memory_order_release);
        spinner = Spinner();
      } else {
        spinner.wait();
      }
    }
  }
}

}  // namespace forerun::cpu
