// The kernels of a float cache against the sums that kernels.h writes down, bit for bit but for the
// sign of a zero, at every level: all numbers of columns, tiles that end early, several blocks,
// products that are subnormal.
#include <cmath>

#include "check.h"
#include "float_mode.h"
#include "forerun/kv_cache.h"
#include "kernels/kernels.h"
#include "numbers.h"

using namespace forerun::cpu;
using namespace forerun::cpu::test;

namespace {

// Operands of one kind: a unit is a number of fp32, or two of bf16.
struct Units {
  Precision precision;
  std::vector<std::uint32_t> bits;

  Units(Precision p, Random& random, std::int64_t count, float size) : precision(p) {
    const std::vector<float> numbers = normal(random, 2 * count, size);
    for (std::size_t i = 0; i < numbers.size(); i += 2) {
      const std::uint32_t pair =
          float_to_bf16(numbers[i]) | std::uint32_t{float_to_bf16(numbers[i + 1])} << 16;
      bits.push_back(p == Precision::bf16 ? pair : bits_of(numbers[i]));
    }
  }

  float first(std::int64_t unit) const {
    const std::uint32_t u = bits[static_cast<std::size_t>(unit)];
    return float_of(precision == Precision::bf16 ? u << 16 : u);
  }
  float second(std::int64_t unit) const {
    return float_of(bits[static_cast<std::size_t>(unit)] & 0xffff0000u);
  }
};

// Where the panel has column t's operand for a line.
struct Panel {
  std::int64_t line;
  std::int64_t column;
  std::int64_t step;  // from so many lines to the next, of AMX
  std::int64_t at(std::int64_t t, std::int64_t l, std::int64_t step_lines) const {
    return l / step_lines * step + l % step_lines * line + t * column;
  }
};

struct Case {
  KernelSet set;
  int columns;
  std::int64_t lines;
  std::int64_t blocks;
  Panel panel;
  float size;  // of weights and columns; outputs begin as large as their products

  float expected(const Units& w, const Units& x, std::int64_t t, std::int64_t row,
                 float start) const {
    const std::int64_t block = row / kBlockRows * lines;
    float sum = start;
    TileSum by_tiles{start};
    for (std::int64_t l = 0; l < lines; ++l) {
      const std::int64_t a = (block + l) * kBlockRows + row % kBlockRows;
      const std::int64_t b = panel.at(t, l, set.step_lines);
      if (set.precision == Precision::fp32) {
        sum = std::fma(w.first(a), x.first(b), sum);
      } else if (set.step_lines == 1) {
        sum = std::fma(w.first(a), x.first(b), std::fma(w.second(a), x.second(b), sum));
      } else {
        by_tiles.add(w.first(a), x.first(b), w.second(a), x.second(b));
        if ((l + 1) % set.step_lines == 0 || l + 1 == lines) by_tiles.end_step();
        sum = by_tiles.sum;
      }
    }
    return sum;
  }

  // `widest`: the columns that a thread is set up for. Of scores AMX writes the rows of whole
  // tiles, as kernels.h says; nothing else beside the columns' sums is written.
  void check(CacheKernel kernel, bool values, int widest, Random& random) const {
    const std::int64_t stride = blocks * kBlockRows + 16;
    const Units w(set.precision, random, blocks * lines * kBlockRows, size);
    const Units x(set.precision, random,
                  (columns + kMaxTileTokens) * (kTileSlots + lines + 2 * set.step_lines), size);
    std::vector<float> before = normal(random, kMaxTileTokens * stride, size * size);
    std::vector<float> out = before;
    CacheTile c;
    c.weights = reinterpret_cast<const std::uint8_t*>(w.bits.data());
    c.blocks = blocks;
    c.lines = lines;
    c.block_bytes = lines * static_cast<std::int64_t>(kLineBytes);
    c.panel = x.bits.data();
    c.out = out.data();
    c.out_stride = stride;
    c.resume = values;
    if (set.begin != nullptr) set.begin(widest, 0);
    kernel(c);
    if (set.end != nullptr) set.end();
    // AMX adds what it sums up from 0 on.
    const bool apart = set.step_lines > 1;
    for (std::int64_t t = 0; t < (values ? kMaxTileTokens : columns); ++t) {
      for (std::int64_t row = t < columns ? blocks * kBlockRows : 0; row < stride; ++row) {
        const auto place = static_cast<std::size_t>(t * stride + row);
        CHECK(same_bits(&out[place], &before[place], 1), "something else is written");
      }
      if (t >= columns) continue;
      for (std::int64_t row = 0; row < blocks * kBlockRows; ++row) {
        const auto place = static_cast<std::size_t>(t * stride + row);
        const float old = values ? before[place] : 0.0f;
        const float sum = expected(w, x, t, row, apart ? 0.0f : old);
        const float wanted = apart && values ? old + sum : sum;
        CHECK(out[place] == wanted, "%s of %s at %s: %d columns, %d lines, %d blocks",
              values ? "values" : "scores", precision_name(set.precision), level_name(set.level),
              columns, static_cast<int>(lines), static_cast<int>(blocks));
      }
    }
  }
};

void check_set(const KernelSet& set, float size, Random& random) {
  const bool pairs = set.precision == Precision::bf16;
  // As attention.cpp has it.
  const FloatMode mode(pairs ? FloatMode::Subnormals::flush : FloatMode::Subnormals::ieee);
  const std::int64_t tile_lines = pairs ? kTileSlots / 2 : kTileSlots;
  for (int t = 1; t <= set.tile_tokens; ++t) {
    const int widest = static_cast<int>(between(random, t, set.tile_tokens));
    const std::int64_t blocks = between(random, 1, 8);
    const std::int64_t key_lines = between(random, 1, pairs ? 64 : 128);
    const Panel side_by_side = {t, 1, t * set.step_lines};
    const Panel token_major = {1, set.step_lines, t * set.step_lines};
    const Case keys = {set, t, key_lines, blocks, set.token_major ? token_major : side_by_side,
                       size};
    keys.check(set.scores[t], false, widest, random);
    const Panel in_rows = {1, tile_lines, set.step_lines};
    const Case values = {set, t, between(random, 1, tile_lines), blocks, in_rows, size};
    values.check(set.values[t], true, widest, random);
  }
}

}  // namespace

int main() {
  Random random(20261125);
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    for (const Level level : levels()) {
      for (int round = 0; round < 24; ++round)
        check_set(kernel_set(precision, level, 1), round % 3 == 0 ? 1e-19f : 1.0f, random);
    }
  }
  std::puts("ok");
}
