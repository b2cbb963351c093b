#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "float_mode.h"
#include "forerun/sampling.h"
#include "nucleus.h"
#include "vector/vector_set.h"

namespace forerun::cpu {
namespace {

// One row on its way from logits to probabilities.
template <class T>
class Warper {
 public:
  Warper(RowScratch<T>& scratch, SparseRow<T>& sparse)
      : blocks_(scratch.blocks),
        weights_(scratch.weights),
        rest_(scratch.rest),
        sparse_(sparse),
        kept_(sparse.probs),
        ids_(sparse.ids) {}

  RowState operator()(const T* logits, std::int64_t vocab, const Warp& warp, T* probs) {
    logits_ = logits;
    vocab_ = vocab;
    sparse_.holds_row = false;
    blocks_.resize(static_cast<std::size_t>(num_blocks(vocab)));
    const bool numbers = ops_.largest(logits, vocab, blocks_.data());
    top_ = *std::max_element(blocks_.begin(), blocks_.end());
    if (!numbers || top_ == kInfinity) return RowState::broken;
    if (top_ == -kInfinity) return RowState::dead;
    factor_ = static_cast<T>(1.0 / warp.temperature);
    if (warp.greedy()) {
      one_hot();
    } else if (0 < warp.top_k && warp.top_k < vocab) {
      take_top(warp.top_k);
      finish(warp, weigh_kept());
    } else if (warp.top_p < 1.0) {
      const double total = sum_of_weights();
      if (take_likely(warp.top_p * total)) {
        finish(warp, total);
      } else {
        finish_all(warp, total, probs);
      }
    } else {
      double total = ops_.exp_scaled(logits, top_, factor_, vocab, probs);
      if (warp.min_p > 0.0) total = ops_.keep_from(probs, static_cast<T>(warp.min_p), vocab, probs);
      ops_.scale(probs, static_cast<T>(1.0 / total), vocab, probs);
    }
    return RowState::ok;
  }

 private:
  static constexpr std::int64_t kPart = 1024;
  static constexpr std::int64_t kFewBlocks = 8;
  static constexpr T kInfinity = std::numeric_limits<T>::infinity();

  std::int64_t num_kept() const { return static_cast<std::int64_t>(ids_.size()); }

  void one_hot() {
    const auto block = std::find(blocks_.begin(), blocks_.end(), top_) - blocks_.begin();
    const auto token = std::find(logits_ + block * kBlock, logits_ + vocab_, top_) - logits_;
    ids_.assign(1, token);
    kept_.assign(1, T(1));
    sparse_.holds_row = true;
  }

  // The ids whose logit is `least` or more, and the logits, in order of ids.
  void take_from(T least) {
    std::size_t count = 0;
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
      if (blocks_[block] < least) continue;
      const auto begin = static_cast<std::int64_t>(block) * kBlock;
      const std::int64_t end = std::min(begin + kBlock, vocab_);
      ids_.resize(count + kBlock);
      kept_.resize(count + kBlock);
      for (std::int64_t id = begin; id < end; ++id) {
        ids_[count] = id;
        kept_[count] = logits_[id];
        count += logits_[id] >= least;
      }
    }
    ids_.resize(count);
    kept_.resize(count);
  }

  static T kth_largest(std::vector<T> values, std::int64_t k) {
    std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<T>());
    return values[static_cast<std::size_t>(k - 1)];
  }

  void take_top(std::int64_t k) {
    // k blocks with a value that large hold k values that large: the k-th is no smaller.
    const bool bounded = k <= static_cast<std::int64_t>(blocks_.size());
    take_from(bounded ? kth_largest(blocks_, k) : -kInfinity);
    const T least = kth_largest(kept_, k);
    keep_if([least](T logit) { return logit >= least; });
  }

  // Part by part, so that the weights, which are not needed again, stay in the nearest cache.
  double sum_of_weights() {
    T part[kPart];
    double total = 0.0;
    for (std::int64_t begin = 0; begin < vocab_; begin += kPart) {
      const std::int64_t count = std::min(kPart, vocab_ - begin);
      total += ops_.exp_scaled(logits_ + begin, top_, factor_, count, part);
    }
    return total;
  }

