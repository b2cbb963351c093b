// The promise: a token's result is the same, bit for bit, for every n from 1 to 64, whatever stands
// beside it, however rows and contexts are shared out, with 1, 2 and 3 threads.
#include <algorithm>
#include <cmath>

#include "check.h"
#include "forerun/modules.h"

namespace forerun::cpu::test {
namespace {

constexpr std::int64_t kMostTokens = 64;

void check_shape(const MatrixShape& shape, Level level, ThreadPool* (&pools)[3], Random& random) {
  const Packed w(shape, normal(random, shape.rows * shape.cols, 0.05f));
  std::vector<float> x = normal(random, kMostTokens * shape.cols);
  // Tokens of very different size: a shared scale would show.
  for (std::int64_t t = 0; t < kMostTokens; t += 3) {
    for (std::int64_t k = 0; k < shape.cols; ++k)
      x[static_cast<std::size_t>(t * shape.cols + k)] *= 300.0f;
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
      CHECK(
          same_bits(y.data() + t * shape.rows, alone.data() + (first + t) * shape.rows, shape.rows),
          "%s %s %lld x %lld group %d: token %lld of %lld with %d threads", level_name(level),
          precision_name(shape.precision), static_cast<long long>(shape.rows),
          static_cast<long long>(shape.cols), shape.group, static_cast<long long>(t),
          static_cast<long long>(n), pool.size());
    }
  }
}

// The same for modules one after the other: a gated MLP behind a norm.
void check_modules(Precision precision, Level level, ThreadPool* (&pools)[3], Random& random) {
  const std::int64_t hidden = between(random, 1, 150);
  const std::int64_t inner = between(random, 1, 150);
  const auto up = normal(random, 2 * inner * hidden, 0.1f);
  const auto bias = normal(random, 2 * inner);
  const auto down = normal(random, hidden * inner, 0.1f);
  const Packing packing{precision, 0, level};
  const NormModule norm(normal(random, hidden), {}, 1e-6f, level);
  LinearModule wide({2 * inner, hidden, up.data(), bias.data()}, packing, *pools[0]);
  LinearModule narrow({hidden, inner, down.data(), nullptr}, packing, *pools[2]);
  const auto run = [&](const float* x, std::int64_t n, ThreadPool& pool) {
    std::vector<float> y(static_cast<std::size_t>(n * hidden));
    std::vector<float> z(static_cast<std::size_t>(n * 2 * inner));
    norm.run(x, n, y.data(), pool);
    wide.run(y.data(), n, z.data(), pool);
    std::vector<float> inside(static_cast<std::size_t>(n * inner));
    run_activation(Activation::silu, true, z.data(), n, inner, inside.data(), level, pool);
    narrow.run(inside.data(), n, y.data(), pool);
    return y;
  };
  const auto x = normal(random, kMostTokens * hidden, 3.0f);
  std::vector<float> alone;
  for (std::int64_t t = 0; t < kMostTokens; ++t) {
    const auto y = run(x.data() + t * hidden, 1, *pools[0]);
    alone.insert(alone.end(), y.begin(), y.end());
  }
  for (std::int64_t n = 1; n <= kMostTokens; n += 7) {
    const auto y = run(x.data(), n, *pools[n % 3]);
    CHECK(same_bits(y.data(), alone.data(), n * hidden), "%s %s modules %lld x %lld: %lld tokens",
          level_name(level), precision_name(precision), static_cast<long long>(inner),
          static_cast<long long>(hidden), static_cast<long long>(n));
  }
}

// Attention over chunks of a text beside a shorter row gives what it gives token by token.
void check_attention(Precision precision, Level level, std::int64_t text, ThreadPool* (&pools)[3],
                     Random& random) {
  LayerSource source;
  source.kv_heads = between(random, 1, 3);
  source.heads = source.kv_heads * between(random, 1, 3);
  source.head_dim =
      2 * (between(random, 0, 3) == 0 ? between(random, 20, 64) : between(random, 1, 20));
  source.window = between(random, 0, 1) * between(random, 1, 2 * text / 3);
  View view;
  if (between(random, 0, 1) == 0) view = {between(random, 0, 90), between(random, 1, text / 3)};
  view.blocks = between(random, 0, 1) * between(random, 1, 3);
  const std::int64_t cols = between(random, 1, 90);
  const std::int64_t hidden = between(random, 1, 90);
  const std::int64_t rows = (source.heads + 2 * source.kv_heads) * source.head_dim;
  const auto qkv = normal(random, rows * cols, 0.2f);
  const auto output = normal(random, hidden * source.heads * source.head_dim, 0.2f);
  source.qkv = {rows, cols, qkv.data(), nullptr};
  source.output = {hidden, source.heads * source.head_dim, output.data(), nullptr};
  for (std::int64_t i = 0; i < source.head_dim / 2; ++i) {
    source.inverse_frequencies.push_back(1.0f / static_cast<float>(1 + i));
  }
  source.input_norms.resize(1);
  LayerModule attention(source, {precision, 0, level}, *pools[1]);
  const auto x = normal(random, text * cols);
  std::vector<std::int64_t> positions(static_cast<std::size_t>(2 * text), -1);
  // Tokens [first, first + n) of the text in row 0, where `both` all but the last in row 1 too.
  const auto run = [&](KvCache& cache, std::int64_t first, std::int64_t n, bool both,
                       ThreadPool& pool) {
    std::vector<float> in(static_cast<std::size_t>(2 * n * cols));
    for (std::int64_t i = 0; i < n; ++i) {
      positions[static_cast<std::size_t>(i)] = first + i;
      positions[static_cast<std::size_t>(n + i)] = i + 1 < n ? first + i : -1;
    }
    std::copy(x.begin() + first * cols, x.begin() + (first + n) * cols, in.begin());
    std::copy(in.begin(), in.begin() + n * cols, in.begin() + n * cols);
    std::vector<float> y(static_cast<std::size_t>(2 * n * hidden));
    BatchRows batch;
    batch.cache = &cache;
    batch.rows = both ? std::vector<std::int64_t>{0, 1} : std::vector<std::int64_t>{0};
    batch.width = n;
    batch.positions = positions.data();
    batch.end_layer = 1;
    batch.view = view;
    attention.run(batch, {{in.data(), cols}}, y.data(), pool);
    return y;
  };
  KvCache alone(attention.cache_shape(1, text));
  std::vector<float> expected;
  for (std::int64_t t = 0; t < text; ++t) {
    const auto y = run(alone, t, 1, false, *pools[0]);
    expected.insert(expected.end(), y.begin(), y.begin() + hidden);
  }
  // What lies outside of the last token's view may be anything.
  const std::vector<float> nothing(static_cast<std::size_t>(source.head_dim), NAN);
  const bool all = view.window == 0 || source.window != 0 || view.blocks != 0;
  const std::int64_t outside = all ? 0 : text - view.window;
  for (std::int64_t slot = view.sinks; slot < outside; ++slot) {
    for (std::int64_t head = 0; head < source.kv_heads; ++head)
      alone.write(0, 0, head, slot, nothing.data(), nothing.data());
  }
  alone.trim(0, text - 1, 0, 1);
  const auto again = run(alone, text - 1, 1, false, *pools[between(random, 0, 2)]);
  CHECK(same_bits(again.data(), expected.data() + (text - 1) * hidden, hidden),
        "%s %s attention with a view of %lld and %lld", level_name(level),
        precision_name(precision), static_cast<long long>(view.sinks),
        static_cast<long long>(view.window));
  KvCache cache(attention.cache_shape(2, text));
  for (std::int64_t at = 0; at < text;) {
    const std::int64_t n = std::min(between(random, 2, 2 * text / 3), text - at);
    const bool both = at == 0;
    const auto y = run(cache, at, n, both, *pools[between(random, 0, 2)]);
    const float* wanted = expected.data() + at * hidden;
    CHECK(same_bits(y.data(), wanted, n * hidden), "%s %s attention from %lld on",
          level_name(level), precision_name(precision), static_cast<long long>(at));
    CHECK(!both || same_bits(y.data() + n * hidden, wanted, (n - 1) * hidden),
          "beside another row");
    at += n;
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
        check_modules(precision, level, pools, random);
        check_attention(precision, level, 30, pools, random);
        // Contexts of which threads take a part each.
        if (round == 0)
          check_attention(precision, level, between(random, 520, 1200), pools, random);
      }
      const Precision precision = kBlockwise[round % static_cast<int>(std::size(kBlockwise))];
      const std::int64_t cols = 256 * (level == Level::portable ? 1 : between(random, 1, 3));
      check_shape(MatrixShape::make(precision, between(random, 1, 200), cols), level, pools,
                  random);
    }
  }
  std::puts("ok");
}
