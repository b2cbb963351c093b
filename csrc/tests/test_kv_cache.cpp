// What a slot is given, whatever the heads' size and the slot's place in its tile, it holds.
#include <limits>

#include "check.h"
#include "forerun/kv_cache.h"
#include "numbers.h"

namespace forerun::cpu::test {
namespace {

constexpr std::int64_t kSlots = kTileSlots + 5, kHeads = 2;

std::vector<float> stored(Precision precision, std::vector<float> numbers) {
  for (float& x : numbers)
    if (precision == Precision::bf16) x = bf16_to_float(float_to_bf16(x));
  return numbers;
}

// Keys and values of all slots of a head, [kSlots, 2, size].
std::vector<float> read(const KvCache& cache, std::int64_t head, std::int64_t size) {
  std::vector<float> all(static_cast<std::size_t>(2 * kSlots * size));
  for (std::int64_t slot = 0; slot < kSlots; ++slot) {
    float* key = all.data() + 2 * slot * size;
    cache.read(0, 0, head, slot, key, key + size);
  }
  return all;
}

void test_sizes(Precision precision, std::int64_t size, Random& random) {
  KvCache::Shape shape;
  shape.precision = precision;
  shape.kv_heads = kHeads;
  shape.head_dim = size;
  shape.capacity = kSlots;
  KvCache cache(shape);
  std::vector<float> numbers[kHeads];
  // Twice: what a slot held before is gone.
  for (int i = 0; i < 2; ++i) {
    for (auto& of_head : numbers) of_head = normal(random, 2 * kSlots * size);
    for (std::int64_t slot = 0; slot < kSlots; ++slot) {
      for (std::int64_t head = 0; head < kHeads; ++head) {
        const float* key = numbers[head].data() + 2 * slot * size;
        cache.write(0, 0, head, slot, key, key + size);
      }
    }
  }
  for (std::int64_t head = 0; head < kHeads; ++head)
    CHECK(read(cache, head, size) == stored(precision, numbers[head]), "%s, %lld dimensions",
          precision_name(precision), static_cast<long long>(size));
  // Behind the dimensions lie zeros: kernels multiply whole lines.
  const auto per_line = cache.slots_per_line();
  for (std::int64_t slot = 0; slot < kSlots && size % per_line != 0; ++slot) {
    std::uint16_t behind = 1;
    const std::uint8_t* last = cache.keys(0, 0, 0, slot) + (cache.key_lines() - 1) * kLineBytes;
    std::memcpy(&behind, last + slot % kBlockRows * 4 + 2, sizeof behind);
    CHECK(behind == 0, "behind %lld dimensions", static_cast<long long>(size));
  }
}

void test_not_numbers(Precision precision) {
  KvCache::Shape shape;
  shape.precision = precision;
  shape.head_dim = 3;
  KvCache cache(shape);
  const float key[] = {1.0f, 2.0f, 3.0f};
  const float value[] = {1.0f, std::numeric_limits<float>::infinity(), 3.0f};
  float k[3], v[3];
  cache.write(0, 0, 0, 0, key, value);
  cache.read(0, 0, 0, 0, k, v);
  for (int i = 0; i < 3; ++i) CHECK(k[i] != k[i] && v[i] == 0.0f, "a value that is no number");
}

}  // namespace
}  // namespace forerun::cpu::test

int main() {
  using namespace forerun::cpu;
  using namespace forerun::cpu::test;
  Random random(7);
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    for (const std::int64_t size : {1, 5, 16, 32, 64, 65, 80, 128, 129, 200})
      test_sizes(precision, size, random);
    test_not_numbers(precision);
  }
  std::printf("ok\n");
}
