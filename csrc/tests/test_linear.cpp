// Products against a double-precision reference on the very numbers that the kernels multiply, and
// all levels against each other and, for AMX in bf16, against kernels.h's words: bit for bit.
#include <cmath>
#include <limits>

#include "check.h"
#include "float_mode.h"
#include "forerun/vector_ops.h"

namespace forerun::cpu::test {
namespace {

float rounded_to_bf16(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, 4);
  u = (u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u;
  std::memcpy(&x, &u, 4);
  return x;
}

// The token as a kernel sees it.
std::vector<float> seen(const MatrixShape& shape, const float* x) {
  std::vector<float> values(x, x + shape.cols);
  if (shape.precision == Precision::bf16) {
    for (float& v : values) v = rounded_to_bf16(v);
  }
  if (!shape.grouped()) return values;
  const std::int64_t shared = shape.group * shape.groups_per_scale();
  for (std::int64_t begin = 0; begin < shape.cols; begin += shared) {
    const std::int64_t end = std::min<std::int64_t>(begin + shared, shape.cols);
    float peak = 0.0f;
    for (std::int64_t k = begin; k < end; ++k) peak = std::max(peak, std::fabs(x[k]));
    const float inverse = peak > 0.0f ? 127.0f / peak : 0.0f;
    for (std::int64_t k = begin; k < end; ++k) {
      values[static_cast<std::size_t>(k)] = peak / 127.0f * std::nearbyint(x[k] * inverse);
    }
  }
  return values;
}

// Relative to the sum of magnitudes: k fused steps of half a unit in the last place, in the worst
// case; errors are random and stay far below.
constexpr double kTolerance = 2e-6;

void check_reference(const MatrixShape& shape, Random& random, ThreadPool& pool) {
  const std::int64_t n = between(random, 1, 9);
  const std::vector<float> weights = normal(random, shape.rows * shape.cols, 0.05f);
  const std::vector<float> x = normal(random, n * shape.cols);
  const std::vector<float> bias = normal(random, shape.rows);
  const Packed w(shape, weights);
  const LinearOptions options = {bias.data(), false, nullptr};
  const std::vector<float> y = multiply(w.matrix, x.data(), n, best_level(), pool, options);
  std::vector<float> row(static_cast<std::size_t>(shape.cols));
  for (std::int64_t t = 0; t < n; ++t) {
    const std::vector<float> token = seen(shape, x.data() + t * shape.cols);
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      w.matrix.unpack_row(r, row.data());
      double sum = bias[static_cast<std::size_t>(r)];
      double magnitude = std::fabs(sum);
      for (std::size_t k = 0; k < row.size(); ++k) {
        const double product = static_cast<double>(row[k]) * token[k];
        sum += product;
        magnitude += std::fabs(product);
      }
      const double error = std::fabs(sum - y[static_cast<std::size_t>(t * shape.rows + r)]);
      CHECK(error <= kTolerance * magnitude + 1e-30,
            "%s %lld x %lld group %d: token %lld row %lld off by %g of %g",
            precision_name(shape.precision), static_cast<long long>(shape.rows),
            static_cast<long long>(shape.cols), shape.group, static_cast<long long>(t),
            static_cast<long long>(r), error, magnitude);
    }
  }
}

// What the formats lose, as a share of the weights' root mean square.
void check_quantization(Precision precision, int group, double limit, Random& random) {
  const MatrixShape shape = MatrixShape::make(precision, 48, 1000, group);
  const std::vector<float> weights = normal(random, shape.rows * shape.cols, 0.02f);
  const Packed w(shape, weights);
  std::vector<float> row(static_cast<std::size_t>(shape.cols));
  double error = 0.0;
  double power = 0.0;
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    w.matrix.unpack_row(r, row.data());
    for (std::size_t k = 0; k < row.size(); ++k) {
      const double truth = weights[static_cast<std::size_t>(r * shape.cols) + k];
      error += (row[k] - truth) * (row[k] - truth);
      power += truth * truth;
    }
  }
  CHECK(std::sqrt(error / power) < limit, "%s group %d loses %g", precision_name(precision), group,
        std::sqrt(error / power));
}

