#include "forerun/thread_pool.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define FORERUN_FORKS
#endif

namespace forerun::cpu {
namespace {

constexpr int kMaxThreads = 1024;
// Turns of a worker that waits for the next forward before it sleeps: some tenths of a millisecond.
constexpr int kLinger = 10000;
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

// Spins for some tens of microseconds, longer than any gap between two layers, then lets others
// run: on a crowded machine the thread that is waited for may need this very core.
class Spinner {
 public:
  explicit Spinner(int patience = 2000) : patience_(patience) {}

  void wait() {
    if (!patient()) {
      std::this_thread::yield();
      return;
    }
    ++turns_;
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#endif
  }

  bool patient() const { return turns_ < patience_; }

 private:
  int patience_;
  int turns_ = 0;
};

}  // namespace

// All pools, for the child of a fork: there the workers are gone, whatever they held stays locked,
// and waiting for them would never end.
class ForkGuard {
 public:
  static ForkGuard& instance() {
    static auto* guard = new ForkGuard;  // Pools may outlive all statics.
    return *guard;
  }

  void add(ThreadPool* pool) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pools_.push_back(pool);
  }

  void remove(ThreadPool* pool) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pools_.erase(std::find(pools_.begin(), pools_.end(), pool));
  }

 private:
  ForkGuard() {
#if defined(FORERUN_FORKS)
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().in_child(); });
#endif
  }

  void in_child() {
    for (ThreadPool* pool : pools_) pool->forget_workers();
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::vector<ThreadPool*> pools_;
};

ThreadPool::ThreadPool(int threads) : size_(threads), crew_(std::make_unique<Crew>()) {
  if (threads < 1 || threads > kMaxThreads) {
    throw std::invalid_argument("a pool has 1 to " + std::to_string(kMaxThreads) +
                                " threads, not " + std::to_string(threads));
  }
  shares_ = std::make_unique<Share[]>(static_cast<std::size_t>(threads));
  start_workers();
  ForkGuard::instance().add(this);
}

ThreadPool::~ThreadPool() {
  ForkGuard::instance().remove(this);
  end_workers();
}

void ThreadPool::start_workers() {
  try {
    for (int i = 1; i < size_; ++i) crew_->workers.emplace_back([this, i] { serve(i); });
  } catch (...) {
    end_workers();
    throw;
  }
}

void ThreadPool::end_workers() {
  {
    const std::lock_guard<std::mutex> lock(crew_->mutex);
    crew_->stopping = true;
    active_.store(false);
  }
  crew_->wake.notify_all();
  for (std::thread& worker : crew_->workers) worker.join();
  crew_->workers.clear();
  crew_->stopping = false;
}

void ThreadPool::forget_workers() {
  // Locks and waiters cannot be destroyed without the threads that use them.
  static auto* lost = new std::vector<Crew*>;
  lost->push_back(crew_.release());
  crew_ = std::make_unique<Crew>();
  active_.store(false);
  spinning_ = false;
  work_.state.store(0);
}

void ThreadPool::begin(bool wake) {
  std::unique_lock<std::mutex> turn(crew_->turn);
  if (wake && size_ > 1) {
    if (crew_->workers.empty()) start_workers();
    {
      const std::lock_guard<std::mutex> lock(crew_->mutex);
      active_.store(true);
    }
    crew_->wake.notify_all();
    spinning_ = true;
  }
  crew_->begun = true;
  turn.release();  // by end()
}

void ThreadPool::end() {
  if (!crew_->begun) return;  // before a fork
  crew_->begun = false;
  spinning_ = false;
  active_.store(false);
  crew_->turn.unlock();
}

void ThreadPool::set_shares(std::int64_t count, std::int64_t grain) {
  work_.grain = std::max<std::int64_t>(grain, 1);
  for (int i = 0; i < size_; ++i) {
    shares_[static_cast<std::size_t>(i)].next.store(count * i / size_, std::memory_order_relaxed);
    shares_[static_cast<std::size_t>(i)].end = count * (i + 1) / size_;
  }
}

// Most of what is left of a share, in multiples of the grain, so that there are few ranges: an
// atomic operation waits for all reads under way, which costs as much as memory's latency each
// time.
bool ThreadPool::next_range(int thread, Range& range) {
  for (int i = 0; i < size_; ++i) {
    Share& share = shares_[static_cast<std::size_t>((thread + i) % size_)];
    std::int64_t begin = share.next.load(std::memory_order_relaxed);
    while (begin < share.end) {
      const std::int64_t left = share.end - begin;
      const std::int64_t most = left * 3 / 4 / work_.grain * work_.grain;
      const std::int64_t count = std::min(std::max(most, work_.grain), left);
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
  const std::uint64_t number =
      std::uint64_t{job_number(work_.state.load(std::memory_order_relaxed))} + 1;
  work_.state.store(number << 32 | kOpen, std::memory_order_release);
  attempt(job, context, 0);
  work_.state.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (Spinner spinner; (work_.state.load(std::memory_order_acquire) & kInside) != 0;)
    spinner.wait();
  if (crew_->failure) std::rethrow_exception(std::exchange(crew_->failure, nullptr));
}

// The workers use what lies on the caller's stack: nobody leaves before all are done.
void ThreadPool::attempt(Job job, const void* context, int thread) noexcept {
  try {
    job(*this, context, thread);
  } catch (...) {
    const std::lock_guard<std::mutex> lock(crew_->mutex);
    if (!crew_->failure) crew_->failure = std::current_exception();
  }
}

bool ThreadPool::wait_until_active() {
  // A drafter calls module after module, with some Python between: waking up for each would cost
  // more than most of them do.
  for (Spinner spinner(kLinger); spinner.patient(); spinner.wait()) {
    if (active_.load(std::memory_order_relaxed)) return true;
  }
  std::unique_lock<std::mutex> lock(crew_->mutex);
  crew_->wake.wait(lock, [this] { return crew_->stopping || active_.load(); });
  return !crew_->stopping;
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
        attempt(work_.job, work_.context, thread);
        work_.state.fetch_sub(1, std::memory_order_release);
        spinner = Spinner();
      } else {
        spinner.wait();
      }
    }
  }
}

}  // namespace forerun::cpu
