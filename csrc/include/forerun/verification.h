// The rules of forerun/verification over dense rows: what they decide, and the walk that needs only the
// part of the decision that it comes by. T is float or double.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "forerun/randomness.h"
#include "forerun/sampling.h"

namespace forerun::cpu {

// A tree of drafted tokens; parents come first, -1 is the last committed token.
struct Tree {
  const std::int64_t* tokens;
  const std::int64_t* parents;
  std::int64_t size;

  bool is_chain() const;
};

// Rows of probability made from logits [n + 1, vocab] when they are first asked for. A walk comes by few.
template <class T>
class WarpedRows {
 public:
  WarpedRows(const T* logits, std::int64_t rows, std::int64_t vocab, const Warp& warp);

  // Throws std::domain_error for a row that holds NaN or inf, or leaves no token possible.
  const T* row(std::int64_t index);

 private:
  const T* logits_;
  std::int64_t vocab_;
  Warp warp_;
  std::vector<bool> made_;
  std::vector<T>& memory_;
};

template <class T>
struct Rows {
  const T* target;  // [n + 1, vocab]
  const T* draft;   // [n, vocab]; null for point masses
  std::int64_t vocab;
  WarpedRows<T>* warped = nullptr;  // in place of `target`

  const T* target_after(std::int64_t node) const {
    return warped != nullptr ? warped->row(node + 1) : target + (node + 1) * vocab;
  }
  const T* draft_of(std::int64_t node) const { return draft + node * vocab; }
};

// As in forerun/verification/decision.py; the rows to emit from are written to where the caller says.
template <class T>
struct Decision {
  std::vector<T> accept;
  std::vector<std::int64_t> on_accept;
  std::vector<std::int64_t> on_reject;
  std::int64_t start;
};

// The code of "the path ends at `node`".
constexpr std::int64_t end_at(std::int64_t node) { return ~(node + 1); }

struct Outcome {
  std::int64_t end;    // the last accepted node, -1 for none
  std::int64_t token;  // emitted after it
};

// Purpose accept with the test's number, or emit with 0.
using Uniforms = std::function<double(Purpose, std::int64_t)>;

// The rules that are nothing but their decision. Block takes drawn chains, traversal drawn trees.
enum class Rule { token, block, traversal };

// Both throw std::invalid_argument for a tree that is none, ids outside the vocabulary, or a draft that the
// rule does not take; empty drafts are taken by all.
template <class T>
Decision<T> decide(Rule rule, const Tree& tree, const Rows<T>& rows, T* emit);

// What walking the decision with the same uniforms comes to, bit for bit.
template <class T>
Outcome verify(Rule rule, const Tree& tree, const Rows<T>& rows, const Uniforms& uniforms);

// The same for a greedy request, straight from logits [n + 1, vocab]: down the tokens that are the largest of
// their rows. Throws std::domain_error for a row on the way that holds NaN or inf or leaves none possible.
template <class T>
Outcome verify_greedy(const Tree& tree, const T* logits, std::int64_t vocab);

// `committed`: length of the sequence. Greedy takes the largest of each row.
template <class T>
Outcome verify_coupled(const Tree& tree, const Rows<T>& rows, std::uint64_t seed, std::int64_t committed,
                       bool greedy);

}  // namespace forerun::cpu
