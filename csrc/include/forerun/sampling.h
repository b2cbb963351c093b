// Logits to probabilities and probabilities to tokens; see forerun/sampling/ for what is meant.
//
// Every function takes one row and looks at nothing else, so that a token does not depend on its
// batch. T is float or double. All levels give the same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "forerun/randomness.h"
#include "forerun/row_scratch.h"

namespace forerun::cpu {

struct Warp {
  double temperature = 1.0;  // 0: greedy
  std::int64_t top_k = 0;    // 0: all
  double top_p = 1.0;
  double min_p = 0.0;

  bool greedy() const { return temperature == 0.0; }
};

enum class RowState {
  ok,
  dead,    // all -inf: no token is possible, and `probs` holds no distribution
  broken,  // NaN or +inf
};

// Top-k keeps ties of the k-th logit. Top-p keeps a token if those before it, more likely ones and
// equal ones of lower id, sum to less than top_p. `probs` may be `logits`.
template <class T>
RowState warp_row(const T* logits, std::int64_t vocab, const Warp& warp, T* probs,
                  RowScratch<T>& scratch);

// As warp_row, but a row of few tokens is left in `sparse`, and `probs` as it was.
template <class T>
RowState warp_row_sparsely(const T* logits, std::int64_t vocab, const Warp& warp, T* probs,
                           SparseRow<T>& sparse, RowScratch<T>& scratch);

// The inverse of the cumulative distribution. Where rounding carries the point up to the total, the
// last token with probability stands; 0 for a row without any.
template <class T>
std::int64_t draw(const T* probs, std::int64_t vocab, double uniform);

// The children of one node.
struct Siblings {
  std::uint64_t seed = 0;
  std::int64_t committed = 0;       // length of the sequence
  std::vector<std::int64_t> nodes;  // that they become, which key their draws
  bool replacement = false;         // whether one may repeat an earlier one's token
};

// Draws them one after the other and writes the row that each was drawn from, [nodes, vocab]:
// without replacement it lacks the siblings before. Fewer than asked for where nothing is left to
// draw.
template <class T>
std::vector<std::int64_t> draw_siblings(const T* probs, std::int64_t vocab, const Siblings& how,
                                        T* rows);

// argmax of log prob + noise; with a `Noise` the argmax is the same as with its row written out.
// Throws std::domain_error for a row without probability.
template <class T>
std::int64_t couple(const T* probs, std::int64_t vocab, const double* noise);
template <class T>
std::int64_t couple(const T* probs, std::int64_t vocab, const Noise& noise);
template <class T>
std::int64_t couple(const SparseRow<T>& row, const Noise& noise);

// The largest, the lowest id on ties.
template <class T>
std::int64_t argmax(const T* row, std::int64_t vocab);

// The token of a greedy row, from its logits alone.
template <class T>
RowState top_of_logits(const T* logits, std::int64_t vocab, std::int64_t& token);

enum class Drawing { sampled, greedy, coupled };

// How the tokens of one chain are drawn in one round.
struct DraftDraw {
  Drawing drawing = Drawing::greedy;
  Warp warp;
  std::uint64_t seed = 0;
  std::int64_t committed = 0;  // length of the sequence
};

// The token of a chain's `node` and, in `probs`, the row it was drawn from: what draw_siblings
// in forerun/sampling/ draws as an only child from the same logits. -1 if the row leaves no token
// possible. Throws std::domain_error for a broken row. `probs` may be `logits`, or null where the
// row is not wanted.
std::int64_t draw_drafted(const float* logits, std::int64_t vocab, const DraftDraw& how,
                          std::int64_t node, float* probs, RowScratch<float>& scratch);

}  // namespace forerun::cpu
