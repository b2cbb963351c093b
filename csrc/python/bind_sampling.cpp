// Warping, drawing and verification.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "forerun/sampling.h"
#include "forerun/verification.h"

namespace nb = nanobind;

namespace forerun::cpu {
namespace {

using Ids = std::vector<std::int64_t>;
using Keys = std::vector<std::pair<std::uint64_t, std::int64_t>>;
using Matrix = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Noises = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using NoiseRow = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// How a custom source of uniforms is asked: purpose, node.
using Source = std::function<double(int, std::int64_t)>;

std::int64_t rows_of(const Matrix& m) { return static_cast<std::int64_t>(m.shape(0)); }
std::int64_t vocab_of(const Matrix& m) { return static_cast<std::int64_t>(m.shape(1)); }

void check_shape(const char* what, const Matrix& m, std::int64_t rows, std::int64_t vocab) {
  if (rows_of(m) == rows && vocab_of(m) == vocab && vocab > 0) return;
  throw std::invalid_argument(std::string(what) + " must be [" + std::to_string(rows) + ", " +
                              std::to_string(vocab) + "] and not [" + std::to_string(rows_of(m)) + ", " +
                              std::to_string(vocab_of(m)) + "]");
}

void check_same_type(const Matrix& a, const Matrix& b) {
  if (a.dtype() != b.dtype()) throw std::invalid_argument("rows are all float32 or all float64");
}

// body(T{}) for the type of the rows.
template <class Body>
auto by_type(const Matrix& m, Body body) {
  if (m.dtype() == nb::dtype<float>()) return body(float{});
  if (m.dtype() == nb::dtype<double>()) return body(double{});
  throw std::invalid_argument("rows are float32 or float64");
}

template <class T>
T* data(const Matrix& m) {
  return static_cast<T*>(m.data());
}

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
    for (std::int64_t row = 0; row < rows_of(logits); ++row) {
      const std::int64_t begin = row * vocab_of(logits);
      const RowState state =
          warp_row(data<T>(logits) + begin, vocab_of(logits), warp, data<T>(probs) + begin);
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

// The children of each row, and what they were drawn from, one after the other, in the first of `rows`.
std::vector<Ids> draw_siblings_of(const Matrix& probs, const Keys& keys, const std::vector<Ids>& nodes,
                                  bool replacement, const Matrix& rows) {
  const std::int64_t vocab = vocab_of(probs);
  std::size_t total = 0;
  for (const Ids& one : nodes) total += one.size();
  check_shape("a matrix with a row for each key", probs, static_cast<std::int64_t>(keys.size()), vocab);
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

Ids top_rows(const Matrix& probs) {
  return by_type(probs, [&](auto zero) {
    using T = decltype(zero);
    return tokens_of<T>(probs, probs.shape(0),
                        [&](const T* row, std::size_t) { return argmax(row, vocab_of(probs)); });
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

// A draft and the rows that judge it, checked and of type T.
template <class T>
struct Judged {
  Tree tree;
  Rows<T> rows;

  Judged(const Ids& tokens, const Ids& parents, const Matrix& target, const std::optional<Matrix>& draft)
      : tree{tokens.data(), parents.data(), static_cast<std::int64_t>(tokens.size())},
        rows{data<T>(target), draft ? data<T>(*draft) : nullptr, vocab_of(target)} {
    if (parents.size() != tokens.size()) throw std::invalid_argument("each node has one parent");
    check_shape("target rows", target, tree.size + 1, rows.vocab);
    if (!draft) return;
    check_shape("draft rows", *draft, tree.size, rows.vocab);
    check_same_type(target, *draft);
  }
};

using Decided = std::tuple<std::vector<double>, Ids, Ids, std::int64_t>;

Rule rule_of(const std::string& name) {
  if (name == "token") return Rule::token;
  if (name == "block") return Rule::block;
  if (name == "traversal") return Rule::traversal;
  throw std::invalid_argument("the kernels know no rule " + name);
}

Decided decide_draft(const std::string& name, const Ids& tokens, const Ids& parents, const Matrix& target,
                     const std::optional<Matrix>& draft, const Matrix& emit) {
  const Rule rule = rule_of(name);
  check_shape("emit", emit, rows_of(target), vocab_of(target));
  check_same_type(target, emit);
  return by_type(target, [&](auto zero) {
    using T = decltype(zero);
    const Judged<T> judged(tokens, parents, target, draft);
    const auto decision = decide(rule, judged.tree, judged.rows, data<T>(emit));
    return Decided{{decision.accept.begin(), decision.accept.end()},
                   decision.on_accept,
                   decision.on_reject,
                   decision.start};
  });
}

std::pair<std::int64_t, std::int64_t> verify_draft(const std::string& name, const Ids& tokens,
                                                   const Ids& parents, const Matrix& target,
                                                   const std::optional<Matrix>& draft, std::uint64_t seed,
                                                   std::int64_t committed,
                                                   const std::optional<Source>& source) {
  const Rule rule = rule_of(name);
  const Uniforms uniforms = [&](Purpose purpose, std::int64_t node) {
    return source ? (*source)(static_cast<int>(purpose), node) : uniform(seed, committed, purpose, node);
  };
  return by_type(target, [&](auto zero) {
    using T = decltype(zero);
    const Judged<T> judged(tokens, parents, target, draft);
    const Outcome outcome = verify(rule, judged.tree, judged.rows, uniforms);
    return std::pair(outcome.end, outcome.token);
  });
}

std::pair<std::int64_t, std::int64_t> couple_tree(const Ids& tokens, const Ids& parents,
                                                   const Matrix& target, std::uint64_t seed,
                                                   std::int64_t committed, bool greedy) {
  return by_type(target, [&](auto zero) {
    using T = decltype(zero);
    const Judged<T> judged(tokens, parents, target, std::nullopt);
    const nb::gil_scoped_release released;
    const Outcome outcome = verify_coupled(judged.tree, judged.rows, seed, committed, greedy);
    return std::pair(outcome.end, outcome.token);
  });
}

using WarpArguments = std::tuple<double, std::int64_t, double, double>;

// Warps and verifies in one go: rows that the walk does not come by are never warped.
std::pair<std::int64_t, std::int64_t> judge(const std::string& name, const Ids& tokens, const Ids& parents,
                                            const Matrix& logits, const std::optional<Matrix>& draft,
                                            const WarpArguments& warp_arguments, std::uint64_t seed,
                                            std::int64_t committed) {
  const bool coupled = name == "coupled";
  const Rule rule = coupled ? Rule::token : rule_of(name);
  Warp warp;
  std::tie(warp.temperature, warp.top_k, warp.top_p, warp.min_p) = warp_arguments;
  const Uniforms uniforms = [&](Purpose purpose, std::int64_t node) {
    return uniform(seed, committed, purpose, node);
  };
  return by_type(logits, [&](auto zero) {
    using T = decltype(zero);
    Judged<T> judged(tokens, parents, logits, draft);
    const nb::gil_scoped_release released;
    if (warp.greedy()) {
      const Outcome outcome = verify_greedy(judged.tree, judged.rows.target, judged.rows.vocab);
      return std::pair(outcome.end, outcome.token);
    }
    WarpedRows<T> rows(judged.rows.target, judged.tree.size + 1, judged.rows.vocab, warp);
    judged.rows.warped = &rows;
    const Outcome outcome = coupled ? verify_coupled(judged.tree, judged.rows, seed, committed, false)
                                    : verify(rule, judged.tree, judged.rows, uniforms);
    return std::pair(outcome.end, outcome.token);
  });
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def("uniform", [](std::uint64_t seed, std::int64_t position, int purpose, std::int64_t node) {
    return uniform(seed, position, static_cast<Purpose>(purpose), node);
  }, nb::arg("seed"), nb::arg("position"), nb::arg("purpose"), nb::arg("node"));
  m.def("judge", judge, nb::arg("rule"), nb::arg("tokens"), nb::arg("parents"), nb::arg("logits"),
        nb::arg("draft").none(), nb::arg("warp"), nb::arg("seed"), nb::arg("committed"),
        "Warp and verify: the node where the path ends and the token after it.");
  m.def("write_noise", write_noise, nb::arg("seed"), nb::arg("position"), nb::arg("row").noconvert());
  m.def("warp_rows", warp_rows, nb::arg("logits"), nb::arg("probs").noconvert(), nb::arg("temperature"),
        nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"), "Which rows are all -inf, which broken.");
  m.def("draw_rows", draw_rows, nb::arg("probs"), nb::arg("uniforms"));
  m.def("draw_siblings", draw_siblings_of, nb::arg("probs"), nb::arg("keys"), nb::arg("nodes"),
        nb::arg("replacement"), nb::arg("rows").noconvert(), "The tokens drawn from each row.");
  m.def("top_rows", top_rows, nb::arg("probs"));
  m.def("couple_rows", couple_rows, nb::arg("probs"), nb::arg("noise"));
  m.def("couple_keys", couple_keys, nb::arg("probs"), nb::arg("keys"));
  m.def("decide", decide_draft, nb::arg("rule"), nb::arg("tokens"), nb::arg("parents"), nb::arg("target"),
        nb::arg("draft").none(), nb::arg("emit").noconvert(), "accept, on_accept, on_reject, start");
  m.def("verify", verify_draft, nb::arg("rule"), nb::arg("tokens"), nb::arg("parents"), nb::arg("target"),
        nb::arg("draft").none(), nb::arg("seed"), nb::arg("committed"), nb::arg("source").none(),
        "The end of the path and the token after it.");
  m.def("verify_coupled", couple_tree, nb::arg("tokens"), nb::arg("parents"), nb::arg("target"),
        nb::arg("seed"), nb::arg("committed"), nb::arg("greedy"),
        "The end of the path and the token after it.");
}

}  // namespace forerun::cpu
