// What is done to rows of the vocabulary: all levels against each other, bit for bit, and drafted tokens.
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
std::vector<double> all_results(const RowOps<T>& ops, const std::vector<T>& x, const std::vector<T>& q) {
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
  for (const Drawing drawing : {Drawing::draw, Drawing::top, Drawing::couple}) {
    for (const double temperature : {0.0, 0.7}) {
      const DraftDraw how{drawing, {temperature, 50, 0.9, 0.01}, 7, 20};
      const std::int64_t token = draw_drafted(logits.data(), vocab, how, 2, row.data());
      CHECK(row[static_cast<std::size_t>(token)] > 0.0f, "a drafted token has probability");
      std::vector<float> in_place = logits;
      CHECK(token == draw_drafted(in_place.data(), vocab, how, 2, in_place.data()), "also in place");
      CHECK(same_bits(row.data(), in_place.data(), vocab), "the same row");
    }
  }
  std::vector<float> none(logits.size(), -std::numeric_limits<float>::infinity());
  CHECK(draw_drafted(none.data(), vocab, {}, 0, row.data()) == -1, "nothing can follow");
  none[3] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS(std::domain_error, draw_drafted(none.data(), vocab, {}, 0, row.data()));
}

void check_bad_trees() {
  const std::vector<float> rows(12, 0.25f);
  const Uniforms half = [](Purpose, std::int64_t) { return 0.5; };
  const std::int64_t tokens[] = {1, 4};
  const std::int64_t parents[] = {-1, 1};
  const Rows<float> judged{rows.data(), rows.data(), 4};
  CHECK_THROWS(std::invalid_argument, verify_token(Tree{tokens, parents, 2}, judged, half));
  const std::int64_t chain[] = {-1, 0};
  CHECK_THROWS(std::invalid_argument, verify_token(Tree{tokens, chain, 2}, judged, half));
  const std::int64_t known[] = {1, 3};
  const std::int64_t siblings[] = {-1, -1};
  CHECK_THROWS(std::invalid_argument, verify_block(Tree{known, siblings, 2}, judged, half));
  const Rows<float> masses{rows.data(), nullptr, 4};
  CHECK_THROWS(std::invalid_argument, verify_block(Tree{known, chain, 2}, masses, half));
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
  check_bad_trees();
}