float normal_half(std::uint16_t h) {
  return std::ldexp(static_cast<float>(1024 + (h & 1023)), (h >> 10) - 25);
}

// Weights that are quantized already come out as scale * (code - zero) + offset.
void check_codes(Precision precision, Random& random) {
  const MatrixShape shape = MatrixShape::make(precision, 37, 160, 32);
  const int zero = shape.has_offset() ? 0 : shape.bytes_wide() ? 128 : 8;
  const CodedMatrix rows(shape, random);
  Buffer memory(shape.bytes());
  PackedMatrix matrix(shape, memory.data());
  matrix.pack_codes(0, 20, rows.from(0));
  matrix.pack_codes(20, 17, rows.from(20));
  std::vector<float> row(static_cast<std::size_t>(shape.cols));
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    matrix.unpack_row(r, row.data());
    for (std::int64_t k = 0; k < shape.cols; ++k) {
      const auto at = static_cast<std::size_t>(r * shape.cols + k);
      const float scale = normal_half(rows.scales[at / 32]);
      const float offset = shape.has_offset() ? normal_half(rows.offsets[at / 32]) : 0.0f;
      const float expected = scale * static_cast<float>(rows.codes[at] - zero) + offset;
      CHECK(row[static_cast<std::size_t>(k)] == expected, "%s row %lld column %lld",
            precision_name(precision), static_cast<long long>(r), static_cast<long long>(k));
    }
  }
}

// Blocks of llama.cpp's come out number for number, also those of a row that is copied.
void check_blockwise(Precision precision, Random& random) {
  const MatrixShape shape = MatrixShape::make(precision, 21, 512);
  const CodedMatrix rows(shape, random);
  Buffer memory(shape.bytes());
  PackedMatrix matrix(shape, memory.data());
  matrix.pack_codes(0, 20, rows.from(0));
  matrix.copy_row(20, matrix, 3);
  std::vector<float> row(static_cast<std::size_t>(shape.cols));
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    matrix.unpack_row(r, row.data());
    const CodedRows from = rows.from(r == 20 ? 3 : r);
    for (std::int64_t k = 0; k < shape.cols; ++k) {
      const std::uint16_t steps = from.scales[k / shape.group];
      const int code = from.codes[k];
      const auto value =
          static_cast<float>(shape.listed() ? kListed[code] : code - shape.zero_code());
      float scale = normal_half(steps);
      float offset = 0.0f;
      if (shape.has_factors()) {
        const std::uint16_t* factors = from.offsets + k / shape.super_columns() * 2;
        const int step = shape.has_offset() ? steps & 255 : static_cast<std::int8_t>(steps & 255);
        scale = static_cast<float>(step) * normal_half(factors[0]);
        if (shape.has_offset()) offset = static_cast<float>(steps >> 8) * normal_half(factors[1]);
      }
      const float expected = scale * value + offset;
      CHECK(row[static_cast<std::size_t>(k)] == expected, "%s row %lld column %lld",
            precision_name(precision), static_cast<long long>(r), static_cast<long long>(k));
    }
  }
  CodedMatrix bad = rows;
  bad.codes[700] = static_cast<std::uint8_t>(16 << shape.upper_bits());
  CHECK_THROWS(std::domain_error, matrix.pack_codes(0, 2, bad.from(0)));
  bad = rows;
  (shape.has_factors() ? bad.offsets : bad.scales)[2] = 0x7c00;  // infinity
  CHECK_THROWS(std::domain_error, matrix.pack_codes(0, 2, bad.from(0)));
  CHECK_THROWS(std::invalid_argument,
               matrix.pack_rows(0, 1, row.data(), SourceType::fp32, shape.cols));
  CHECK_THROWS(std::invalid_argument,
               PackedMatrix(MatrixShape::make(precision, 1, 300), memory.data()));
}

