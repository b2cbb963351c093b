#include "forerun/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "float_mode.h"
#include "forerun/errors.h"
#include "vector/vector_set.h"

namespace forerun::cpu {
namespace {

// The last token of [begin, end) with probability; begin for none.
template <class T>
std::int64_t last_possible(const T* probs, std::int64_t begin, std::int64_t end) {
  for (--end; end > begin && !(probs[end] > T(0));) --end;
  return end;
}

// The first token of the highest score.
class Race {
 public:
  bool enter(std::int64_t token, double share, double noise) {
    const double score = std::log(share) + noise;
    if (!(score > score_)) return false;
    score_ = score;
    token_ = token;
    return true;
  }

  double score() const { return score_; }

  std::int64_t winner() const {
    if (token_ < 0) throw std::domain_error("a row without probability cannot be drawn from");
    return token_;
  }

 private:
  std::int64_t token_ = -1;
  double score_ = -std::numeric_limits<double>::infinity();
};

// A race whose noise is made for blocks of tokens that take part; they enter in order of ids.
class NoisyRace {
 public:
  explicit NoisyRace(const Noise& noise) : noise_(noise) {}

  void enter(std::int64_t token, double share) {
    if (token - first_ >= kBlock) {
      first_ = token / kBlock * kBlock;
      noise_.fractions(first_, fractions_);
    }
    const double u = fractions_[token - first_];
    if (!(share > bar_ * (1.0 - u))) return;
    if (race_.enter(token, share, Noise::of_fraction(u)))
      bar_ = std::exp(race_.score()) * (1.0 - 1e-9);
  }

  std::int64_t winner() const { return race_.winner(); }

