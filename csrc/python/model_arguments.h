// Arguments that models and modules share. What is written into is never converted: a copy would be
// filled and lost.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "forerun/activation.h"
#include "forerun/batch_rows.h"
#include "forerun/cpu_level.h"
#include "forerun/kv_cache.h"

namespace forerun::cpu {

namespace nb = nanobind;

template <class T, int dimensions>
using Array = nb::ndarray<T, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;
using Lists = std::vector<std::vector<std::int64_t>>;

inline void expect(bool fits, const char* what) {
  if (!fits) throw std::invalid_argument(std::string(what) + " has a shape that does not fit");
}

template <class T, int dimensions>
bool is_shaped(const Array<T, dimensions>& array, const std::int64_t (&shape)[dimensions]) {
  for (int i = 0; i < dimensions; ++i) {
    if (static_cast<std::int64_t>(array.shape(static_cast<std::size_t>(i))) != shape[i])
      return false;
  }
  return true;
}

// The lock of a cache or a draft head, taken without the interpreter's: a forward on another thread
// ends without that.
template <class T>
std::unique_lock<std::recursive_mutex> lock(const T& used) {
  std::unique_lock held(used.mutex(), std::try_to_lock);
  if (held) return held;
  const nb::gil_scoped_release released;
  held.lock();
  return held;
}

// Sinks, window, whether codes are read coarsely, and blocks.
using ViewArguments = std::tuple<std::int64_t, std::int64_t, bool, std::int64_t>;

inline View view_of(const std::optional<ViewArguments>& view) {
  if (!view) return {};
  const auto [sinks, window, coarse, blocks] = *view;
  if (window < 1) throw std::invalid_argument("a view has a window of 1 or more");
  return {sinks, window, coarse, blocks};
}

// Empty: the best.
inline Level level_named(const std::string& name) {
  if (name.empty()) return best_level();
  for (const Level level : kLevels) {
    if (name == level_name(level)) return level;
  }
  throw std::invalid_argument("no instruction set " + name);
}

inline Activation activation_named(const std::string& name) {
  if (name == "silu") return Activation::silu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  if (name == "gelu_erf") return Activation::gelu_erf;
  if (name == "relu") return Activation::relu;
  if (name == "clamped_swiglu") return Activation::clamped_swiglu;
  throw std::invalid_argument("no activation " + name);
}

template <class T>
T take(const nb::dict& values, const char* name) {
  return nb::cast<T>(values[name]);
}

// The rows of a batch, its positions padded; it keeps what `put` points to.
class BatchArguments {
 public:
  BatchArguments(std::vector<std::int64_t> rows, const Lists& positions,
                 std::optional<Array<const bool, 3>> tree_mask)
      : rows_(std::move(rows)), mask_(std::move(tree_mask)) {
    expect(rows_.size() == positions.size(), "rows");
    for (const auto& some : positions) {
      width_ = std::max(width_, static_cast<std::int64_t>(some.size()));
    }
    positions_ = padded(positions, -1);
  }

  std::int64_t size() const { return static_cast<std::int64_t>(rows_.size()); }
  std::int64_t width() const { return width_; }

  std::vector<std::int64_t> padded(const Lists& lists, std::int64_t padding) const {
    std::vector<std::int64_t> values(rows_.size() * static_cast<std::size_t>(width_), padding);
    auto at = values.begin();
    for (const auto& list : lists) {
      std::copy(list.begin(), list.end(), at);
      at += width_;
    }
    return values;
  }

  // For a cache of one layer.
  BatchRows of(KvCache& cache) const {
    BatchRows batch;
    put(batch);
    batch.cache = &cache;
    batch.end_layer = 1;
    return batch;
  }

  void put(BatchRows& batch) const {
    batch.rows = rows_;
    batch.width = width_;
    batch.positions = positions_.data();
    if (!mask_) return;
    const auto columns = static_cast<std::int64_t>(mask_->shape(2));
    expect(is_shaped(*mask_, {size(), width_, columns}) && columns >= width_, "tree_mask");
    batch.tree_mask = reinterpret_cast<const std::uint8_t*>(mask_->data());
    batch.mask_columns = columns;
  }

 private:
  std::vector<std::int64_t> rows_;
  std::vector<std::int64_t> positions_;
  std::optional<Array<const bool, 3>> mask_;
  std::int64_t width_ = 0;
};

}  // namespace forerun::cpu
