// Rows of logits or probabilities as arguments: what they must be, and their type.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "forerun/row_scratch.h"

namespace forerun::cpu {

namespace nb = nanobind;

using Ids = std::vector<std::int64_t>;
using Matrix = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>;

inline std::int64_t rows_of(const Matrix& m) { return static_cast<std::int64_t>(m.shape(0)); }
inline std::int64_t vocab_of(const Matrix& m) { return static_cast<std::int64_t>(m.shape(1)); }

inline void check_shape(const char* what, const Matrix& m, std::int64_t rows, std::int64_t vocab) {
  if (rows_of(m) == rows && vocab_of(m) == vocab && vocab > 0) return;
  throw std::invalid_argument(std::string(what) + " must be [" + std::to_string(rows) + ", " +
                              std::to_string(vocab) + "] and not [" + std::to_string(rows_of(m)) +
                              ", " + std::to_string(vocab_of(m)) + "]");
}

inline void check_same_type(const Matrix& a, const Matrix& b) {
  if (a.dtype() != b.dtype()) throw std::invalid_argument("rows are all float32 or all float64");
}

// body(T{}) for the type of the rows.
template <class Body>
auto by_type(const Matrix& m, Body body) {
  if (m.dtype() == nb::dtype<float>()) return body(float{});
  if (m.dtype() == nb::dtype<double>()) return body(double{});
  throw std::invalid_argument("rows are float32 or float64");
}

// For all calls of the process.
template <class T>
ScratchPool<T>& scratches() {
  static ScratchPool<T> pool;
  return pool;
}
template <class T>
using Scratch = typename ScratchPool<T>::Lease;

template <class T>
T* data(const Matrix& m) {
  return static_cast<T*>(m.data());
}

}  // namespace forerun::cpu