  // The most likely tokens, first some tens and then some hundreds, as weights, until they hold
  // `mass`.
  bool take_likely(double mass) {
    const auto blocks = static_cast<std::int64_t>(blocks_.size());
    for (const std::int64_t k : {kFewBlocks, std::max(blocks / 8, 4 * kFewBlocks)}) {
      take_from(kth_largest(blocks_, std::min(blocks, k)));
      if (weigh_kept() >= mass) return true;
    }
    return false;
  }

  // From logits to weights; returns their sum.
  double weigh_kept() {
    return ops_.exp_scaled(kept_.data(), top_, factor_, num_kept(), kept_.data());
  }

  template <class Keep>
  void keep_if(Keep keep) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < kept_.size(); ++i) {
      if (!keep(kept_[i])) continue;
      ids_[count] = ids_[i];
      kept_[count++] = kept_[i];
    }
    ids_.resize(count);
    kept_.resize(count);
  }

  // Top-p and min-p over the whole vocabulary.
  void finish_all(const Warp& warp, double total, T* probs) {
    weights_.resize(static_cast<std::size_t>(vocab_));
    ops_.exp_scaled(logits_, top_, factor_, vocab_, weights_.data());
    const MassCut<T> cut = cut_at_mass(weights_.data(), vocab_, warp.top_p * total, rest_);
    const T least = std::max(cut.value, static_cast<T>(warp.min_p));
    double sum = ops_.keep_from(weights_.data(), least, vocab_, probs);
    if (least == cut.value && cut.ties > 1 && !cut.keeps_tie(cut.ties - 1)) {
      std::int64_t ties = 0;
      for (std::int64_t id = 0; id < vocab_; ++id) {
        if (probs[id] != cut.value || cut.keeps_tie(ties++)) continue;
        probs[id] = T(0);
        sum -= static_cast<double>(cut.value);
      }
    }
    ops_.scale(probs, static_cast<T>(1.0 / sum), vocab_, probs);
  }

  // Top-p and min-p on the weights kept so far, of which the largest is 1; `total` counts all of
  // them.
  void finish(const Warp& warp, double total) {
    if (warp.top_p < 1.0) {
      const MassCut<T> cut = cut_at_mass(kept_.data(), num_kept(), warp.top_p * total, rest_);
      std::int64_t ties = 0;
      keep_if([&](T weight) {
        return weight > cut.value || (weight == cut.value && cut.keeps_tie(ties++));
      });
    }
    if (warp.min_p > 0.0) {
      const T least = static_cast<T>(warp.min_p);
      keep_if([least](T weight) { return weight >= least; });
    }
    double sum = 0.0;
    for (const T weight : kept_) sum += static_cast<double>(weight);
    const T factor = static_cast<T>(1.0 / sum);
    for (T& weight : kept_) weight *= factor;
    sparse_.holds_row = true;
  }

  const RowOps<T>& ops_ = row_ops<T>();
  const T* logits_ = nullptr;
  std::int64_t vocab_ = 0;
  T top_ = T(0);
  T factor_ = T(1);
  std::vector<T>& blocks_;
  std::vector<T>& weights_;  // exp((logit - largest) / temperature)
  std::vector<T>& rest_;
  SparseRow<T>& sparse_;
  std::vector<T>& kept_;            // of `sparse_`, first as logits, then as weights
  std::vector<std::int64_t>& ids_;  // of those
};

}  // namespace

template <class T>
RowState warp_row_sparsely(const T* logits, std::int64_t vocab, const Warp& warp, T* probs,
                           SparseRow<T>& sparse, RowScratch<T>& scratch) {
  const FloatMode mode(FloatMode::Subnormals::ieee);
  return Warper<T>(scratch, sparse)(logits, vocab, warp, probs);
}

template <class T>
RowState warp_row(const T* logits, std::int64_t vocab, const Warp& warp, T* probs,
                  RowScratch<T>& scratch) {
  const RowState state = warp_row_sparsely(logits, vocab, warp, probs, scratch.sparse, scratch);
  if (state == RowState::ok && scratch.sparse.holds_row) scratch.sparse.write(probs, vocab);
  return state;
}

#define FORERUN_INSTANTIATE(T)                                                                \
  template RowState warp_row_sparsely(const T*, std::int64_t, const Warp&, T*, SparseRow<T>&, \
                                      RowScratch<T>&);                                        \
  template RowState warp_row(const T*, std::int64_t, const Warp&, T*, RowScratch<T>&);
FORERUN_INSTANTIATE(float)
FORERUN_INSTANTIATE(double)
#undef FORERUN_INSTANTIATE

}  // namespace forerun::cpu
