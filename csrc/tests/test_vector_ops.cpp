// Vector operations against double precision, and all levels against each other: bit for bit.
#include <algorithm>
#include <cmath>
#include <limits>

#include "check.h"
#include "coded_panel.h"
#include "forerun/vector_ops.h"
#include "numbers.h"
#include "vector/vector_set.h"

namespace forerun::cpu::test {
namespace {

void near(double truth, float value, double relative, const char* what) {
  CHECK(std::fabs(truth - value) <= relative * std::fabs(truth) + 1e-37, "%s: %.9g, not %.9g", what,
        static_cast<double>(value), truth);
}

void check_norms(const VectorOps& ops, const std::vector<float>& x, const std::vector<float>& w) {
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<float> y(x.size());
  double squares = 0.0;
  double mean = 0.0;
  for (const float v : x) {
    squares += static_cast<double>(v) * v / static_cast<double>(n);
    mean += static_cast<double>(v) / static_cast<double>(n);
  }
  ops.rms_norm(x.data(), w.data(), 1e-5f, n, y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    near(x[i] / std::sqrt(squares + 1e-5) * w[i], y[i], 2e-6, "rms_norm");
  }
  const double variance = squares - mean * mean;
  ops.layer_norm(x.data(), w.data(), w.data(), 1e-5f, n, y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double truth = (x[i] - mean) / std::sqrt(variance + 1e-5) * w[i] + w[i];
    CHECK(std::fabs(truth - y[i]) < 2e-5, "layer_norm: %g, not %g", static_cast<double>(y[i]),
          truth);
  }
}

void check_curves(const VectorOps& ops) {
  std::vector<float> x;
  for (float v = -90.0f; v < 90.0f; v += 0.0137f) x.push_back(v);
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<float> y(x.size());
  const std::vector<float> ones(x.size(), 1.0f);
  ops.silu_mul(x.data(), ones.data(), n, y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    if (v > -86.0) near(v / (1.0 + std::exp(-v)), y[i], 5e-7, "silu");
  }
  ops.gelu_tanh(x.data(), n, y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    // exp(-2u) / (1 + exp(-2u)) keeps the small values that 1 + tanh(u) loses.
    const double u = 0.79788456080286536 * (v + 0.044715 * v * v * v);
    if (u > -5.0) near(v / (1.0 + std::exp(-2.0 * u)), y[i], 3e-6, "gelu");
  }
  ops.clamped_swiglu(x.data(), x.data(), n, y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double g = std::min(x[i], 7.0f);
    const double u = std::max(std::min(x[i], 7.0f), -7.0f);
    if (g > -50.0) near(g / (1.0 + std::exp(-1.702 * g)) * (u + 1.0), y[i], 1e-5, "swiglu");
  }
  ops.soft_cap(x.data(), 30.0f, n, y.data());
  for (std::size_t i = 0; i < x.size(); ++i)
    CHECK(std::fabs(y[i] - 30.0 * std::tanh(x[i] / 30.0)) < 2e-5, "soft cap of %f", x[i]);
  for (float& v : x) v = -std::fabs(v);
  x.resize(x.size() / 16 * 16);
  y = x;
  float top = 0.0f;
  float lanes[16] = {};
  ops.softmax_piece(y.data(), static_cast<std::int64_t>(y.size()), &top, lanes);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] > -86.8f) {
      const double truth = std::exp(static_cast<double>(x[i]));
      near(1.0, static_cast<float>(y[i] / truth), 2.4e-7, "exp");
    }
  }
}

void check_softmax(const VectorOps& ops) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x(16, -infinity);
  float top = -infinity;
  float lanes[16] = {};
  CHECK(ops.softmax_piece(x.data(), 16, &top, lanes) == 1.0f && top == -infinity, "nothing seen");
  CHECK(x[0] == 0.0f && lanes[0] == 0.0f, "masked scores are exactly zero");
  x = std::vector<float>(16, -infinity);
  x[1] = 1.0f, x[2] = 3.0f, x[3] = -200.0f, x[5] = 2.0f;
  CHECK(ops.softmax_piece(x.data(), 16, &top, lanes) == 0.0f, "nothing was there to keep");
  CHECK(top == 3.0f && x[2] == 1.0f && x[3] == 0.0f, "largest, exp(0), and what is far below");
  near(std::exp(-1.0), lanes[5], 3e-7, "lane");
  x = std::vector<float>(16, 4.0f);
  near(std::exp(-1.0), ops.softmax_piece(x.data(), 16, &top, lanes), 3e-7, "factor");
  near(1.0 + std::exp(-1.0), lanes[2], 3e-7, "lane behind it");
  x[0] = std::numeric_limits<float>::quiet_NaN();
  ops.softmax_piece(x.data(), 16, &top, lanes);
  CHECK(top == 4.0f && x[0] != x[0] && lanes[0] != lanes[0] && lanes[1] == lanes[1], "NaN");
}

