// Rows that lose tokens hold what they keep, across segments, and leave other rows alone.
#include <algorithm>
#include <iterator>
#include <numeric>

#include "check.h"
#include "forerun/errors.h"
#include "forerun/kv_cache.h"

namespace forerun::cpu::test {
namespace {

constexpr std::int64_t kSize = 32, kLength = 2300;

KvCache::Shape shape_of(Precision precision) {
  KvCache::Shape shape;
  shape.precision = precision;
  shape.layers = 2;
  shape.rows = 3;
  shape.kv_heads = 2;
  shape.head_dim = kSize;
  shape.capacity = 2500;
  return shape;
}

// Key and value of a slot.
std::vector<float> read(const KvCache& cache, std::int64_t layer, std::int64_t row,
                        std::int64_t head, std::int64_t slot) {
  std::vector<float> both(2 * kSize);
  cache.read(layer, row, head, slot, both.data(), both.data() + kSize);
  return both;
}

void fill(KvCache& cache, std::int64_t row, Random& random) {
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    for (std::int64_t i = 0; i < 2 * kLength; ++i) {
      const auto both = normal(random, 2 * kSize);
      cache.write(layer, row, i / kLength, i % kLength, both.data(), both.data() + kSize);
    }
    cache.set_length(layer, row, kLength);
  }
}

// `count` slots of each layer and head, ascending.
std::vector<std::int64_t> random_slots(Random& random, std::int64_t count) {
  std::vector<std::int64_t> all(kLength), slots;
  std::iota(all.begin(), all.end(), 0);
  for (int i = 0; i < 4; ++i)
    std::sample(all.begin(), all.end(), std::back_inserter(slots), count, random);
  return slots;
}

void check_row(const KvCache& cache, std::int64_t row, const KvCache& before,
               const std::int64_t* slots, std::int64_t count) {
  for (std::int64_t i = 0; i < 4 * count; ++i) {
    const std::int64_t layer = i / count / 2, head = i / count % 2;
    const std::int64_t from = slots == nullptr ? i % count : slots[i];
    CHECK(read(cache, layer, row, head, i % count) == read(before, layer, row, head, from),
          "slot %lld of row %lld", static_cast<long long>(from), static_cast<long long>(row));
  }
}

void test_precision(Precision precision, Random& random, ThreadPool& pool) {
  KvCache cache(shape_of(precision));
  for (std::int64_t row = 0; row < 3; ++row) fill(cache, row, random);
  const auto before = cache.copy();
  for (const std::int64_t count : {kLength - 1, std::int64_t{1030}, std::int64_t{1}}) {
    const auto evicted = before->copy();
    const auto slots = random_slots(random, count);
    evicted->evict(1, slots.data(), count, pool);
    CHECK(evicted->length(1) == count && evicted->dropped(1) == kLength - count, "numbers");
    CHECK(evicted->positions(1)[count - 1] == count - 1, "positions");
    check_row(*evicted, 1, *before, slots.data(), count);
    for (const std::int64_t other : {0, 2}) check_row(*evicted, other, *before, nullptr, kLength);
    check_row(*evicted->copy(), 1, *evicted, nullptr, count);
    // Memory that was given back is written again.
    fill(*evicted, 1, random);
    check_row(*evicted, 2, *before, nullptr, kLength);
    evicted->trim(1, 0, 0, 2);
    CHECK(evicted->dropped(1) == 0, "an empty row");
  }
}

void test_bad_input(ThreadPool& pool) {
  KvCache cache(shape_of(Precision::bf16));
  for (std::int64_t layer = 0; layer < 2; ++layer) cache.set_length(layer, 0, 4);
  const std::int64_t all[] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
  const std::int64_t beyond[] = {0, 1, 0, 1, 0, 1, 0, 4};
  const std::int64_t falling[] = {0, 1, 0, 1, 1, 0, 0, 1};
  CHECK_THROWS(CacheError, cache.evict(0, beyond, 2, pool));
  CHECK_THROWS(CacheError, cache.evict(0, falling, 2, pool));
  CHECK_THROWS(CacheError, cache.evict(0, all, 0, pool));
  CHECK_THROWS(CacheError, cache.evict(0, all, 5, pool));
  CHECK_THROWS(CacheError, cache.evict(3, all, 1, pool));
  cache.set_length(1, 0, 3);
  CHECK_THROWS(CacheError, cache.evict(0, all, 4, pool));
  CHECK(cache.dropped(0) == 0 && cache.length(0, 0) == 4, "what is refused changes nothing");
}

}  // namespace
}  // namespace forerun::cpu::test

int main() {
  using namespace forerun::cpu;
  using namespace forerun::cpu::test;
  Random random(5);
  ThreadPool pool(2);
  const Forward forward(pool);
  for (const Precision precision :
       {Precision::fp32, Precision::bf16, Precision::int8, Precision::int4})
    test_precision(precision, random, pool);
  test_bad_input(pool);
  std::printf("ok\n");
}
