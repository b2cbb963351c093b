// What is done to rows of the vocabulary: all levels against each other, bit for bit, and drafted
// tokens.
#include <algorithm>
#include <cmath>
#include <limits>

#include "../src/vector/vector_set.h"
#include "check.h"
#include "forerun/sampling.h"
#include "forerun/verification.h"

namespace forerun::cpu::test {
namespace {

template <class T>
const RowOps<T>& rows_of(const VectorSet& set);
template <>
const RowOps<float>& rows_of(const VectorSet& set) {
  return set.float_rows;
}
template <>
const RowOps<double>& rows_of(const VectorSet& set) {
  return set.double_rows;
}

// Everything that one level makes of a row and another, one after the other.
template <class T>
std::vector<double> all_results(const RowOps<T>& ops, const std::vector<T>& x,
                                const std::vector<T>& q) {
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<double> results;
  std::vector<T> y(x.size());
  const auto keep = [&](double sum) {
    results.push_back(sum);
    results.insert(results.end(), y.begin(), y.end());
  };
  std::vector<T> blocks(static_cast<std::size_t>(num_blocks(n)));
  CHECK(ops.largest(x.data(), n, blocks.data()), "no value is NaN");
  results.insert(results.end(), blocks.begin(), blocks.end());
  keep(ops.exp_scaled(x.data(), T(9), T(1.7), n, y.data()));
  keep(ops.residual(x.data(), q.data(), T(0.8), n, y.data()));
  keep(ops.keep_from(x.data(), T(0.1), n, y.data()));
  ops.scale(x.data(), T(0.37), n, y.data());
  std::vector<double> sums(blocks.size());
  ops.block_sums(q.data(), n, sums.data());
  keep(0.0);
  results.insert(results.end(), sums.begin(), sums.end());
  return results;
}

template <class T>
void check_levels(Random& random) {
  for (const std::int64_t n : {1, 63, 64, 65, 200, 1000}) {
    const std::vector<float> drawn = normal(random, 2 * n);
    std::vector<T> x(drawn.begin(), drawn.begin() + n);
    const std::vector<T> q(drawn.begin() + n, drawn.end());
    x[static_cast<std::size_t>(between(random, 0, n - 1))] = -std::numeric_limits<T>::infinity();
    const auto expected = all_results(rows_of<T>(vector_set(Level::portable)), x, q);
    for (const Level level : levels()) {
      CHECK(all_results(rows_of<T>(vector_set(level)), x, q) == expected, "%s, %d values",
            level_name(level), static_cast<int>(n));
    }
    x.back() = std::numeric_limits<T>::quiet_NaN();
    std::vector<T> blocks(x.size());
    for (const Level level : levels()) {
      for (const T nan : {x.back(), -x.back()}) {
        x.back() = nan;
        CHECK(!rows_of<T>(vector_set(level)).largest(x.data(), n, blocks.data()), "NaN is seen");
      }
    }
  }
}

void check_fractions() {
  double expected[kBlock];
  double u[kBlock];
  vector_set(Level::portable).fractions(12345, 640, expected);
  for (const Level level : levels()) {
    vector_set(level).fractions(12345, 640, u);
    CHECK(std::memcmp(u, expected, sizeof u) == 0, "%s", level_name(level));
  }
}

void check_drafted(Random& random) {
  const std::int64_t vocab = 300;
  const std::vector<float> logits = normal(random, vocab, 3.0f);
  std::vector<float> row(logits.size());
  RowScratch<float> scratch;
  for (const Drawing drawing : {Drawing::sampled, Drawing::greedy, Drawing::coupled}) {
    for (const double temperature : {0.0, 0.7}) {
      const DraftDraw how{drawing, {temperature, 50, 0.9, 0.01}, 7, 20};
      const std::int64_t token = draw_drafted(logits.data(), vocab, how, 2, row.data(), scratch);
      CHECK(row[static_cast<std::size_t>(token)] > 0.0f, "a drafted token has probability");
      std::vector<float> in_place = logits;
      CHECK(token == draw_drafted(in_place.data(), vocab, how, 2, in_place.data(), scratch),
            "also in place");
      CHECK(same_bits(row.data(), in_place.data(), vocab), "the same row");
    }
  }
  std::vector<float> none(logits.size(), -std::numeric_limits<float>::infinity());
  CHECK(draw_drafted(none.data(), vocab, {}, 0, row.data(), scratch) == -1, "nothing can follow");
  none[3] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS(std::domain_error, draw_drafted(none.data(), vocab, {}, 0, row.data(), scratch));
}

// A row of few tokens is the dense row, written out or read token by token, also when it is
// coupled.
template <class T>
void check_sparse(Random& random) {
  const std::int64_t vocab = 3000;
  RowScratch<T> scratch;
  SparseRow<T> sparse;
  std::vector<T> expected(static_cast<std::size_t>(vocab)), row(expected);
  for (const Warp& warp : {Warp{}, Warp{0.0}, Warp{0.7, 20}, Warp{0.7, 20, 0.8, 0.02},
                           Warp{0.5, 0, 0.9}, Warp{3.0, 0, 0.999}, Warp{1.0, 0, 1.0, 0.1}}) {
    const std::vector<float> drawn = normal(random, vocab, 4.0f);
    const std::vector<T> logits(drawn.begin(), drawn.end());
    warp_row(logits.data(), vocab, warp, expected.data(), scratch);
    std::fill(row.begin(), row.end(), T(-1));
    warp_row_sparsely(logits.data(), vocab, warp, row.data(), sparse, scratch);
    const bool few = warp.greedy() || warp.top_k > 0 || warp.top_p < 0.95;
    CHECK(sparse.holds_row == few, "few tokens are left by top-k and top-p");
    if (few) {
      CHECK(row == std::vector<T>(row.size(), T(-1)), "the dense row stays as it was");
      for (std::int64_t id = 0; id < vocab; ++id) {
        CHECK(sparse.prob(id) == expected[static_cast<std::size_t>(id)], "the same probability");
      }
      const Noise noise(3, 40);
      CHECK(couple(sparse, noise) == couple(expected.data(), vocab, noise), "the same token");
      sparse.write(row.data(), vocab);
    }
    CHECK(row == expected, "the same row");
  }
}

void check_bad_trees() {
  const std::vector<float> rows(12, 0.25f);
  const Uniforms half = [](Purpose, std::int64_t) { return 0.5; };
  const std::int64_t tokens[] = {1, 4};
  const std::int64_t parents[] = {-1, 1};
  const Rows<float> rows_of_all{rows.data(), rows.data(), 4};
  const std::int64_t chain[] = {-1, 0};
  RowScratch<float> scratch;
  for (const Rule rule : {Rule::token, Rule::traversal}) {
    CHECK_THROWS(std::invalid_argument,
                 verify(rule, Tree{tokens, parents, 2}, rows_of_all, half, scratch));
    CHECK_THROWS(std::invalid_argument,
                 verify(rule, Tree{tokens, chain, 2}, rows_of_all, half, scratch));
  }
  const std::int64_t known[] = {1, 3};
  const std::int64_t siblings[] = {-1, -1};
  const Rows<float> masses{rows.data(), nullptr, 4};
  CHECK_THROWS(std::invalid_argument,
               verify(Rule::traversal, Tree{known, chain, 2}, masses, half, scratch));
  CHECK_THROWS(std::invalid_argument,
               verify(Rule::traversal, Tree{known, siblings, 2}, masses, half, scratch));
  CHECK_THROWS(std::invalid_argument,
               verify(Rule::coupled, Tree{known, chain, 2}, masses, half, scratch));
}

// `count` rows of probability, with zeros behind the first token.
template <class T>
std::vector<T> distributions(Random& random, std::int64_t count, std::int64_t vocab) {
  std::vector<T> rows;
  for (std::int64_t row = 0; row < count; ++row) {
    std::vector<float> drawn = normal(random, vocab);
    drawn[0] = 0.0f;
    double sum = 0.0;
    for (float& one : drawn) sum += one = one > -0.5f ? std::exp(one) : 0.0f;
    for (const float one : drawn) rows.push_back(static_cast<T>(one / sum));
  }
  return rows;
}

// The outcome of following a decision, and of verifying, with the same numbers.
template <class T>
void check_walk(Rule rule, const Tree& tree, const Rows<T>& rows, const Uniforms& uniforms) {
  std::vector<T> emit(static_cast<std::size_t>((tree.size + 1) * rows.vocab));
  RowScratch<T> scratch;
  const Decision<T> decision = decide(rule, tree, rows, emit.data(), scratch);
  std::int64_t at = decision.start;
  while (at >= 0) {
    const auto test = static_cast<std::size_t>(at);
    CHECK(decision.accept[test] >= T(0) && decision.accept[test] <= T(1), "a probability");
    const bool passed = uniforms(Purpose::accept, at) < static_cast<double>(decision.accept[test]);
    at = passed ? decision.on_accept[test] : decision.on_reject[test];
  }
  const std::int64_t end = ~at - 1;
  const std::int64_t token =
      draw(emit.data() + (end + 1) * rows.vocab, rows.vocab, uniforms(Purpose::emit, 0));
  const Outcome outcome = verify(rule, tree, rows, uniforms, scratch);
  CHECK(outcome.end == end && outcome.token == token, "rule %d ends at %d and not at %d",
        static_cast<int>(rule), static_cast<int>(outcome.end), static_cast<int>(end));
}

template <class T>
void check_walks(Random& random) {
  for (int round = 0; round < 200; ++round) {
    const std::int64_t vocab = between(random, 2, 150);
    const std::int64_t size = between(random, 0, 12);
    const std::vector<T> target = distributions<T>(random, size + 1, vocab);
    const std::vector<T> draft = distributions<T>(random, size, vocab);
    std::vector<std::int64_t> tokens, chain, branches;
    for (std::int64_t node = 0; node < size; ++node) {
      tokens.push_back(
          draw(draft.data() + node * vocab, vocab, uniform(round, node, Purpose::draft)));
      chain.push_back(node - 1);
      branches.push_back(between(random, -1, node - 1));
    }
    const Rows<T> rows{target.data(), draft.data(), vocab};
    const Uniforms uniforms = [&](Purpose purpose, std::int64_t node) {
      return uniform(round, 9, purpose, node);
    };
    check_walk(Rule::token, {tokens.data(), branches.data(), size}, rows, uniforms);
    check_walk(Rule::traversal, {tokens.data(), branches.data(), size}, rows, uniforms);
    check_walk(Rule::traversal, {tokens.data(), chain.data(), size}, rows, uniforms);
  }
}

// What a batch makes of its requests does not depend on the threads, nor on a broken row in their
// midst; nor what a request alone, whose rows threads share.
template <class T>
void check_batch(Random& random) {
  const std::int64_t vocab = 200;
  const std::int64_t size = 3;
  const std::int64_t parents[] = {-1, 0, 0};
  std::vector<DraftToVerify<T>> drafts;
  std::vector<std::vector<T>> rows, logits;
  std::vector<std::vector<std::int64_t>> tokens(30);
  for (std::uint64_t i = 0; i < tokens.size(); ++i) {
    rows.push_back(distributions<T>(random, size, vocab));
    const std::vector<float> drawn = normal(random, (size + 1) * vocab, 3.0f);
    logits.emplace_back(drawn.begin(), drawn.end());
    for (std::int64_t node = 0; node < size; ++node) {
      tokens[i].push_back(
          draw(rows[i].data() + node * vocab, vocab, uniform(i, node, Purpose::draft)));
    }
    const Rule rule = i % 3 == 0 ? Rule::token : i % 3 == 1 ? Rule::traversal : Rule::coupled;
    drafts.push_back({rule,
                      {tokens[i].data(), parents, size},
                      logits[i].data(),
                      rows[i].data(),
                      Warp{i % 5 == 0 ? 0.0 : 0.8, 0, 0.9, 0.0},
                      i,
                      9});
  }
  ScratchPool<T> scratches;
  const std::vector<Answer> alone = verify_batch(drafts, vocab, nullptr, scratches);
  logits[7][0] = std::numeric_limits<T>::quiet_NaN();
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    const Forward forward(pool);
    const std::vector<Answer> together = verify_batch(drafts, vocab, &pool, scratches);
    for (std::size_t i = 0; i < drafts.size(); ++i) {
      CHECK(alone[i].fault == Fault::none, "%s", alone[i].reason.c_str());
      CHECK(together[i].fault == (i == 7 ? Fault::row : Fault::none), "%s",
            together[i].reason.c_str());
      if (i == 7) continue;
      const Outcome& outcome = together[i].outcome;
      CHECK(outcome.end == alone[i].outcome.end && outcome.token == alone[i].outcome.token,
            "as alone");
      const Answer single = verify_batch<T>({drafts[i]}, vocab, &pool, scratches)[0];
      CHECK(outcome.end == single.outcome.end && outcome.token == single.outcome.token,
            "as the only one");
    }
  }
}

// Siblings are drawn as single tokens are, each from what the ones before have left.
template <class T>
void check_siblings(Random& random) {
  for (const std::int64_t vocab : {1, 5, 64, 65, 300}) {
    const std::vector<T> probs = distributions<T>(random, 1, vocab);
    const auto possible = static_cast<std::size_t>(
        std::count_if(probs.begin(), probs.end(), [](T one) { return one > T(0); }));
    std::vector<T> rows(static_cast<std::size_t>(8 * vocab));
    Siblings how{11, 20, {3, 4, 5, 6, 7, 8, 9, 10}, true};
    const auto repeated = draw_siblings(probs.data(), vocab, how, rows.data());
    for (std::size_t i = 0; i < how.nodes.size(); ++i) {
      const T* row = rows.data() + static_cast<std::int64_t>(i) * vocab;
      CHECK(std::equal(row, row + vocab, probs.begin()), "the row itself, each time");
      CHECK(repeated[i] == draw(row, vocab, uniform(11, 20, Purpose::draft, how.nodes[i])),
            "one of them");
    }
    how.replacement = false;
    const auto tokens = draw_siblings(probs.data(), vocab, how, rows.data());
    CHECK(tokens.size() == std::min(possible, how.nodes.size()), "as many as there are tokens");
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const T* row = rows.data() + static_cast<std::int64_t>(i) * vocab;
      double sum = 0.0;
      for (std::int64_t token = 0; token < vocab; ++token) sum += static_cast<double>(row[token]);
      CHECK(std::fabs(sum - 1.0) < 1e-5, "a distribution");
      for (std::size_t j = 0; j < i; ++j) CHECK(row[tokens[j]] == T(0), "without those before");
      CHECK(tokens[i] == draw(row, vocab, uniform(11, 20, Purpose::draft, how.nodes[i])),
            "drawn from it");
    }
    const std::vector<T> nothing(probs.size());
    CHECK(draw_siblings(nothing.data(), vocab, how, rows.data()).empty(), "nothing to draw");
  }
}

}  // namespace
}  // namespace forerun::cpu::test

int main() {
  using namespace forerun::cpu::test;
  Random random(5);
  check_levels<float>(random);
  check_levels<double>(random);
  check_fractions();
  check_drafted(random);
  check_sparse<float>(random);
  check_sparse<double>(random);
  check_bad_trees();
  check_walks<float>(random);
  check_walks<double>(random);
  check_batch<float>(random);
  check_batch<double>(random);
  check_siblings<float>(random);
  check_siblings<double>(random);
}
