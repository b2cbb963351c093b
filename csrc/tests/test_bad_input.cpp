// Wrong use ends in a typed error; numbers that are not finite stay with their token.
#include <cmath>
#include <limits>
#include <stdexcept>

#include "check.h"
#include "forerun/vector_ops.h"

namespace forerun::cpu::test {
namespace {

void check_errors() {
  CHECK_THROWS(std::invalid_argument, MatrixShape::make(Precision::int8, 16, 64, 48));
  CHECK_THROWS(std::invalid_argument, MatrixShape::make(Precision::bf16, 0, 64));
  CHECK_THROWS(std::invalid_argument, MatrixShape::make(Precision::bf16, 16, -1));
  ThreadPool pool(1);
  const auto shape = MatrixShape::make(Precision::int8, 5, 64);
  std::vector<float> weights(5 * 64, 0.5f);
  Packed w(shape, weights);
  CHECK_THROWS(std::invalid_argument,
               w.matrix.pack_rows(3, 3, weights.data(), SourceType::fp32, 64));
  CHECK_THROWS(std::invalid_argument,
               w.matrix.pack_rows(0, 1, weights.data(), SourceType::fp32, 63));
  weights[70] = 1e9f;
  CHECK_THROWS(std::domain_error, w.matrix.pack_rows(0, 5, weights.data(), SourceType::fp32, 64));
  weights[70] = std::numeric_limits<float>::quiet_NaN();
  for (const Precision precision : kPrecisions) {
    CHECK_THROWS(std::domain_error, Packed(MatrixShape::make(precision, 5, 64), weights));
  }
  std::vector<float> y(5);
  Activations x(Precision::int8);
  CHECK_THROWS(std::invalid_argument, x.pack(weights.data(), 0, 64, 64, pool));
  CHECK_THROWS(std::invalid_argument, x.pack(weights.data(), 1, 64, 60, pool));
  x.pack(weights.data(), 1, 60, 60, pool);
  CHECK_THROWS(std::invalid_argument, linear(w.matrix, x, y.data(), 5, pool));
  x.pack(weights.data(), 1, 64, 64, pool);
  CHECK_THROWS(std::invalid_argument, linear(w.matrix, x, y.data(), 4, pool));
  const Gate gate = vector_ops().silu_mul;
  CHECK_THROWS(std::invalid_argument,
               linear(w.matrix, x, y.data(), 5, pool, {nullptr, false, nullptr, gate}));
  Activations packed(Precision::int8);
  CHECK_THROWS(std::invalid_argument,
               linear(w.matrix, x, y.data(), 5, pool, {nullptr, false, nullptr, nullptr, &packed}));
  Packed halves(MatrixShape::make(Precision::int8, 32, 64), std::vector<float>(32 * 64, 0.5f));
  CHECK_THROWS(std::invalid_argument,
               linear(halves.matrix, x, nullptr, 16, pool, {nullptr, false, nullptr, gate, &x}));
}

void check_codes(Random& random) {
  constexpr std::uint16_t kInfinity = 0x7c00;
  for (const Precision precision : kPrecisions) {
    const auto shape = MatrixShape::make(precision, 5, 64, 32);
    Packed w(shape, normal(random, 5 * 64));
    if (!shape.grouped()) {
      CHECK_THROWS(std::invalid_argument, w.matrix.pack_codes(0, 5, {}));
      continue;
    }
    CodedMatrix rows(shape, random);
    w.matrix.pack_codes(0, 5, rows.from(0));
    CHECK_THROWS(std::invalid_argument, w.matrix.pack_codes(3, 3, rows.from(0)));
    CodedRows other = rows.from(0);
    other.offsets = shape.has_offset() ? nullptr : rows.scales.data();
    CHECK_THROWS(std::invalid_argument, w.matrix.pack_codes(0, 5, other));
    Packed uneven(MatrixShape::make(precision, 5, 60, 32), normal(random, 5 * 60));
    CHECK_THROWS(std::invalid_argument, uneven.matrix.pack_codes(0, 5, rows.from(0)));
    CodedMatrix bad = rows;
    bad.scales[3] = kInfinity;
    CHECK_THROWS(std::domain_error, w.matrix.pack_codes(0, 5, bad.from(0)));
    if (shape.has_offset()) {
      bad = rows;
      bad.offsets[3] = kInfinity;
      CHECK_THROWS(std::domain_error, w.matrix.pack_codes(0, 5, bad.from(0)));
    }
    bad = rows;
    bad.codes[77] = 16;
    if (!shape.bytes_wide())
      CHECK_THROWS(std::domain_error, w.matrix.pack_codes(0, 5, bad.from(0)));
  }
}

void check_not_finite(Random& random) {
  ThreadPool pool(1);
  for (const Precision precision : kPrecisions) {
    const auto shape = MatrixShape::make(precision, 40, 100);
    const Packed w(shape, normal(random, 40 * 100));
    std::vector<float> x = normal(random, 3 * 100);
    const std::vector<float> finite = x;
    using Limits = std::numeric_limits<float>;
    for (const float bad : {Limits::quiet_NaN(), Limits::infinity()}) {
      x[150] = bad;
      for (const Level level : levels()) {
        const auto clean = multiply(w.matrix, finite.data(), 3, level, pool);
        const auto y = multiply(w.matrix, x.data(), 3, level, pool);
        CHECK(same_bits(y.data(), clean.data(), 40), "the token before");
        CHECK(same_bits(y.data() + 80, clean.data() + 80, 40), "the token behind");
        for (int r = 40; r < 80; ++r)
          CHECK(!std::isfinite(y[static_cast<std::size_t>(r)]), "row %d", r);
      }
    }
  }
}

void check_zeros_and_extremes() {
  ThreadPool pool(1);
  for (const Precision precision : kPrecisions) {
    const auto shape = MatrixShape::make(precision, 17, 70);
    const Packed zero(shape, std::vector<float>(17 * 70, 0.0f));
    const Packed large(shape, std::vector<float>(17 * 70, 1000.0f));
    const std::vector<float> tiny(70, 1e-38f);
    const std::vector<float> huge(70, 1e30f);
    for (const Level level : levels()) {
      for (const float v : multiply(zero.matrix, huge.data(), 1, level, pool)) {
        CHECK(v == 0.0f, "zero weights");
      }
      for (const float v : multiply(large.matrix, tiny.data(), 1, level, pool)) {
        CHECK(v >= 0.0f && v < 1e-33f, "tiny activations give %g", static_cast<double>(v));
      }
      for (const float v : multiply(large.matrix, huge.data(), 1, level, pool)) {
        CHECK(std::fabs(v / 7e34f - 1.0f) < 0.02f, "large numbers give %g", static_cast<double>(v));
      }
    }
  }
}

}  // namespace
}  // namespace forerun::cpu::test

int main() {
  using namespace forerun::cpu::test;
  Random random(9);
  check_errors();
  check_codes(random);
  check_not_finite(random);
  check_zeros_and_extremes();
  std::puts("ok");
}
