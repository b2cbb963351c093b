#include "forerun/verification.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "float_mode.h"
#include "forerun/errors.h"
#include "forerun/sampling.h"
#include "vector/vector_set.h"

namespace forerun::cpu {
namespace {

void check(const Tree& tree, std::int64_t vocab) {
  for (std::int64_t node = 0; node < tree.size; ++node) {
    if (tree.parents[node] < -1 || tree.parents[node] >= node) {
      throw std::invalid_argument("node " + std::to_string(node) +
                                  " of a draft has no parent before it");
    }
    if (tree.tokens[node] < 0 || tree.tokens[node] >= vocab) {
      throw std::invalid_argument("a draft holds token id " + std::to_string(tree.tokens[node]) +
                                  "; there are " + std::to_string(vocab) + " tokens");
    }
  }
}

// The first child of `parent` among the nodes after `node`; tree.size where it has no more.
std::int64_t next_child(const Tree& tree, std::int64_t parent, std::int64_t node) {
  for (++node; node < tree.size && tree.parents[node] != parent;) ++node;
  return node;
}

// The residual of a row is made here.
template <class T>
T* residual_row(RowScratch<T>& scratch, std::int64_t vocab) {
  scratch.residual.resize(static_cast<std::size_t>(vocab));
  return scratch.residual.data();
}

// What is left of a node while its later children are tested.
template <class T>
T* row_at_depth(RowScratch<T>& scratch, std::size_t depth, std::int64_t vocab) {
  if (scratch.levels.size() <= depth) scratch.levels.resize(depth + 1);
  scratch.levels[depth].resize(static_cast<std::size_t>(vocab));
  return scratch.levels[depth].data();
}

// Scales `row` of this sum to one. Sums below the smallest normal number have no reciprocal.
template <class T>
void normalize(const T* row, double sum, std::int64_t vocab, T* out) {
  const double least = static_cast<double>(std::numeric_limits<T>::min());
  row_ops<T>().scale(row, static_cast<T>(1.0 / std::max(sum, least)), vocab, out);
}

// The probability that a child is accepted, `p` being its token's in what is left of its parent's
// row.
template <class T>
T acceptance(T p, const Rows<T>& rows, const Tree& tree, std::int64_t node) {
  if (rows.draft == nullptr) return std::min(p, T(1));
  const T q = rows.draft_of(node)[tree.tokens[node]];
  return q > T(0) ? std::min(p / q, T(1)) : T(0);
}

// What is left of a row once a child is rejected: in `out`, or `left` itself if nothing would be.
template <class T>
const T* take_away(const T* left, const Rows<T>& rows, const Tree& tree, std::int64_t node, T* out,
                   RowScratch<T>& scratch) {
  T* rest = residual_row(scratch, rows.vocab);
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

// The share of the draft's arrivals at a child that the target wants to pass through it, where it
// wants `weight` of those at the parent and continues them to the child with probability `p`.
template <class T>
T weight_of_child(T p, T weight, const Rows<T>& rows, const Tree& tree, std::int64_t child) {
  const T q = rows.draft_of(child)[tree.tokens[child]];
  return q > T(0) ? std::min(weight * p / q, T(1)) : T(0);
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

void check_taken(Rule rule, const Tree& tree, bool drawn) {
  if (rule == Rule::coupled) throw std::invalid_argument("coupled verification decides nothing");
  if (rule == Rule::token || tree.size == 0 || drawn) return;
  throw std::invalid_argument("traversal verification takes drawn trees");
}

void refuse(RowState state) {
  if (state == RowState::broken)
    throw RowError("the model is broken: a row of its logits holds NaN or inf");
  if (state == RowState::dead) throw RowError("a row of logits is all -inf");
}

}  // namespace

template <class T>
WarpedRows<T>::WarpedRows(const T* logits, const Tree& tree, std::int64_t vocab, const Warp& warp,
                          RowScratch<T>& scratch, const Helpers<T>& helpers)
    : logits_(logits),
      tree_(tree),
      vocab_(vocab),
      warp_(warp),
      made_(static_cast<std::size_t>(tree.size) + 1),
      states_(static_cast<std::size_t>(tree.size) + 1),
      scratch_(scratch),
      helpers_(helpers) {
  const auto size = made_.size() * static_cast<std::size_t>(vocab);
  if (scratch.rows.size() < size) scratch.rows.resize(size);
  if (scratch.sparse_rows.size() < made_.size()) scratch.sparse_rows.resize(made_.size());
}

template <class T>
void WarpedRows<T>::require(std::int64_t index) {
  if (made_[static_cast<std::size_t>(index)] == 0) make_from(index);
  refuse(states_[static_cast<std::size_t>(index)]);
}

template <class T>
const T* WarpedRows<T>::row(std::int64_t index) {
  require(index);
  SparseRow<T>& sparse = scratch_.sparse_rows[static_cast<std::size_t>(index)];
  if (std::exchange(sparse.holds_row, false)) sparse.write(place(index), vocab_);
  return place(index);
}

template <class T>
T WarpedRows<T>::prob(std::int64_t index, std::int64_t token) {
  require(index);
  const SparseRow<T>& sparse = scratch_.sparse_rows[static_cast<std::size_t>(index)];
  return sparse.holds_row ? sparse.prob(token) : place(index)[token];
}

template <class T>
std::int64_t WarpedRows<T>::couple(std::int64_t index, const Noise& noise) {
  require(index);
  const SparseRow<T>& sparse = scratch_.sparse_rows[static_cast<std::size_t>(index)];
  return sparse.holds_row ? cpu::couple(sparse, noise) : cpu::couple(place(index), vocab_, noise);
}

template <class T>
void WarpedRows<T>::make_from(std::int64_t index) {
  if (helpers_.pool == nullptr) return make(index, scratch_);
  std::vector<std::int64_t> wanted = {index};
  const auto most = static_cast<std::size_t>(helpers_.pool->size());
  for (std::int64_t node = index - 1; wanted.size() < most;) {
    node = next_child(tree_, node, node);
    if (node >= tree_.size) break;
    if (made_[static_cast<std::size_t>(node + 1)] == 0) wanted.push_back(node + 1);
  }
  helpers_.pool->for_ranges(static_cast<std::int64_t>(wanted.size()), 1, [&](const Range& range) {
    const typename ScratchPool<T>::Lease scratch(*helpers_.scratches);
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      make(wanted[static_cast<std::size_t>(i)], *scratch);
    }
  });
}

template <class T>
void WarpedRows<T>::make(std::int64_t index, RowScratch<T>& scratch) {
  const auto row = static_cast<std::size_t>(index);
  states_[row] = warp_row_sparsely(logits_ + index * vocab_, vocab_, warp_, place(index),
                                   scratch_.sparse_rows[row], scratch);
  made_[row] = 1;
}

namespace {

template <class T>
Decision<T> decide_token(const Tree& tree, const Rows<T>& rows, T* emit, RowScratch<T>& scratch) {
  Decision<T> decision;
  for (std::int64_t node = 0; node < tree.size; ++node) {
    const std::int64_t parent = tree.parents[node];
    T* left = emit + (parent + 1) * rows.vocab;
    decision.accept.push_back(acceptance(left[tree.tokens[node]], rows, tree, node));
    take_away(left, rows, tree, node, left, scratch);
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
Outcome verify_token(const Tree& tree, const Rows<T>& rows, const Uniforms& uniforms,
                     RowScratch<T>& scratch) {
  T* memory = row_at_depth(scratch, 0, rows.vocab);
  std::int64_t at = -1;
  const T* left = nullptr;  // what rejected children leave; null where none was rejected
  const auto row = [&] { return left != nullptr ? left : rows.target_after(at); };
  std::int64_t child = next_child(tree, at, at);
  while (child < tree.size) {
    const std::int64_t token = tree.tokens[child];
    const T p = left != nullptr ? left[token] : rows.prob_after(at, token);
    const T accept = acceptance(p, rows, tree, child);
    if (uniforms(Purpose::accept, child) < static_cast<double>(accept)) {
      at = child;
      left = nullptr;
    } else {
      left = take_away(row(), rows, tree, child, memory, scratch);
    }
    child = next_child(tree, at, child);
  }
  return {at, draw(row(), rows.vocab, uniforms(Purpose::emit, 0))};
}

// On a chain this is block verification, test by test.
template <class T>
Decision<T> decide_traversal(const Tree& tree, const Rows<T>& rows, T* emit,
                             RowScratch<T>& scratch) {
  Decision<T> decision;
  std::vector<T> weights(static_cast<std::size_t>(tree.size) + 1, T(1));
  T* rest = residual_row(scratch, rows.vocab);
  for (std::int64_t node = 0; node < tree.size; ++node) {
    // Parents and earlier siblings come first: both hold what the siblings before have left.
    const std::int64_t parent = tree.parents[node];
    T& weight = weights[static_cast<std::size_t>(parent + 1)];
    T* left = emit + (parent + 1) * rows.vocab;
    weights[static_cast<std::size_t>(node + 1)] =
        weight_of_child(left[tree.tokens[node]], weight, rows, tree, node);
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

// A node on the path to the one that is tested.
template <class T>
struct PathNode {
  std::int64_t node;
  T weight;
  const T* left = nullptr;  // what is left to emit after it; null where that is the target's row
  double sum = 1.0;         // of `left`

  const T* row(const Rows<T>& rows) const {
    return left != nullptr ? left : rows.target_after(node);
  }
};

template <class T>
Outcome verify_traversal(const Tree& tree, const Rows<T>& rows, const Uniforms& uniforms,
                         RowScratch<T>& scratch) {
  T* rest = residual_row(scratch, rows.vocab);
  std::vector<PathNode<T>> path = {{-1, T(1)}};
  std::int64_t child = next_child(tree, -1, -1);
  for (;;) {
    for (; child < tree.size; child = next_child(tree, child, child)) {
      const PathNode<T>& above = path.back();
      const std::int64_t token = tree.tokens[child];
      const T p = above.left != nullptr ? above.left[token] : rows.prob_after(above.node, token);
      path.push_back({child, weight_of_child(p, above.weight, rows, tree, child)});
    }
    const PathNode<T> tested = path.back();
    if (tested.node < 0 ||
        uniforms(Purpose::accept, tested.node) < static_cast<double>(tested.weight)) {
      const T* row = tested.row(rows);
      if (row == rest) normalize(rest, tested.sum, rows.vocab, rest);
      return {tested.node, draw(row, rows.vocab, uniforms(Purpose::emit, 0))};
    }
    path.pop_back();
    PathNode<T>& above = path.back();
    const double spare = row_ops<T>().residual(above.row(rows), rows.draft_of(tested.node),
                                               above.weight, rows.vocab, rest);
    above.weight = weight_left(spare, above.weight);
    child = next_child(tree, above.node, tested.node);
    if (!(spare > 0.0)) continue;
    above.left = rest;
    above.sum = spare;
    if (child >= tree.size) continue;  // It is tested next, and scaled if the path ends there.
    T* left = row_at_depth(scratch, path.size() - 1, rows.vocab);
    normalize(rest, spare, rows.vocab, left);
    above.left = left;
  }
}

}  // namespace

template <class T>
Decision<T> decide(Rule rule, const Tree& tree, const Rows<T>& rows, T* emit,
                   RowScratch<T>& scratch) {
  const FloatMode mode(FloatMode::Subnormals::ieee);
  check(tree, rows.vocab);
  check_taken(rule, tree, rows.draft != nullptr);
  std::copy(rows.target, rows.target + (tree.size + 1) * rows.vocab, emit);
  return rule == Rule::token ? decide_token(tree, rows, emit, scratch)
                             : decide_traversal(tree, rows, emit, scratch);
}

template <class T>
Outcome verify(Rule rule, const Tree& tree, const Rows<T>& rows, const Uniforms& uniforms,
               RowScratch<T>& scratch) {
  const FloatMode mode(FloatMode::Subnormals::ieee);
  check(tree, rows.vocab);
  check_taken(rule, tree, rows.draft != nullptr);
  return rule == Rule::token ? verify_token(tree, rows, uniforms, scratch)
                             : verify_traversal(tree, rows, uniforms, scratch);
}

namespace {

// Down the tree along the tokens that `choose(node, depth)` names for each node's next token.
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
Outcome verify_coupled(const Tree& tree, const Rows<T>& rows, std::uint64_t seed,
                       std::int64_t committed) {
  check(tree, rows.vocab);
  return follow(tree, [&](std::int64_t node, std::int64_t depth) {
    return rows.couple_after(node, Noise(seed, committed + depth));
  });
}

#define FORERUN_INSTANTIATE(T)                                                                 \
  template class WarpedRows<T>;                                                                \
  template Decision<T> decide(Rule, const Tree&, const Rows<T>&, T*, RowScratch<T>&);          \
  template Outcome verify(Rule, const Tree&, const Rows<T>&, const Uniforms&, RowScratch<T>&); \
  template Outcome verify_greedy(const Tree&, const T*, std::int64_t);                         \
  template Outcome verify_coupled(const Tree&, const Rows<T>&, std::uint64_t, std::int64_t);
FORERUN_INSTANTIATE(float)
FORERUN_INSTANTIATE(double)
#undef FORERUN_INSTANTIATE

}  // namespace forerun::cpu
