// The promise: a token's result is the same, bit for bit, for every n from 1 to 64, whatever stands
// beside it, however rows are shared out, with 1, 2 and 3 threads.
#include "check.h"
#include "forerun/gated_mlp.h"

namespace forerun::cpu::test {
namespace {

constexpr std::int64_t kMostTokens = 64;

void check_shape(const MatrixShape& shape, Level level, ThreadPool* (&pools)[3], Random& random) {
  const Packed w(shape, normal(random, shape.rows * shape.cols, 0.05f));
  std::vector<float> x = normal(random, kMostTokens * shape.cols);
  // Tokens of very different size: a shared scale would show.
  for (std::int64_t t = 0; t < kMostTokens; t += 3) {
    for (std::int64_t k = 0; k < shape.cols; ++k) x[static_cast<std::size_t>(t * shape.cols + k)] *= 300.0f;
  }
  std::vector<float> alone;
  for (std::int64_t t = 0; t < kMostTokens; ++t) {
    const auto y = multiply(w.matrix, x.data() + t * shape.cols, 1, level, *pools[0]);
    alone.insert(alone.end(), y.begin(), y.end());
  }
  for (std::int64_t n = 1; n <= kMostTokens; ++n) {
    const std::int64_t first = between(random, 0, kMostTokens - n);
    ThreadPool& pool = *pools[n % 3];
    const auto y = multiply(w.matrix, x.data() + first * shape.cols, n, level, pool);
    for (std::int64_t t = 0; t < n; ++t) {
      CHECK(same_bits(y.data() + t * shape.rows, alone.data() + (first + t) * shape.rows, shape.rows),
            "%s %s %lld x %lld group %d: token %lld of %lld with %d threads", level_name(level),
            precision_name(shape.precision), static_cast<long long>(shape.rows),
            static_cast<long long>(shape.cols), shape.group, static_cast<long long>(t),
            static_cast<long long>(n), pool.size());
    }
  }
}

// The same for the MLP beside the residual, in place too.
void check_gated_mlp(Precision precision, Level level, ThreadPool* (&pools)[3], Random& random) {
  const std::int64_t hidden = between(random, 1, 150);
  const std::int64_t inner = between(random, 1, 150);
  const auto norm = normal(random, hidden);
  const auto gate = normal(random, inner * hidden, 0.1f);
  const auto up = normal(random, inner * hidden, 0.1f);
  const auto down = normal(random, hidden * inner, 0.1f);
  GatedMlp mlp({hidden, inner, norm.data(), gate.data(), up.data(), down.data()}, precision, level);
  const auto x = normal(random, kMostTokens * hidden, 3.0f);
  std::vector<float> alone(x.size());
  for (std::int64_t t = 0; t < kMostTokens; ++t) {
    mlp.run(x.data() + t * hidden, 1, alone.data() + t * hidden, *pools[0]);
  }
  CHECK(!same_bits(x.data(), alone.data(), hidden), "the MLP adds something");
  for (std::int64_t n = 1; n <= kMostTokens; n += 7) {
    std::vector<float> y(x.begin(), x.begin() + n * hidden);
    mlp.run(y.data(), n, y.data(), *pools[n % 3]);
    CHECK(same_bits(y.data(), alone.data(), n * hidden), "%s %s gated MLP %lld x %lld: %lld tokens", level_name(level),
          precision_name(precision), static_cast<long long>(inner), static_cast<long long>(hidden),
          static_cast<long long>(n));
  }
}

}  // namespace
}  // namespace forerun::cpu::test

int main(int count, char** arguments) {
  using namespace forerun::cpu;
  using namespace forerun::cpu::test;
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 4;
  Random random(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 11);
  ThreadPool one(1);
  ThreadPool two(2);
  ThreadPool three(3);
  ThreadPool* pools[3] = {&one, &two, &three};
  const Forward first(two);
  const Forward second(three);
  for (int round = 0; round < rounds; ++round) {
    for (const Level level : levels()) {
      for (const Precision precision : kPrecisions) {
        const int group = 32 << between(random, 0, 2);
        // Portable kernels are slow; small shapes have all the edges.
        const std::int64_t most = level == Level::portable ? 60 : 500;
        const auto shape =
            MatrixShape::make(precision, between(random, 1, most), between(random, 1, most), group);
        check_shape(shape, level, pools, random);
        check_gated_mlp(precision, level, pools, random);
      }
    }
  }
  std::puts("ok");
}
