// The little that a test needs.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "forerun/buffer.h"
#include "forerun/linear.h"
#include "forerun/packed_matrix.h"

#define CHECK(condition, ...)                                              \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::fprintf(stderr, __VA_ARGS__);                                   \
      std::fprintf(stderr, "\n");                                          \
      std::exit(1);                                                        \
    }                                                                      \
  } while (0)

#define CHECK_THROWS(type, expression) \
  do {                                 \
    bool thrown = false;               \
    try {                              \
      expression;                      \
    } catch (const type&) {            \
      thrown = true;                   \
    }                                  \
    CHECK(thrown, "expected " #type);  \
  } while (0)

namespace forerun::cpu::test {

using Random = std::mt19937_64;

inline std::vector<float> normal(Random& random, std::int64_t count, float deviation = 1.0f) {
  std::normal_distribution<float> draw(0.0f, deviation);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& v : values) v = draw(random);
  return values;
}

inline std::int64_t between(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

inline bool same_bits(const float* a, const float* b, std::int64_t n) {
  return n == 0 || std::memcmp(a, b, static_cast<std::size_t>(n) * sizeof(float)) == 0;
}

// A sum in the order that kernels.h gives for AMX in bf16, over pairs of columns in steps.
struct TileSum {
  float sum = 0.0f;
  float even = 0.0f;
  float odd = 0.0f;

  void add(float w0, float x0, float w1, float x1) {
    even = std::fma(w0, x0, even);
    odd = std::fma(w1, x1, odd);
  }
  void end_step() {
    sum += even + odd;
    even = odd = 0.0f;
  }
};

// Random rows of a matrix in groups of 32, or in llama.cpp's blocks, that are quantized already.
struct CodedMatrix {
  MatrixShape shape;
  std::vector<std::uint8_t> codes;
  std::vector<std::uint16_t> scales;
  std::vector<std::uint16_t> offsets;

  CodedMatrix(const MatrixShape& s, Random& random) : shape(s) {
    const auto some_half = [&] {
      return static_cast<std::uint16_t>(between(random, 0x2000, 0x3c00));
    };
    const int most = s.bytes_wide() ? 255 : (16 << s.upper_bits()) - 1;
    for (std::int64_t i = 0; i < s.rows * s.cols; ++i)
      codes.push_back(static_cast<std::uint8_t>(between(random, 0, most)));
    for (std::int64_t i = 0; i < s.rows * s.groups(); ++i) scales.push_back(some_half());
    for (std::int64_t i = 0; i < s.rows * s.offsets(); ++i) offsets.push_back(some_half());
  }

  CodedRows from(std::int64_t row) const {
    return {codes.data() + row * shape.cols, scales.data() + row * shape.groups(),
            shape.offsets() > 0 ? offsets.data() + row * shape.offsets() : nullptr};
  }
};

// A packed matrix with its memory; in llama.cpp's blocks, in which none are quantized here, a
// random one.
struct Packed {
  Buffer memory;
  PackedMatrix matrix;

  Packed(const MatrixShape& shape, const std::vector<float>& weights)
      : memory(shape.bytes()), matrix(shape, memory.data()) {
    if (shape.blockwise()) {
      Random random(shape.rows + shape.cols);
      const CodedMatrix rows(shape, random);
      matrix.pack_codes(0, shape.rows, rows.from(0));
      return;
    }
    matrix.pack_rows(0, shape.rows, weights.data(), SourceType::fp32, shape.cols);
  }
};

constexpr Precision kPrecisions[] = {Precision::fp32,        Precision::bf16,
                                     Precision::int8,        Precision::int4,
                                     Precision::int8_offset, Precision::int4_offset};

inline Precision any_precision(Random& random) {
  return kPrecisions[between(random, 0, static_cast<int>(std::size(kPrecisions)) - 1)];
}

constexpr Precision kBlockwise[] = {Precision::q4_k, Precision::q5_k,   Precision::q6_k,
                                    Precision::q5_0, Precision::iq4_nl, Precision::iq4_xs};

inline std::vector<Level> levels() {
  std::vector<Level> all;
  for (int i = 0; i <= static_cast<int>(best_level()); ++i) all.push_back(static_cast<Level>(i));
  return all;
}

inline std::vector<float> multiply(const PackedMatrix& w, const float* x, std::int64_t n,
                                   Level level, ThreadPool& pool, LinearOptions options = {}) {
  const MatrixShape& shape = w.shape();
  Activations packed(shape.precision, shape.group, level);
  packed.pack(x, n, shape.cols, shape.cols, pool);
  std::vector<float> y(static_cast<std::size_t>(n * shape.rows));
  linear(w, packed, y.data(), shape.rows, pool, options);
  return y;
}

}  // namespace forerun::cpu::test
