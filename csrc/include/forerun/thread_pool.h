// Threads that spin during a forward and sleep between forwards.
//
// Work is handed out in ranges, to each thread first from its own contiguous share, then from the
// others'. A worker that is still waking up, or that the system has taken off its core, does not
// hold up the others: they do its share. Who computes what never changes a result.
//
// A fork copies no threads: in the child a pool starts its own at the next forward.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace forerun::cpu {

// Items [begin, end) for `thread`; its contiguous share goes on to `stop`.
struct Range {
  int thread;
  std::int64_t begin;
  std::int64_t end;
  std::int64_t stop;
};

class ThreadPool {
 public:
  // The calling thread counts: 1 starts none. Throws std::invalid_argument outside 1 to 1024, and
  // std::system_error if the system refuses a thread.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Around a forward. From begin() on the calling thread has the workers to itself, awake if it
  // wants their help; others wait there for its end(), and it must not begin again before. Outside,
  // the caller works alone.
  void begin(bool wake = true);
  void end();

  // body(Range) until [0, count) is done, in ranges of multiples of `grain` items, the last of a
  // share as it comes. The body must not use the pool. What it throws in any thread, the first of
  // several, is thrown here, once all threads are done; some items may then be left undone.
  template <class Body>
  void for_ranges(std::int64_t count, std::int64_t grain, const Body& body) {
    for_shares(count, grain, [&](Ranges& ranges) {
      for (Range r; ranges.next(r);) body(r);
    });
  }

  // The same with one call share(Ranges&) in each thread that takes part, for what a thread sets up
  // once. There may be no range left for it.
  template <class Share>
  void for_shares(std::int64_t count, std::int64_t grain, const Share& share) {
    if (!spinning_ || count <= grain) {
      Ranges all(count);
      return share(all);
    }
    set_shares(count, grain);
    auto job = [](ThreadPool& pool, const void* context, int thread) {
      Ranges ranges(pool, thread);
      (*static_cast<const Share*>(context))(ranges);
    };
    run(job, &share);
  }

  class Ranges {
   public:
    // False where none is left.
    bool next(Range& range) {
      if (pool_ != nullptr) return pool_->next_range(thread_, range);
      range = {0, 0, alone_, alone_};
      alone_ = 0;
      return range.end > 0;
    }

   private:
    friend class ThreadPool;
    explicit Ranges(std::int64_t alone) : alone_(alone) {}
    Ranges(ThreadPool& pool, int thread) : pool_(&pool), thread_(thread) {}

    ThreadPool* pool_ = nullptr;  // none: the caller does it alone, in one range
    int thread_ = 0;
    std::int64_t alone_ = 0;
  };

 private:
  using Job = void (*)(ThreadPool&, const void*, int thread);

  struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };

  // The workers and what they wait for.
  struct Crew {
    std::mutex turn;     // held from begin() to end()
    bool begun = false;  // whether it is
    std::mutex mutex;
    std::condition_variable wake;
    bool stopping = false;
    std::vector<std::thread> workers;
    std::exception_ptr failure;  // of the job that runs
  };

  void start_workers();
  void end_workers();
  void set_shares(std::int64_t count, std::int64_t grain);
  bool next_range(int thread, Range& range);
  void run(Job job, const void* context);
  void attempt(Job job, const void* context, int thread) noexcept;
  void serve(int thread);
  bool wait_until_active();

  friend class ForkGuard;
  void forget_workers();

  // What a worker needs to take part, in one cache line: between cores each line costs a tenth of a
  // microsecond and more, for each of the many small products of a forward.
  struct alignas(64) Work {
    // The job's number (upper half), whether it is open, how many workers are in it. One word, so
    // that a worker joins either before the job closes or not at all.
    std::atomic<std::uint64_t> state{0};
    Job job = nullptr;
    const void* context = nullptr;
    std::int64_t grain = 1;
    unsigned float_mode = 0;
  };

  int size_;
  bool spinning_ = false;  // the caller's own view of active_
  std::unique_ptr<Share[]> shares_;
  Work work_;
  alignas(64) std::atomic<bool> active_{false};
  std::unique_ptr<Crew> crew_;
};

// begin() and end() of one forward.
class Forward {
 public:
  explicit Forward(ThreadPool& pool, bool wake = true) : pool_(pool) { pool_.begin(wake); }
  ~Forward() { pool_.end(); }
  Forward(const Forward&) = delete;
  Forward& operator=(const Forward&) = delete;

 private:
  ThreadPool& pool_;
};

}  // namespace forerun::cpu