 private:
  const Noise& noise_;
  Race race_;
  // exp(log p + noise) = p / -log(u) <= p / (1 - u): few tokens are worth their logarithms. A
  // little less than the best so far, because of rounding.
  double bar_ = 0.0;
  std::int64_t first_ = -kBlock;  // of the block that the fractions are of
  double fractions_[kBlock];
};

double total_of(const std::vector<double>& sums) {
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

// A token of a row whose blocks have these sums.
template <class T>
std::int64_t draw_from(const T* probs, std::int64_t vocab, const std::vector<double>& sums,
                       double uniform) {
  const double point = uniform * total_of(sums);
  double cumulative = 0.0;
  for (std::size_t block = 0; block < sums.size(); ++block) {
    if (cumulative + sums[block] > point) {
      const auto begin = static_cast<std::int64_t>(block) * kBlock;
      const std::int64_t end = std::min(begin + kBlock, vocab);
      for (std::int64_t token = begin; token < end; ++token) {
        cumulative += static_cast<double>(probs[token]);
        if (cumulative > point) return token;
      }
      return last_possible(probs, begin, end);
    }
    cumulative += sums[block];
  }
  return last_possible(probs, 0, vocab);
}

// The sum of the block that holds `token`, without it.
template <class T>
double block_without(const T* probs, std::int64_t vocab, std::int64_t token) {
  const std::int64_t begin = token / kBlock * kBlock;
  T block[kBlock] = {};
  std::copy(probs + begin, probs + std::min(begin + kBlock, vocab), block);
  block[token - begin] = T(0);
  double sum = 0.0;
  row_ops<T>().block_sums(block, kBlock, &sum);
  return sum;
}

std::vector<double> room_for_sums(std::int64_t vocab) {
  return std::vector<double>(static_cast<std::size_t>(num_blocks(vocab)));
}

// The largest value and the first place where it stands.
template <class T>
struct Largest {
  T value;
  std::int64_t token;
  bool numbers;  // whether no value is NaN
};

template <class T>
Largest<T> largest_of(const T* row, std::int64_t vocab) {
  constexpr std::int64_t kBlocks = 64;
  Largest<T> best{-std::numeric_limits<T>::infinity(), 0, true};
  std::int64_t block = 0;  // in which the largest stands first
  for (std::int64_t begin = 0; begin < vocab; begin += kBlocks * kBlock) {
    T blocks[kBlocks];
    const std::int64_t count = std::min(kBlocks * kBlock, vocab - begin);
    best.numbers &= row_ops<T>().largest(row + begin, count, blocks);
    const T* top = std::max_element(blocks, blocks + num_blocks(count));
    if (!(*top > best.value)) continue;
    best.value = *top;
    block = begin + (top - blocks) * kBlock;
  }
  best.token = std::find(row + block, row + vocab, best.value) - row;
  return best;
}

}  // namespace

template <class T>
std::int64_t draw(const T* probs, std::int64_t vocab, double uniform) {
  const FloatMode mode(FloatMode::Subnormals::ieee);
  std::vector<double> sums = room_for_sums(vocab);
  row_ops<T>().block_sums(probs, vocab, sums.data());
  return draw_from(probs, vocab, sums, uniform);
}

template <class T>
std::vector<std::int64_t> draw_siblings(const T* probs, std::int64_t vocab, const Siblings& how,
                                        T* rows) {
  const FloatMode mode(FloatMode::Subnormals::ieee);
  std::vector<double> sums = room_for_sums(vocab);
  std::vector<std::int64_t> tokens;
  T scale = T(1);
  for (const std::int64_t node : how.nodes) {
    if (tokens.empty() || how.replacement) {
      std::copy(probs, probs + vocab, rows);
    } else {
      const T* before = rows - vocab;
      for (std::int64_t token = 0; token < vocab; ++token) rows[token] = before[token] / scale;
      rows[tokens.back()] = T(0);
    }
    if (tokens.empty() || !how.replacement) row_ops<T>().block_sums(rows, vocab, sums.data());
    if (!(total_of(sums) > 0.0)) break;
    const std::int64_t token =
        draw_from(rows, vocab, sums, uniform(how.seed, how.committed, Purpose::draft, node));
    tokens.push_back(token);
    if (!how.replacement) {
      sums[static_cast<std::size_t>(token / kBlock)] = block_without(rows, vocab, token);
      const double left = total_of(sums);
      if (!(left > 0.0)) break;
      scale = static_cast<T>(left);
    }
    rows += vocab;
  }
  return tokens;
}

template <class T>
std::int64_t couple(const T* probs, std::int64_t vocab, const double* noise) {
  const FloatMode mode(FloatMode::Subnormals::ieee);
  Race race;
  for (std::int64_t token = 0; token < vocab; ++token) {
    if (probs[token] > T(0)) race.enter(token, static_cast<double>(probs[token]), noise[token]);
  }
  return race.winner();
}

template <class T>
std::int64_t couple(const T* probs, std::int64_t vocab, const Noise& noise) {
  const FloatMode mode(FloatMode::Subnormals::ieee);
  NoisyRace race(noise);
  for (std::int64_t first = 0; first < vocab; first += kBlock) {
    const T* p = probs + first;
    const std::int64_t count = std::min(kBlock, vocab - first);
    if (!std::any_of(p, p + count, [](T one) { return one > T(0); })) continue;
    for (std::int64_t i = 0; i < count; ++i) race.enter(first + i, static_cast<double>(p[i]));
  }
  return race.winner();
}

template <class T>
std::int64_t couple(const SparseRow<T>& row, const Noise& noise) {
  const FloatMode mode(FloatMode::Subnormals::ieee);
  NoisyRace race(noise);
  for (std::size_t i = 0; i < row.ids.size(); ++i) {
    race.enter(row.ids[i], static_cast<double>(row.probs[i]));
  }
  return race.winner();
}

template <class T>
std::int64_t argmax(const T* row, std::int64_t vocab) {
  return largest_of(row, vocab).token;
}

template <class T>
RowState top_of_logits(const T* logits, std::int64_t vocab, std::int64_t& token) {
  const Largest<T> top = largest_of(logits, vocab);
  if (!top.numbers || top.value == std::numeric_limits<T>::infinity()) return RowState::broken;
  if (top.value == -std::numeric_limits<T>::infinity()) return RowState::dead;
  token = top.token;
  return RowState::ok;
}

std::int64_t draw_drafted(const float* logits, std::int64_t vocab, const DraftDraw& how,
                          std::int64_t node, float* probs, RowScratch<float>& scratch) {
  // A one-hot row that is not asked for need not be written.
  std::int64_t top = -1;
  const bool direct = probs == nullptr && how.warp.greedy();
  if (probs == nullptr && !direct) {
    scratch.rows.resize(static_cast<std::size_t>(vocab));
    probs = scratch.rows.data();
  }
  const RowState state = direct ? top_of_logits(logits, vocab, top)
                                : warp_row(logits, vocab, how.warp, probs, scratch);
  if (state == RowState::broken) throw RowError("a row of logits holds NaN or inf");
  if (state == RowState::dead) return -1;
  if (direct) return top;
  if (how.drawing == Drawing::sampled) {
    return draw(probs, vocab, uniform(how.seed, how.committed, Purpose::draft, node));
  }
  if (how.drawing == Drawing::greedy || how.warp.greedy()) return argmax(probs, vocab);
  return couple(probs, vocab, Noise(how.seed, how.committed + node));
}

template std::int64_t draw(const float*, std::int64_t, double);
template std::int64_t draw(const double*, std::int64_t, double);
template std::vector<std::int64_t> draw_siblings(const float*, std::int64_t, const Siblings&,
                                                 float*);
template std::vector<std::int64_t> draw_siblings(const double*, std::int64_t, const Siblings&,
                                                 double*);
template std::int64_t couple(const float*, std::int64_t, const double*);
template std::int64_t couple(const double*, std::int64_t, const double*);
template std::int64_t couple(const float*, std::int64_t, const Noise&);
template std::int64_t couple(const double*, std::int64_t, const Noise&);
template std::int64_t couple(const SparseRow<float>&, const Noise&);
template std::int64_t couple(const SparseRow<double>&, const Noise&);
template std::int64_t argmax(const float*, std::int64_t);
template std::int64_t argmax(const double*, std::int64_t);
template RowState top_of_logits(const float*, std::int64_t, std::int64_t&);
template RowState top_of_logits(const double*, std::int64_t, std::int64_t&);

}  // namespace forerun::cpu
