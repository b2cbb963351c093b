// Vector operations against double precision, and all levels against each other: bit for bit.
#include <cmath>
#include <limits>

#include "check.h"
#include "forerun/vector_ops.h"

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
  for (float& v : x) v = -std::fabs(v);
  y = x;
  ops.exp_sum(y.data(), 0.0f, n);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] > -86.8f) near(std::exp(static_cast<double>(x[i])), y[i], 2e-7, "exp");
  }
}

void check_softmax(const VectorOps& ops) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x = {1.0f, -infinity, 3.0f, -200.0f, 2.0f};
  const float top = ops.max(x.data(), 5);
  CHECK(top == 3.0f, "max");
  const float total = ops.exp_sum(x.data(), top, 5);
  CHECK(x[1] == 0.0f && x[3] == 0.0f, "masked and far scores are exactly zero");
  CHECK(x[2] == 1.0f, "exp(0) is exactly one");
  near(1.0 + std::exp(-1.0) + std::exp(-2.0), total, 3e-7, "sum");
  const std::vector<float> masked(40, -infinity);
  CHECK(ops.max(masked.data(), 40) == -infinity, "max of nothing");
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
  check_same("add", n, [&](const VectorOps& o, float* y) { o.add(a, n, y); });
  check_same("scale", n, [&](const VectorOps& o, float* y) { o.scale(a, 1.7f, n, y); });
  check_same("max", 1, [&](const VectorOps& o, float* y) { *y = o.max(a, n); });
  check_same("exp_sum", n + 1, [&](const VectorOps& o, float* y) {
    std::memcpy(y, a, static_cast<std::size_t>(n) * sizeof(float));
    y[n] = o.exp_sum(y, o.max(a, n), n);
  });
  check_same("rotate", n, [&](const VectorOps& o, float* y) {
    std::memcpy(y, a, static_cast<std::size_t>(n) * sizeof(float));
    o.rotate(y, b, b + n / 2, n / 2);
  });
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
  }
  for (std::int64_t n = 2; n < 200; ++n) check_levels(random, n);
  std::puts("ok");
}
