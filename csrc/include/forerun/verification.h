// The rules of forerun/verification over dense rows: what they decide, and the walk that needs only
// the part of the decision that it visits. T is float or double.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "forerun/randomness.h"
#include "forerun/row_scratch.h"
#include "forerun/sampling.h"
#include "forerun/thread_pool.h"

namespace forerun::cpu {

// A tree of drafted tokens; parents come first, -1 is the last committed token.
struct Tree {
  const std::int64_t* tokens;
  const std::int64_t* parents;
  std::int64_t size;
};

// Threads that have nothing else to do, and their scratches; null for none.
template <class T>
struct Helpers {
  ThreadPool* pool = nullptr;
  ScratchPool<T>* scratches = nullptr;
};

// Rows of probability made from logits [n + 1, vocab] when they are first used: a walk visits few.
template <class T>
class WarpedRows {
 public:
  // `helpers` make the rows that the walk is likely to visit next.
  WarpedRows(const T* logits, const Tree& tree, std::int64_t vocab, const Warp& warp,
             RowScratch<T>& scratch, const Helpers<T>& helpers);

  // All throw RowError for a row that holds NaN or inf, or leaves no token possible.
  const T* row(std::int64_t index);
  // The probability of a token in a row; a row of few tokens is not written out for it.
  T prob(std::int64_t index, std::int64_t token);
  // The token that the noise draws from a row; a row of few tokens is not written out for it.
  std::int64_t couple(std::int64_t index, const Noise& noise);

 private:
  void require(std::int64_t index);
  // The row and those down its first children, as many as there are threads.
  void make_from(std::int64_t index);
  void make(std::int64_t index, RowScratch<T>& scratch);
  T* place(std::int64_t index) const { return scratch_.rows.data() + index * vocab_; }

  const T* logits_;
  Tree tree_;
  std::int64_t vocab_;
  Warp warp_;
  std::vector<char> made_;
  std::vector<RowState> states_;  // of those
  RowScratch<T>& scratch_;
  Helpers<T> helpers_;
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
  T prob_after(std::int64_t node, std::int64_t token) const {
    return warped != nullptr ? warped->prob(node + 1, token) : target_after(node)[token];
  }
  std::int64_t couple_after(std::int64_t node, const Noise& noise) const {
    return warped != nullptr ? warped->couple(node + 1, noise)
                             : cpu::couple(target_after(node), vocab, noise);
  }
  const T* draft_of(std::int64_t node) const { return draft + node * vocab; }
};

// As in forerun/verification/decision.py; the rows to emit from are written to where the caller
// says.
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

// Traversal takes drawn trees; on a chain it is block verification.
enum class Rule { token, traversal, coupled };

// Of the rules that are nothing but their decision: token and traversal. Both throw
// std::invalid_argument for another rule, an invalid tree, ids outside the vocabulary, or point
// masses under traversal; every rule takes an empty draft.
template <class T>
Decision<T> decide(Rule rule, const Tree& tree, const Rows<T>& rows, T* emit,
                   RowScratch<T>& scratch);

// The result of walking the decision with the same uniforms, bit for bit.
template <class T>
Outcome verify(Rule rule, const Tree& tree, const Rows<T>& rows, const Uniforms& uniforms,
               RowScratch<T>& scratch);

// The same for a greedy request, straight from logits [n + 1, vocab]: down the tokens that are the
// largest of their rows. Throws RowError for a row on the way that holds NaN or inf or leaves no
// token possible.
template <class T>
Outcome verify_greedy(const Tree& tree, const T* logits, std::int64_t vocab);

// Along the tokens that the noise of the seed draws from the rows. `committed`: length of the
// sequence.
template <class T>
Outcome verify_coupled(const Tree& tree, const Rows<T>& rows, std::uint64_t seed,
                       std::int64_t committed);

// The draft of one request and how it is verified. Greedy requests follow the largest logits by any
// rule.
template <class T>
struct DraftToVerify {
  Rule rule;
  Tree tree;
  const T* logits;  // [n + 1, vocab]
  const T* draft;   // [n, vocab]; null for point masses
  Warp warp;
  std::uint64_t seed;
  std::int64_t committed;  // length of the sequence
};

enum class Fault {
  none,
  row,    // a row on the way holds NaN or inf, or leaves no token possible
  draft,  // what `verify` throws std::invalid_argument for
};

struct Answer {
  Outcome outcome{-1, -1};
  Fault fault = Fault::none;
  std::string reason;
};

// Warps and verifies the draft of each request; a fault is that request's alone. The threads of
// `pool` share the requests, or the rows of a single one; without a pool, or outside its begin()
// and end(), the caller works alone.
template <class T>
std::vector<Answer> verify_batch(const std::vector<DraftToVerify<T>>& drafts, std::int64_t vocab,
                                 ThreadPool* pool, ScratchPool<T>& scratches);

}  // namespace forerun::cpu
