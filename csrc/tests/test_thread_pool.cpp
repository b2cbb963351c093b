// Every item once, whatever the timing; sleeping outside a forward.
#include <atomic>
#include <chrono>
#include <ctime>
#include <memory>

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
    CHECK(hits[static_cast<std::size_t>(i)].load() == 1, "item %lld of %lld", static_cast<long long>(i),
          static_cast<long long>(count));
  }
}

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void check_sleeps() {
  ThreadPool pool(3);
  { const Forward forward(pool); check_once(pool, 100, 1); }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = processor_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(processor_seconds() - before < 0.1, "idle workers used %g s", processor_seconds() - before);
}

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
  CHECK_THROWS(std::invalid_argument, ThreadPool(0));
  CHECK_THROWS(std::invalid_argument, ThreadPool(100000));
  std::puts("ok");
}
