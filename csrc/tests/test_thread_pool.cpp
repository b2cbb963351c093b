// Every item once, whatever the timing and across forks; sleeping outside a forward.
#include <atomic>
#include <chrono>
#include <ctime>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#if defined(__unix__)
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "check.h"

namespace forerun::cpu::test {
namespace {

void check_once(ThreadPool& pool, std::int64_t count, std::int64_t grain) {
  const auto hits = std::make_unique<std::atomic<int>[]>(static_cast<std::size_t>(count) + 1);
  pool.for_ranges(count, grain, [&](const Range& r) {
    CHECK(r.thread >= 0 && r.thread < pool.size() && r.begin < r.end && r.end <= r.stop, "range");
    for (std::int64_t i = r.begin; i < r.end; ++i) hits[static_cast<std::size_t>(i)].fetch_add(1);
  });
  for (std::int64_t i = 0; i < count; ++i) {
    CHECK(hits[static_cast<std::size_t>(i)].load() == 1, "item %lld of %lld",
          static_cast<long long>(i), static_cast<long long>(count));
  }
}

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void check_sleeps() {
  ThreadPool pool(3);
  {
    const Forward forward(pool);
    check_once(pool, 100, 1);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = processor_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(processor_seconds() - before < 0.1, "idle workers used %g s", processor_seconds() - before);
}

// Forwards of different threads run one after the other.
void check_turns() {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&pool] {
      for (int round = 0; round < 200; ++round) {
        const Forward forward(pool, round % 2 == 0);
        check_once(pool, 30, 1);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

// What a job throws in any thread reaches the caller after the others are done, and the pool goes
// on.
void check_failures() {
  ThreadPool pool(3);
  for (int round = 0; round < 200; ++round) {
    const Forward forward(pool);
    std::atomic<int> inside{0};
    bool thrown = false;
    try {
      pool.for_ranges(60, 1, [&](const Range& r) {
        inside.fetch_add(1);
        const bool fails = round % 60 >= r.begin && round % 60 < r.end;
        if (!fails) std::this_thread::yield();
        inside.fetch_sub(1);
        if (fails) throw std::bad_alloc();
      });
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    CHECK(thrown, "round %d", round);
    CHECK(inside.load() == 0, "%d threads were still at work", inside.load());
    check_once(pool, 60, 1);
  }
}

#if defined(__unix__)
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A thread that the system refuses is an error of the caller's, and the ones before it end.
void check_refused_threads() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const rlimit little{std::size_t{1} << 30, std::size_t{1} << 30};  // of stacks of 8 MiB each
    setrlimit(RLIMIT_AS, &little);
    bool refused = false;
    try {
      ThreadPool pool(1024);
    } catch (const std::system_error&) {
      refused = true;
    }
    ThreadPool pool(2);
    const Forward forward(pool);
    check_once(pool, 100, 1);
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status %d", status);
}
#endif

// The child of a fork starts workers of its own and ends them, even if a forward was under way
// elsewhere.
void check_fork() {
  auto pool = std::make_unique<ThreadPool>(3);
  {
    const Forward forward(*pool);
    check_once(*pool, 100, 1);
  }
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) {
      const Forward forward(*pool);
      check_once(*pool, 100, 1);
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    for (int round = 0; round < 100; ++round) {
      const Forward forward(*pool);
      check_once(*pool, 100, 1);
    }
    pool.reset();
    // Not std::exit: a sanitizer counts as leaks what `busy`, gone here, had allocated.
    _exit(0);
  }
  stop = true;
  busy.join();
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status %d", status);
}
#endif

}  // namespace
}  // namespace forerun::cpu::test

int main() {
  using namespace forerun::cpu;
  using namespace forerun::cpu::test;
  Random random(5);
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    check_once(pool, 50, 3);
    for (int round = 0; round < 300; ++round) {
      const Forward forward(pool);
      for (int i = 0; i < 20; ++i) check_once(pool, between(random, 0, 40), between(random, 1, 7));
    }
  }
  check_sleeps();
  check_turns();
  check_failures();
#if defined(__unix__)
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  check_refused_threads();
#endif
  check_fork();
#endif
  CHECK_THROWS(std::invalid_argument, ThreadPool(0));
  CHECK_THROWS(std::invalid_argument, ThreadPool(100000));
  std::puts("ok");
}