// What kernels.h says of AMX in bf16.
std::vector<float> by_tiles(const PackedMatrix& w, const float* x, std::int64_t n) {
  constexpr std::size_t kColumns = 32;
  const FloatMode mode(FloatMode::Subnormals::flush);
  const MatrixShape& shape = w.shape();
  const auto cols = static_cast<std::size_t>(shape.cols);
  std::vector<float> row((cols + kColumns - 1) / kColumns * kColumns);
  std::vector<float> y;
  for (std::int64_t t = 0; t < n; ++t) {
    std::vector<float> token = seen(shape, x + t * shape.cols);
    token.resize(row.size());
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      w.unpack_row(r, row.data());
      TileSum sum;
      for (std::size_t k = 0; k < row.size(); k += 2) {
        sum.add(row[k], token[k], row[k + 1], token[k + 1]);
        if ((k + 2) % kColumns == 0) sum.end_step();
      }
      y.push_back(sum.sum);
    }
  }
  return y;
}

std::vector<float> expected_at(Level level, const PackedMatrix& w, const float* x, std::int64_t n,
                               ThreadPool& pool) {
  const bool tiles = level == Level::amx && w.shape().precision == Precision::bf16;
  return tiles ? by_tiles(w, x, n) : multiply(w, x, n, Level::portable, pool);
}

// `size`: of weights and activations; 1e-20 makes products of bf16 and fp32 subnormal.
void check_levels(const MatrixShape& shape, float size, Random& random, ThreadPool& pool) {
  const std::int64_t n = between(random, 1, 30);
  const Packed w(shape, normal(random, shape.rows * shape.cols, size));
  const std::vector<float> x = normal(random, n * shape.cols, size);
  for (const Level level : levels()) {
    const std::vector<float> expected = expected_at(level, w.matrix, x.data(), n, pool);
    const std::vector<float> y = multiply(w.matrix, x.data(), n, level, pool);
    CHECK(same_bits(expected.data(), y.data(), n * shape.rows),
          "%s gives something else in %s, %lld x %lld, n %lld", level_name(level),
          precision_name(shape.precision), static_cast<long long>(shape.rows),
          static_cast<long long>(shape.cols), static_cast<long long>(n));
  }
}

// Where sums are largest: every value is, and so is every activation, of either sign.
void check_largest(const MatrixShape& shape, Random& random, ThreadPool& pool) {
  constexpr std::int64_t kTokens = 3;
  CodedMatrix rows(shape, random);
  const int bits = shape.blockwise() ? 4 + shape.upper_bits() : shape.bytes_wide() ? 8 : 4;
  const int largest = shape.listed() ? 0 : (1 << bits) - 1;
  std::fill(rows.codes.begin(), rows.codes.end(), static_cast<std::uint8_t>(largest));
  Buffer memory(shape.bytes());
  PackedMatrix matrix(shape, memory.data());
  matrix.pack_codes(0, shape.rows, rows.from(0));
  std::vector<float> x(static_cast<std::size_t>(kTokens * shape.cols), 1.0f);
  for (std::int64_t k = 0; k < shape.cols; ++k) {
    x[static_cast<std::size_t>(shape.cols + k)] = -1.0f;
    x[static_cast<std::size_t>(2 * shape.cols + k)] = k % 2 == 0 ? 1.0f : -1.0f;
  }
  const auto expected = multiply(matrix, x.data(), kTokens, Level::portable, pool);
  for (const Level level : levels()) {
    const auto y = multiply(matrix, x.data(), kTokens, level, pool);
    CHECK(same_bits(expected.data(), y.data(), kTokens * shape.rows), "largest codes at %s in %s",
          level_name(level), precision_name(shape.precision));
  }
}

// Whole and partial blocks, as many as a call takes at once and more, in rows that are further
// apart than they are long: the bias and what is there are added to what one token alone gives, and
// nothing else is written.
void check_blocks(const MatrixShape& shape, std::int64_t n, Random& random, ThreadPool& pool) {
  const std::int64_t stride = shape.rows + 5;
  const Packed w(shape, normal(random, shape.rows * shape.cols));
  const std::vector<float> x = normal(random, n * shape.cols);
  const std::vector<float> bias = normal(random, shape.rows);
  const std::vector<float> before = normal(random, n * stride);
  for (const Level level : levels()) {
    std::vector<float> expected = before;
    for (std::int64_t t = 0; t < n; ++t) {
      const std::vector<float> alone =
          expected_at(level, w.matrix, x.data() + t * shape.cols, 1, pool);
      for (std::size_t r = 0; r < alone.size(); ++r)
        expected[static_cast<std::size_t>(t * stride) + r] += alone[r] + bias[r];
    }
    std::vector<float> y = before;
    Activations packed(shape.precision, shape.group, level);
    packed.pack(x.data(), n, shape.cols, shape.cols, pool);
    linear(w.matrix, packed, y.data(), stride, pool, {bias.data(), true, nullptr});
    CHECK(same_bits(y.data(), expected.data(), n * stride), "%s at %s, %lld rows, n %lld",
          precision_name(shape.precision), level_name(level), static_cast<long long>(shape.rows),
          static_cast<long long>(n));
  }
}

