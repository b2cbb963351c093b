// What the machine can do at best, for benchmarks.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings.h"
#include "forerun/buffer.h"
#include "forerun/errors.h"
#include "forerun/kv_cache.h"
#include "forerun/machine.h"
#include "forerun/thread_pool.h"

namespace nb = nanobind;

namespace forerun::cpu {
namespace {

constexpr std::size_t kOwn = std::size_t{1} << 20;
constexpr double kWakeSeconds = 1e-4;  // that the threads need to be there when the clock starts

// Memory to read in order, all of it in place.
class Stream {
 public:
  explicit Stream(std::size_t bytes) : memory_(bytes) {
    if (bytes == 0) throw std::invalid_argument("there must be something to read");
    // All pages never written to are one page of memory.
    for (std::size_t i = 0; i < bytes; i += 512)
      memory_.data()[i] = static_cast<std::uint8_t>(i >> 9);
  }

  std::size_t bytes() const { return memory_.size(); }

  double read(ThreadPool& pool, std::size_t bytes, int times) const {
    if (bytes == 0 || bytes > memory_.size() || times < 1) {
      throw std::invalid_argument(
          "at least 1 byte must be read at least once, and no more than there are");
    }
    const nb::gil_scoped_release released;
    const Forward forward(pool);
    for (const double until = machine::seconds() + kWakeSeconds; machine::seconds() < until;) {
    }
    // A call of the pool takes longer than reading what a thread's own caches hold.
    if (bytes <= kOwn * static_cast<std::size_t>(pool.size()))
      return machine::read_again(memory_.data(), bytes, times, pool);
    double total = 0.0;
    for (int i = 0; i < times; ++i) total += machine::read_stream(memory_.data(), bytes, pool);
    return total / times;
  }

 private:
  Buffer memory_;
};

double peak(ThreadPool& pool, const std::string& precision) {
  const Precision p = precision_named(precision);
  const nb::gil_scoped_release released;
  const Forward forward(pool);
  for (const double until = machine::seconds() + kWakeSeconds; machine::seconds() < until;) {
  }
  return machine::peak_rate(p, pool);
}

// Small values that differ, without a generator's time.
float value_of(std::int64_t i) { return static_cast<float>(i * 37 % 101 - 50) / 100.0f; }

void fill(KvCache& cache, std::int64_t row, std::int64_t length) {
  cache.check_row(row);
  const KvCache::Shape& shape = cache.shape();
  if (length < 0 || length > shape.capacity) throw CacheError("a row has no room for that");
  // What was known of its slots is of other text; a row that is cut gives its memory back.
  cache.trim(row, 0, 0, shape.layers);
  std::vector<float> values(static_cast<std::size_t>(shape.head_dim));
  for (std::int64_t slot = 0; slot < length; ++slot) {
    for (std::int64_t i = 0; i < shape.head_dim; ++i)
      values[static_cast<std::size_t>(i)] = value_of(i + slot);
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        cache.write(layer, row, head, slot, values.data(), values.data());
      }
    }
    cache.positions(row)[slot] = slot;
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) cache.set_length(layer, row, length);
}

}  // namespace

void bind_machine(nb::module_& m) {
  nb::class_<Stream>(m, "Stream", "Memory to measure the streaming read bandwidth with.")
      .def(nb::init<std::size_t>(), nb::arg("bytes"))
      .def_prop_ro("nbytes", &Stream::bytes)
      .def("read", &Stream::read, nb::arg("pool"), nb::arg("bytes"), nb::arg("times") = 1,
           "Seconds for all threads to read the first `bytes` once, the mean of `times` in a row.");
  m.def("peak_rate", &peak, nb::arg("pool"), nb::arg("precision"),
        "Multiply-adds a second of the precision's instruction, operands in registers; 0: no such "
        "instruction.");
  m.def("fill_cache", &fill, nb::arg("cache"), nb::arg("row"), nb::arg("length"),
        "Give a row `length` slots of keys and values that mean nothing.");
}

}  // namespace forerun::cpu
