// Warping and drawing.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings.h"
#include "forerun/sampling.h"
#include "row_arguments.h"

namespace forerun::cpu {
namespace {

using Keys = std::vector<std::pair<std::uint64_t, std::int64_t>>;
using Noises = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using NoiseRow = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// one(row) for each row, as a list.
template <class T, class One>
Ids tokens_of(const Matrix& m, std::size_t count, One one) {
  check_shape("a matrix with a row for each key", m, static_cast<std::int64_t>(count), vocab_of(m));
  Ids tokens;
  for (std::size_t row = 0; row < count; ++row) {
    tokens.push_back(one(data<T>(m) + static_cast<std::int64_t>(row) * vocab_of(m), row));
  }
  return tokens;
}

std::pair<Ids, Ids> warp_rows(const Matrix& logits, const Matrix& probs, double temperature,
                              std::int64_t top_k, double top_p, double min_p) {
  check_shape("probs", probs, rows_of(logits), vocab_of(logits));
  check_same_type(logits, probs);
  const Warp warp{temperature, top_k, top_p, min_p};
  std::pair<Ids, Ids> dead_and_broken;
  by_type(logits, [&](auto zero) {
    using T = decltype(zero);
    const nb::gil_scoped_release released;
    const Scratch<T> scratch(scratches<T>());
    for (std::int64_t row = 0; row < rows_of(logits); ++row) {
      const std::int64_t begin = row * vocab_of(logits);
      const RowState state = warp_row(data<T>(logits) + begin, vocab_of(logits), warp,
                                      data<T>(probs) + begin, *scratch);
      if (state == RowState::dead) dead_and_broken.first.push_back(row);
      if (state == RowState::broken) dead_and_broken.second.push_back(row);
    }
  });
  return dead_and_broken;
}

Ids draw_rows(const Matrix& probs, const std::vector<double>& uniforms) {
  return by_type(probs, [&](auto zero) {
    using T = decltype(zero);
    return tokens_of<T>(probs, uniforms.size(), [&](const T* row, std::size_t index) {
      return draw(row, vocab_of(probs), uniforms[index]);
    });
  });
}

// The children of each row, and what they were drawn from, one after the other, in the first of
// `rows`.
std::vector<Ids> draw_siblings_of(const Matrix& probs, const Keys& keys,
                                  const std::vector<Ids>& nodes, bool replacement,
                                  const Matrix& rows) {
  const std::int64_t vocab = vocab_of(probs);
  std::size_t total = 0;
  for (const Ids& one : nodes) total += one.size();
  check_shape("a matrix with a row for each key", probs, static_cast<std::int64_t>(keys.size()),
              vocab);
  check_shape("rows", rows, static_cast<std::int64_t>(total), vocab);
  check_same_type(probs, rows);
  if (nodes.size() != keys.size()) throw std::invalid_argument("each key has its nodes");
  return by_type(probs, [&](auto zero) {
    using T = decltype(zero);
    const nb::gil_scoped_release released;
    std::vector<Ids> tokens;
    T* out = data<T>(rows);
    for (std::size_t row = 0; row < keys.size(); ++row) {
      const T* own = data<T>(probs) + static_cast<std::int64_t>(row) * vocab;
      const Siblings how{keys[row].first, keys[row].second, nodes[row], replacement};
      tokens.push_back(draw_siblings(own, vocab, how, out));
      out += static_cast<std::int64_t>(tokens.back().size()) * vocab;
    }
    return tokens;
  });
}

Ids couple_rows(const Matrix& probs, const Noises& noise) {
  if (noise.shape(0) != probs.shape(0) || noise.shape(1) != probs.shape(1)) {
    throw std::invalid_argument("noise must have the shape of probs");
  }
  return by_type(probs, [&](auto zero) {
    using T = decltype(zero);
    return tokens_of<T>(probs, noise.shape(0), [&](const T* row, std::size_t index) {
      return couple(row, vocab_of(probs), noise.data() + index * noise.shape(1));
    });
  });
}

Ids couple_keys(const Matrix& probs, const Keys& keys) {
  return by_type(probs, [&](auto zero) {
    using T = decltype(zero);
    return tokens_of<T>(probs, keys.size(), [&](const T* row, std::size_t index) {
      return couple(row, vocab_of(probs), Noise(keys[index].first, keys[index].second));
    });
  });
}

Ids top_rows(const Matrix& rows) {
  return by_type(rows, [&](auto zero) {
    using T = decltype(zero);
    return tokens_of<T>(rows, rows.shape(0), [&](const T* row, std::size_t) {
      std::int64_t token = -1;
      top_of_logits(row, vocab_of(rows), token);
      return token;
    });
  });
}

void write_noise(std::uint64_t seed, std::int64_t position, NoiseRow row) {
  const nb::gil_scoped_release released;
  const Noise noise(seed, position);
  const auto size = static_cast<std::int64_t>(row.shape(0));
  for (std::int64_t first = 0; first < size; first += Noise::kTokens) {
    double u[Noise::kTokens];
    noise.fractions(first, u);
    const std::int64_t count = std::min<std::int64_t>(Noise::kTokens, size - first);
    std::transform(u, u + count, row.data() + first, Noise::of_fraction);
  }
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def(
      "uniform",
      [](std::uint64_t seed, std::int64_t position, int purpose, std::int64_t node) {
        return uniform(seed, position, static_cast<Purpose>(purpose), node);
      },
      nb::arg("seed"), nb::arg("position"), nb::arg("purpose"), nb::arg("node"));
  m.def("write_noise", write_noise, nb::arg("seed"), nb::arg("position"),
        nb::arg("row").noconvert());
  m.def("warp_rows", warp_rows, nb::arg("logits"), nb::arg("probs").noconvert(),
        nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"),
        "Which rows are all -inf, which broken.");
  m.def("draw_rows", draw_rows, nb::arg("probs"), nb::arg("uniforms"));
  m.def("draw_siblings", draw_siblings_of, nb::arg("probs"), nb::arg("keys"), nb::arg("nodes"),
        nb::arg("replacement"), nb::arg("rows").noconvert(), "The tokens drawn from each row.");
  m.def("top_rows", top_rows, nb::arg("rows"),
        "The token of each row's largest value; -1 where that is infinite, or a value no number.");
  m.def("couple_rows", couple_rows, nb::arg("probs"), nb::arg("noise"));
  m.def("couple_keys", couple_keys, nb::arg("probs"), nb::arg("keys"));
}

}  // namespace forerun::cpu