// With a gate a product is that of its halves one after the other, bit for bit; packed for a second
// product it is what packing gives.
void check_gate(Precision precision, std::int64_t blocks, std::int64_t n, Random& random,
                ThreadPool& pool) {
  const std::int64_t half = kBlockRows * blocks;
  const MatrixShape any = MatrixShape::make(precision, 2 * half, between(random, 1, 300), 32);
  const std::int64_t cols = any.blockwise() ? 256 : any.cols;
  const MatrixShape shape = MatrixShape::make(precision, 2 * half, cols, 32);
  const Packed w(shape, normal(random, shape.rows * shape.cols, 0.1f));
  const std::vector<float> x = normal(random, n * shape.cols, 1.0f);
  const std::vector<float> bias = normal(random, shape.rows);
  for (const Level level : levels()) {
    const VectorOps& ops = vector_ops(level);
    const std::vector<float> both = multiply(w.matrix, x.data(), n, level, pool, {bias.data()});
    Activations packed(precision, 32, level);
    packed.pack(x.data(), n, shape.cols, shape.cols, pool);
    std::vector<float> expected(static_cast<std::size_t>(n * half));
    std::vector<float> y(expected.size());
    for (std::int64_t t = 0; t < n; ++t) {
      const float* gate = both.data() + 2 * t * half;
      ops.silu_mul(gate, gate + half, half, expected.data() + t * half);
    }
    linear(w.matrix, packed, y.data(), half, pool, {bias.data(), false, nullptr, ops.silu_mul});
    CHECK(same_bits(expected.data(), y.data(), n * half), "gate at %s in %s, n %lld",
          level_name(level), precision_name(precision), static_cast<long long>(n));

    for (const Precision second : kPrecisions) {
      const int group = 32 << between(random, 0, 2);
      const Packed then(MatrixShape::make(second, 5, half, group), normal(random, 5 * half, 0.1f));
      const std::vector<float> whole = multiply(then.matrix, expected.data(), n, level, pool);
      // What a larger call has left counts for nothing.
      const std::vector<float> before(static_cast<std::size_t>((n + 9) * (half + 64)),
                                      std::nanf(""));
      Activations inner(second, group, level);
      inner.pack(before.data(), n + 9, half + 64, half + 64, pool);
      linear(w.matrix, packed, nullptr, half, pool,
             {bias.data(), false, nullptr, ops.silu_mul, &inner});
      linear(then.matrix, inner, y.data(), 5, pool);
      CHECK(same_bits(whole.data(), y.data(), n * 5), "%s behind a gate in %s at %s, n %lld",
            precision_name(second), precision_name(precision), level_name(level),
            static_cast<long long>(n));
    }
  }
}

// In a grouped format, where a group's scale could hide it, what is no number makes all of its
// token's results NaN, and no other's.
void check_no_numbers(const MatrixShape& shape, std::int64_t n, Random& random, ThreadPool& pool) {
  const Packed w(shape, normal(random, shape.rows * shape.cols));
  const std::vector<float> x = normal(random, n * shape.cols);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    std::vector<float> broken = x;
    const std::int64_t place = between(random, 0, n * shape.cols - 1);
    const std::int64_t token = place / shape.cols;
    broken[static_cast<std::size_t>(place)] = value;
    for (const Level level : levels()) {
      std::vector<float> expected = multiply(w.matrix, x.data(), n, level, pool);
      std::vector<float> y = multiply(w.matrix, broken.data(), n, level, pool);
      for (std::int64_t r = token * shape.rows; r < (token + 1) * shape.rows; ++r) {
        const auto i = static_cast<std::size_t>(r);
        CHECK(std::isnan(y[i]), "%g at %lld in %s at %s, n %lld: %g", static_cast<double>(value),
              static_cast<long long>(place), precision_name(shape.precision), level_name(level),
              static_cast<long long>(n), static_cast<double>(y[i]));
        y[i] = expected[i];
      }
      CHECK(same_bits(y.data(), expected.data(), n * shape.rows), "others at %s in %s, n %lld",
            level_name(level), precision_name(shape.precision), static_cast<long long>(n));
    }
  }
}

}  // namespace
}  // namespace forerun::cpu::test