template <class Call>
void check_same(const char* what, std::int64_t n, Call call) {
  std::vector<float> first(static_cast<std::size_t>(n));
  call(vector_ops(Level::portable), first.data());
  for (const Level level : levels()) {
    std::vector<float> y(static_cast<std::size_t>(n));
    call(vector_ops(level), y.data());
    CHECK(same_bits(first.data(), y.data(), n), "%s at %s, n %lld", what, level_name(level),
          static_cast<long long>(n));
  }
}

void check_levels(Random& random, std::int64_t n) {
  const auto x = normal(random, n, 5.0f);
  const auto w = normal(random, n);
  const auto* a = x.data();
  const auto* b = w.data();
  check_same("rms_norm", n, [&](const VectorOps& o, float* y) { o.rms_norm(a, b, 1e-6f, n, y); });
  check_same("layer_norm", n,
             [&](const VectorOps& o, float* y) { o.layer_norm(a, b, b, 1e-6f, n, y); });
  check_same("silu_mul", n, [&](const VectorOps& o, float* y) { o.silu_mul(a, b, n, y); });
  check_same("gelu_tanh", n, [&](const VectorOps& o, float* y) { o.gelu_tanh(a, n, y); });
  check_same("gelu_tanh_mul", n,
             [&](const VectorOps& o, float* y) { o.gelu_tanh_mul(a, b, n, y); });
  check_same("clamped_swiglu", n,
             [&](const VectorOps& o, float* y) { o.clamped_swiglu(a, b, n, y); });
  check_same("soft_cap", n, [&](const VectorOps& o, float* y) { o.soft_cap(a, 3.0f, n, y); });
  check_same("rotate_pairs", n, [&](const VectorOps& o, float* y) {
    std::memcpy(y, a, static_cast<std::size_t>(n) * sizeof(float));
    o.rotate_pairs(y, b, b, n / 2);
  });
  check_same("add", n, [&](const VectorOps& o, float* y) { o.add(a, n, y); });
  check_same("turn", 16 << n % 3, [&](const VectorOps& o, float* y) {
    const std::int64_t size = 16 << n % 3;
    for (std::int64_t i = 0; i < size; ++i) y[i] = a[i % n];
    o.turn(y, size);
  });
  check_same("scale", n, [&](const VectorOps& o, float* y) { o.scale(a, 1.7f, n, y); });
  check_same("blend", n, [&](const VectorOps& o, float* y) {
    std::memcpy(y, b, static_cast<std::size_t>(n) * sizeof(float));
    o.blend(a, 0.3f, 1.7f, n, y);
  });
  check_same("weights_to_bf16", n, [&](const VectorOps& o, float* y) {
    std::vector<std::uint16_t> rounded(static_cast<std::size_t>(n));
    o.weights_to_bf16(a, n, rounded.data());
    std::copy(rounded.begin(), rounded.end(), y);
  });
  check_same("softmax_piece", n / 16 * 16 + 18, [&](const VectorOps& o, float* y) {
    float* x = y + 18;
    y[0] = -std::numeric_limits<float>::infinity();
    std::memcpy(x, a, static_cast<std::size_t>(n / 16 * 16) * sizeof(float));
    for (std::int64_t i = 0; i < n / 16 * 16; ++i) x[i] *= i % 5 == 0 ? 9.0f : 1.0f;
    for (std::int64_t i = 0; i < n / 16; ++i) y[1] += o.softmax_piece(x + 16 * i, 16, y, y + 2);
  });
  if (n >= kDigitsOfColumn) {
    check_same("split_digits", kDigitsOfColumn / 2 + 2, [&](const VectorOps& o, float* y) {
      ColumnDigits digits;
      const Digits d = o.split_digits(a, &digits);
      y[0] = d.scale, y[1] = static_cast<float>(d.sum);
      std::memcpy(y + 2, &digits, sizeof digits);
    });
  }
  check_same("rotate", n, [&](const VectorOps& o, float* y) {
    std::memcpy(y, a, static_cast<std::size_t>(n) * sizeof(float));
    o.rotate(y, b, b + n / 2, n / 2);
  });
}

// Digits stand for the numbers, to half a unit of the largest one's, and their sum is theirs.
void check_digits(Random& random, const VectorOps& ops, float size) {
  auto x = normal(random, kDigitsOfColumn, size);
  x[3] = 0.0f;
  ColumnDigits digits;
  const Digits d = ops.split_digits(x.data(), &digits);
  std::int32_t sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::int32_t whole = 128 * digits.high[i] + digits.low[i];
    CHECK(std::fabs(x[i] - static_cast<float>(whole) * d.scale) <= 0.51f * d.scale, "digits");
    sum += whole;
  }
  CHECK(d.sum == sum, "sum of digits");
  std::vector<std::uint16_t> scales;
  for (const float v : normal(random, kDigitsOfColumn)) scales.push_back(float_to_bf16(v));
  ColumnDigits packed;
  const Digits weights = ops.split_weights(x.data(), scales.data(), &packed);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= bf16_to_float(scales[i]);
  const Digits again = ops.split_digits(x.data(), &digits);
  CHECK(std::memcmp(&digits, &packed, sizeof digits) == 0, "digits of weights");
  CHECK(weights.sum == again.sum && weights.scale == again.scale, "sum and scale of weights");
  x[5] = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(ops.split_digits(x.data(), &digits).scale), "NaN");
}

