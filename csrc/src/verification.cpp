#include "forerun/verification.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "forerun/errors.h"
#include "forerun/sampling.h"
#include "float_mode.h"
#include "vector/vector_set.h"

namespace forerun::cpu {
namespace {

void check(const Tree& tree, std::int64_t vocab) {
  for (std::int64_t node = 0; node < tree.size; ++node) {
    if (tree.parents[node] < -1 || tree.parents[node] >= node) {
      throw std::invalid_argument("node " + std::to_string(node) + " of a draft has no parent before it");
    }
    if (tree.tokens[node] < 0 || tree.tokens[node] >= vocab) {
      throw std::invalid_argument("a draft holds token id " + std::to_string(tree.tokens[node]) +
                                  "; there are " + std::to_string(vocab) + " tokens");
    }
  }
}

// The first child of `parent` among the nodes after `node`; tree.size if there is none.
std::int64_t next_child(const Tree& tree, std::int64_t parent, std::int64_t node) {
  for (++node; node < tree.size && tree.parents[node] != parent;) ++node;
  return node;
}

template <class T>
std::vector<T>& scratch(std::int64_t vocab) {
  static thread_local std::vector<T> row;
  row.resize(static_cast<std::size_t>(vocab));
  return row;
}

// Scales `row` of this sum to one. Sums below the smallest normal number have no reciprocal.
template <class T>
void normalize(const T* row, double sum, std::int64_t vocab, T* out) {
  const double least = static_cast<double>(std::numeric_limits<T>::min());
  row_ops<T>().scale(row, static_cast<T>(1.0 / std::max(sum, least)), vocab, out);
}

// The probability that a child is accepted against what is left of its parent's row.
template <class T>
T acceptance(const T* left, const Rows<T>& rows, const Tree& tree, std::int64_t node) {
  const T p = left[tree.tokens[node]];
  if (rows.draft == nullptr) return std::min(p, T(1));
  const T q = rows.draft_of(node)[tree.tokens[node]];
  return q > T(0) ? std::min(p / q, T(1)) : T(0);
}

// What is left of a row once a child is rejected: in `out`, or `left` itself if nothing would be.
template <class T>
const T* take_away(const T* left, const Rows<T>& rows, const Tree& tree, std::int64_t node, T* out) {
  T* rest = scratch<T>(rows.vocab).data();
  double sum = 0.0;
  if (rows.draft != nullptr) {
    sum = row_ops<T>().residual(left, rows.draft_of(node), T(1), rows.vocab, rest);
  } else {
    const std::int64_t token = tree.tokens[node];
    if (left[token] == T(0)) return left;
    std::copy(left, left + rows.vocab, rest);
    rest[token] = T(0);
    sum = row_ops<T>().keep_from(rest, T(0), rows.vocab, rest);
  }
  if (!(sum > 0.0)) return left;
  normalize(rest, sum, rows.vocab, out);
  return out;
}

// The share of the draft's arrivals at a child that the target wants to pass through it, where it wants
// `weight` of those at the parent and continues them by the row `left`.
template <class T>
T weight_of_child(const T* left, T weight, const Rows<T>& rows, const Tree& tree, std::int64_t child) {
  const std::int64_t token = tree.tokens[child];
  const T q = rows.draft_of(child)[token];
  return q > T(0) ? std::min(weight * left[token] / q, T(1)) : T(0);
}

// The weight of a node once a child has failed and `spare` is what is left to emit after it.
template <class T>
T weight_left(double spare, T weight) {
  const T rest = static_cast<T>(spare);
  const T missing = T(1) - weight;
  // Nothing spare and nothing missing: the child cannot have failed, and 0/0 must not be either.
  return rest + missing > T(0) ? rest / (rest + missing) : T(1);
}

std::int64_t first_leaf(const Tree& tree, std::int64_t node) {
  for (std::int64_t child = next_child(tree, node, node); child < tree.size;) {
    node = child;
    child = next_child(tree, node, node);
  }
  return node;
}

void check_drawn(Rule rule, const Tree& tree, bool drawn) {
  if (tree.size > 0 && !drawn) {
    throw std::invalid_argument(rule == Rule::block ? "block verification takes drawn chains"
                                                    : "traversal verification takes drawn trees");
  }
  if (rule == Rule::block && !tree.is_chain()) {
    throw std::invalid_argument("block verification takes drawn chains");
  }
}

void refuse(RowState state) {
  if (state == RowState::broken) throw RowError("the model is broken: a row of its logits holds NaN or inf");
  if (state == RowState::dead) throw RowError("a row of logits is all -inf");
}

// Rows that outlive one call save the system's handing out of memory each round.
template <class T>
std::vector<T>& row_memory() {
  static thread_local std::vector<T> memory;
  return memory;
}

}  // namespace

template <class T>
WarpedRows<T>::WarpedRows(const T* logits, std::int64_t rows, std::int64_t vocab, const Warp& warp)
    : logits_(logits),
      vocab_(vocab),
      warp_(warp),
      made_(static_cast<std::size_t>(rows)),
      memory_(row_memory<T>()) {
  if (memory_.size() < static_cast<std::size_t>(rows * vocab)) {
    memory_.resize(static_cast<std::size_t>(rows * vocab));
  }
}

template <class T>
const T* WarpedRows<T>::row(std::int64_t index) {
  T* row = memory_.data() + index * vocab_;
  if (made_[static_cast<std::size_t>(index)]) return row;
  refuse(warp_row(logits_ + index * vocab_, vocab_, warp_, row));
  made_[static_cast<std::size_t>(index)] = true;
  return row;
}

bool Tree::is_chain() const {
  for (std::int64_t node = 0; node < size; ++node) {
    if (parents[node] != node - 1) return false;
  }
  return true;
}

namespace {

template <class T>
Decision<T> decide_token(const Tree& tree, const Rows<T>& rows, T* emit) {
  Decision<T> decision;
  for (std::int64_t node = 0; node < tree.size; ++node) {
    const std::int64_t parent = tree.parents[node];
    T* left = emit + (parent + 1) * rows.vocab;
    decision.accept.push_back(acceptance(left, rows, tree, node));
    take_away(left, rows, tree, node, left);
    const std::int64_t child = next_child(tree, node, node);
    const std::int64_t sibling = next_child(tree, parent, node);
    decision.on_accept.push_back(child < tree.size ? child : end_at(node));
    decision.on_reject.push_back(sibling < tree.size ? sibling : end_at(parent));
  }
  const std::int64_t first = next_child(tree, -1, -1);
  decision.start = first < tree.size ? first : end_at(-1);
  return decision;
}

template <class T>
Outcome verify_token(const Tree& tree, const Rows<T>& rows, const Uniforms& uniforms) {
  static thread_local std::vector<T> memory;
  memory.resize(static_cast<std::size_t>(rows.vocab));
  std::int64_t at = -1;
  const T* left = rows.target_after(at);
  std::int64_t child = next_child(tree, at, at);
  while (child < tree.size) {
    const T accept = acceptance(left, rows, tree, child);
    if (uniforms(Purpose::accept, child) < static_cast<double>(accept)) {
      at = child;
      left = rows.target_after(at);
    } else {
      left = take_away(left, rows, tree, child, memory.data());
    }
    child = next_child(tree, at, child);
  }
  return {at, draw(left, rows.vocab, uniforms(Purpose::emit, 0))};
}

// On a chain this is block verification, test by test.
template <class T>
Decision<T> decide_traversal(const Tree& tree, const Rows<T>& rows, T* emit) {
  Decision<T> decision;
  std::vector<T> weights(static_cast<std::size_t>(tree.size) + 1, T(1));
  T* rest = scratch<T>(rows.vocab).data();
  for (std::int64_t node = 0; node < tree.size; ++node) {
    // Parents and earlier siblings come first: both hold what the siblings before have left.
    const std::int64_t parent = tree.parents[node];
    T& weight = weights[static_cast<std::size_t>(parent + 1)];
    T* left = emit + (parent + 1) * rows.vocab;
    weights[static_cast<std::size_t>(node + 1)] = weight_of_child(left, weight, rows, tree, node);
    const double spare = row_ops<T>().residual(left, rows.draft_of(node), weight, rows.vocab, rest);
    weight = weight_left(spare, weight);
    if (spare > 0.0) normalize(rest, spare, rows.vocab, left);
    const std::int64_t sibling = next_child(tree, parent, node);
    decision.on_accept.push_back(end_at(node));
    decision.on_reject.push_back(sibling < tree.size ? first_leaf(tree, sibling)
                                 : parent >= 0       ? parent
                                                     : end_at(-1));
  }
  decision.accept.assign(weights.begin() + 1, weights.end());
  decision.start = tree.size > 0 ? first_leaf(tree, -1) : end_at(-1);
  return decision;
}

// A node on the path to the one that is judged.
template <class T>
struct Place {
  std::int64_t node;
  T weight;
  const T* left = nullptr;  // what is left to emit after it; null where that is the target's row
  double sum = 1.0;         // of `left`
};

template <class T>
Outcome verify_traversal(const Tree& tree, const Rows<T>& rows, const Uniforms& uniforms) {
  // What is left of a node while its later children are judged, by depth.
  static thread_local std::vector<std::vector<T>> memory;
  T* rest = scratch<T>(rows.vocab).data();
  std::vector<Place<T>> path = {{-1, T(1)}};
  std::int64_t child = next_child(tree, -1, -1);
  for (;;) {
    for (; child < tree.size; child = next_child(tree, child, child)) {
      Place<T>& above = path.back();
      if (above.left == nullptr) above.left = rows.target_after(above.node);
      const T weight = weight_of_child(above.left, above.weight, rows, tree, child);
      path.push_back({child, weight});
    }
    const Place<T> place = path.back();
    if (place.node < 0 || uniforms(Purpose::accept, place.node) < static_cast<double>(place.weight)) {
      const T* row = place.left != nullptr ? place.left : rows.target_after(place.node);
      if (row == rest) normalize(rest, place.sum, rows.vocab, rest);
      return {place.node, draw(row, rows.vocab, uniforms(Purpose::emit, 0))};
    }
    path.pop_back();
    Place<T>& above = path.back();
    const double spare =
        row_ops<T>().residual(above.left, rows.draft_of(place.node), above.weight, rows.vocab, rest);
    above.weight = weight_left(spare, above.weight);
    child = next_child(tree, above.node, place.node);
    if (!(spare > 0.0)) continue;
    above.left = rest;
    above.sum = spare;
    if (child >= tree.size) continue;  // It is judged next, and scaled if the path ends there.
    if (memory.size() < path.size()) memory.resize(path.size());
    std::vector<T>& kept = memory[path.size() - 1];
    kept.resize(static_cast<std::size_t>(rows.vocab));
    normalize(rest, spare, rows.vocab, kept.data());
    above.left = kept.data();
  }
}

}  // namespace

template <class T>
Decision<T> decide(Rule rule, const Tree& tree, const Rows<T>& rows, T* emit) {
  const FloatMode mode(FloatMode::Subnormals::ieee);
  check(tree, rows.vocab);
  if (rule != Rule::token) check_drawn(rule, tree, rows.draft != nullptr);
  std::copy(rows.target, rows.target + (tree.size + 1) * rows.vocab, emit);
  return rule == Rule::token ? decide_token(tree, rows, emit) : decide_traversal(tree, rows, emit);
}

template <class T>
Outcome verify(Rule rule, const Tree& tree, const Rows<T>& rows, const Uniforms& uniforms) {
  const FloatMode mode(FloatMode::Subnormals::ieee);
  check(tree, rows.vocab);
  if (rule != Rule::token) check_drawn(rule, tree, rows.draft != nullptr);
  return rule == Rule::token ? verify_token(tree, rows, uniforms) : verify_traversal(tree, rows, uniforms);
}

namespace {

// Down the tree along the tokens that `choose(node, depth)` names for the place after each node.
template <class Choose>
Outcome follow(const Tree& tree, const Choose& choose) {
  std::int64_t at = -1;
  for (std::int64_t depth = 0;; ++depth) {
    const std::int64_t token = choose(at, depth);
    std::int64_t child = next_child(tree, at, at);
    // Children may repeat a token: the path goes through the first of them.
    while (child < tree.size && tree.tokens[child] != token) child = next_child(tree, at, child);
    if (child >= tree.size) return {at, token};
    at = child;
  }
}

}  // namespace

template <class T>
Outcome verify_greedy(const Tree& tree, const T* logits, std::int64_t vocab) {
  check(tree, vocab);
  return follow(tree, [&](std::int64_t node, std::int64_t) {
    std::int64_t token = -1;
    refuse(top_of_logits(logits + (node + 1) * vocab, vocab, token));
    return token;
  });
}

template <class T>
Outcome verify_coupled(const Tree& tree, const Rows<T>& rows, std::uint64_t seed, std::int64_t committed,
                       bool greedy) {
  check(tree, rows.vocab);
  return follow(tree, [&](std::int64_t node, std::int64_t depth) {
    const T* row = rows.target_after(node);
    return greedy ? argmax(row, rows.vocab) : couple(row, rows.vocab, Noise(seed, committed + depth));
  });
}

#define FORERUN_INSTANTIATE(T)                                                                   \
  template class WarpedRows<T>;                                                                  \
  template Decision<T> decide(Rule, const Tree&, const Rows<T>&, T*);                            \
  template Outcome verify(Rule, const Tree&, const Rows<T>&, const Uniforms&);                   \
  template Outcome verify_greedy(const Tree&, const T*, std::int64_t);                           \
  template Outcome verify_coupled(const Tree&, const Rows<T>&, std::uint64_t, std::int64_t, bool);
FORERUN_INSTANTIATE(float)
FORERUN_INSTANTIATE(double)
#undef FORERUN_INSTANTIATE

}  // namespace forerun::cpu