int main(int count, char** arguments) {
  using namespace forerun::cpu;
  using namespace forerun::cpu::test;
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 12;
  Random random(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 7);
  ThreadPool pool(2);
  const Forward forward(pool);
  for (int round = 0; round < rounds; ++round) {
    for (const Precision precision : kPrecisions) {
      for (const int group : {32, 64, 128}) {
        const std::int64_t rows = between(random, 1, 200);
        const auto shape = MatrixShape::make(precision, rows, between(random, 1, 700), group);
        check_reference(shape, random, pool);
        for (const float size : {0.5f, 1e-10f, 1e-19f, 1e-20f, 1e-38f}) {
          check_levels(shape, size, random, pool);
        }
      }
    }
  }
  check_quantization(Precision::int8, 64, 0.008, random);
  check_quantization(Precision::int4, 32, 0.09, random);
  check_quantization(Precision::int8_offset, 64, 0.006, random);
  check_quantization(Precision::int4_offset, 32, 0.085, random);
  for (const Precision precision : kPrecisions) {
    if (!MatrixShape::make(precision, 1, 1).grouped()) continue;
    check_codes(precision, random);
    for (const int group : {32, 64, 128}) {
      check_largest(MatrixShape::make(precision, 21, 384, group), random, pool);
      for (const std::int64_t n : {1, 8, 14, 90}) {
        const std::int64_t cols = between(random, 1, 1100);
        check_no_numbers(MatrixShape::make(precision, 40, cols, group), n, random, pool);
      }
    }
  }
  for (const Precision precision : kPrecisions) {
    check_gate(precision, between(random, 1, 9), between(random, 1, 60), random, pool);
    // More blocks than have room at once, and many tiles of tokens.
    check_gate(precision, between(random, 100, 150), between(random, 1, 6), random, pool);
    check_gate(precision, between(random, 100, 150), between(random, 7, 16), random, pool);
    check_gate(precision, between(random, 1, 9), between(random, 90, 130), random, pool);
  }
  for (const Precision precision : kBlockwise) {
    check_blockwise(precision, random);
    check_largest(MatrixShape::make(precision, 21, 512), random, pool);
    check_gate(precision, between(random, 1, 9), between(random, 1, 16), random, pool);
    check_gate(precision, between(random, 9, 30), between(random, 40, 60), random, pool);
    // From 41 tokens on, six tiles, several blocks share a tile.
    for (const std::int64_t n : {1, 3, 4, 7, 8, 9, 14, 40, 41, 100}) {
      const auto shape =
          MatrixShape::make(precision, between(random, 1, 200), 256 * between(random, 1, 5));
      check_reference(shape, random, pool);
      check_levels(shape, 0.5f, random, pool);
      check_blocks(shape, n, random, pool);
      check_no_numbers(shape, n, random, pool);
    }
  }
  // Many tiles of blocks that are laid out once: a row of them, and such as are just small enough
  // or too large.
  for (const Precision precision : {Precision::int4, Precision::int4_offset}) {
    for (const std::int64_t cols : {900, 7000, 8000}) {
      const std::int64_t rows = cols == 900 ? 400 : 40;
      check_blocks(MatrixShape::make(precision, rows, cols), 100, random, pool);
    }
  }
  for (const Precision precision : kPrecisions) {
    for (std::int64_t blocks = 1; blocks <= 7; ++blocks) {
      for (const std::int64_t n : {3, 8, 9, 16, 17, 33, 100}) {
        const std::int64_t rows = kBlockRows * blocks - between(random, 0, kBlockRows - 1);
        check_blocks(MatrixShape::make(precision, rows, between(random, 1, 200)), n, random, pool);
      }
    }
  }
  std::puts("ok");
}