// By Hadamard's matrix of 1 and -1.
void check_turn(const VectorOps& ops) {
  for (const std::int64_t size : {16, 32, 64}) {
    for (std::int64_t unit = 0; unit < size; ++unit) {
      std::vector<float> x(static_cast<std::size_t>(size));
      x[static_cast<std::size_t>(unit)] = 1.0f;
      ops.turn(x.data(), size);
      for (std::int64_t i = 0; i < size; ++i) {
        bool odd = false;
        for (std::int64_t both = i & unit; both != 0; both &= both - 1) odd = !odd;
        CHECK(x[static_cast<std::size_t>(i)] == (odd ? -1.0f : 1.0f), "turned");
      }
    }
  }
}

// What a level makes of a slot in memory of any bytes: in bf16, or as codes.
std::vector<std::uint8_t> slot_of(Level level, const std::vector<float>& key,
                                  const std::vector<float>& value, const CodedSlot& at, bool codes,
                                  std::vector<std::uint8_t> memory) {
  const auto n = static_cast<std::int64_t>(key.size());
  CodedSlot to = at;
  to.keys = memory.data() + 8;
  to.values = memory.data() + 64 * key.size();
  std::vector<std::uint16_t> scales(2 * key.size());
  to.scales = scales.data();
  const VectorSet& set = vector_set(level);
  if (codes) set.write_codes(key.data(), value.data(), n, to);
  else set.write_bf16(key.data(), value.data(), n, to);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(scales.data());
  memory.insert(memory.end(), bytes, bytes + 4 * key.size());
  return memory;
}

void check_slots(Random& random) {
  for (const std::int64_t group : {0, 16, 32, 64}) {
    const bool codes = group != 0;
    const std::int64_t n = codes ? group * between(random, 1, 3) : between(random, 1, 150);
    const float sizes[] = {0.0f, 1e-40f, 1e-33f, 1e-3f, 1.0f, 1e37f};
    auto key = normal(random, n, sizes[between(random, 0, 5)]);
    auto value = normal(random, n, sizes[between(random, 0, 5)]);
    const auto coin = [&] { return between(random, 0, 1) == 1; };
    if (coin()) {
      for (float& v : value) v = std::fabs(v);
    }
    const auto any = static_cast<std::size_t>(between(random, 0, n - 1));
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float odd[] = {0.0f, -0.0f, 9.0f, kInfinity, std::numeric_limits<float>::quiet_NaN()};
    if (coin()) key[any] = odd[between(random, 0, 4)];
    if (coin()) value[any] = odd[between(random, 0, 2)];
    std::vector<std::uint8_t> memory(static_cast<std::size_t>(3 * 64 * n + 192));
    for (std::uint8_t& byte : memory) byte = static_cast<std::uint8_t>(random());
    CodedSlot to = {};
    to.value_step = codes ? 128 : 64;
    to.shift = codes ? 4 * static_cast<int>(between(random, 0, 7))
                     : 16 * static_cast<int>(between(random, 0, 1));
    to.group = group;
    to.scale_step = 1;
    to.lower_key = coin() ? 0 : 4;
    to.lower_value = 64;
    const auto expected = slot_of(Level::portable, key, value, to, codes, memory);
    for (const Level level : levels())
      CHECK(slot_of(level, key, value, to, codes, memory) == expected,
            "a slot of %lld dimensions in groups of %lld at %s", static_cast<long long>(n),
            static_cast<long long>(group), level_name(level));
  }
}

}  // namespace
}  // namespace forerun::cpu::test

int main() {
  using namespace forerun::cpu;
  using namespace forerun::cpu::test;
  Random random(3);
  for (const Level level : levels()) {
    const VectorOps& ops = vector_ops(level);
    for (const std::int64_t n : {1, 15, 16, 17, 288, 1000}) {
      check_norms(ops, normal(random, n, 3.0f), normal(random, n));
    }
    check_curves(ops);
    check_softmax(ops);
    check_turn(ops);
    for (const float size : {1e-30f, 1e-3f, 1.0f, 1e30f}) check_digits(random, ops, size);
  }
  for (std::int64_t n = 2; n < 200; ++n) check_levels(random, n);
  for (int i = 0; i < 100; ++i) check_slots(random);
  std::puts("ok");
}
