// A cache of codes: what it stores, and that attention over it is attention over what it stores.
#include <algorithm>
#include <cmath>

#include "check.h"
#include "coded_head.h"
#include "forerun/modules.h"
#include "forerun/vector_ops.h"
#include "kernels/kernels.h"
#include "numbers.h"

namespace forerun::cpu::test {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Any bytes: kernels of all levels add up the same integers, and round alike.
struct RandomTile {
  std::int64_t groups;
  std::int64_t lines;
  std::vector<std::uint8_t> planes;
  std::vector<ColumnDigits> digits;  // [groups, columns] and what kernels may read behind
  std::vector<ColumnTerms> terms;
  std::vector<std::uint16_t> scales;
  std::vector<float> out;
  std::vector<std::int32_t> sums;
  LinesAhead queue;

  RandomTile(Random& random, int columns)
      : groups(between(random, 1, 3)), lines(between(random, 1, 8)) {
    for (std::int64_t i = 0; i < 2 * 4 * groups * lines * 64; ++i)
      planes.push_back(static_cast<std::uint8_t>(random()));
    for (std::int64_t i = 0; i < groups * columns; ++i) add_column(random);
    digits.resize(digits.size() + kBehindColumns);
    for (const float x : normal(random, groups * kTileSlots)) scales.push_back(float_to_bf16(x));
    out = normal(random, columns * kTileSlots);
    for (std::int64_t i = 0; i < columns * kTileSlots; ++i)
      sums.push_back(static_cast<std::int32_t>(between(random, -100000, 100000)));
  }

  void add_column(Random& random) {
    ColumnDigits column;
    for (int i = 0; i < kDigitsOfColumn; ++i) {
      column.high[i] = static_cast<std::int8_t>(between(random, -127, 127));
      column.low[i] = static_cast<std::int8_t>(between(random, -64, 63));
    }
    digits.push_back(column);
    const auto start = static_cast<std::int32_t>(between(random, -9999999, 9999999));
    terms.push_back({start, normal(random, 1)[0]});
  }

  CodedTile args(int columns) {
    CodedTile c;
    c.queue = &queue;
    c.upper = planes.data();
    c.lower = static_cast<std::ptrdiff_t>(planes.size() / 2);
    c.blocks = 4;
    c.block_bytes = groups * lines * 64;
    c.lines = lines;
    c.groups = groups;
    c.columns = columns;
    c.digits = digits.data();
    c.terms = terms.data();
    c.scales = scales.data();
    c.out = out.data();
    c.out_stride = kTileSlots;
    c.sums = sums.data();
    return c;
  }
};

// The same by the portable kernels, a column at a time.
void run_plain(const CodedTile& c, const CodedKernel& kernel) {
  std::vector<ColumnDigits> digits(at(c.groups));
  std::vector<ColumnTerms> terms(at(c.groups));
  for (std::int64_t t = 0; t < c.columns; ++t) {
    for (std::int64_t g = 0; g < c.groups; ++g) {
      digits[at(g)] = c.digits[g * c.columns + t];
      terms[at(g)] = c.terms[g * c.columns + t];
    }
    CodedTile one = c;
    one.columns = 1;
    one.digits = digits.data();
    one.terms = terms.data();
    one.out += t * c.out_stride;
    one.sums += t * c.out_stride;
    kernel(one);
  }
}

void check_levels(Random& random, int planes, int columns) {
  const CodedSet& plain = portable_coded_set();
  for (const Level level : levels()) {
    const CodedSet& set = coded_set(level);
    if (columns > set.max_columns) continue;
    for (int way = 0; way < 5; ++way) {
      RandomTile a(random, columns);
      RandomTile b = a;
      CodedTile c = a.args(columns);
      CodedTile expected = b.args(columns);
      for (CodedTile* tile : {&c, &expected}) {
        if (way < 4) tile->groups = 1;
        tile->resume = (way & 1) != 0;
        tile->keep = (way & 2) != 0;
      }
      if (set.begin != nullptr) set.begin();
      (way == 4 ? set.scores : set.values)[planes - 1][columns](c);
      if (set.end != nullptr) set.end();
      run_plain(expected, (way == 4 ? plain.scores : plain.values)[planes - 1][1]);
      CHECK(same_bits(a.out.data(), b.out.data(), columns * kTileSlots) && a.sums == b.sums,
            "%s, %d planes, %d columns, way %d", level_name(level), planes, columns, way);
    }
  }
}

KvCache::Shape random_storage(Random& random, Precision precision) {
  KvCache::Shape shape;
  shape.precision = precision;
  shape.layers = 2;
  shape.kv_heads = 2;
  shape.head_dim = 16 * between(random, 1, 8);
  shape.capacity = 200;
  return shape;
}

// What is read is within half a step of what was written.
void check_head(const KvCache& cache, std::vector<float> x, std::vector<float> read) {
  const float steps = cache.shape().precision == Precision::int8 ? 119.0f : 7.0f;
  for (std::int64_t first = 0; first < cache.shape().head_dim; first += cache.group()) {
    float most = 0.0f;
    for (std::int64_t i = first; i < first + cache.group(); ++i)
      most = std::max(most, std::fabs(x[at(i)]));
    for (std::int64_t i = first; i < first + cache.group(); ++i) {
      CHECK(std::fabs(read[at(i)] - x[at(i)]) <= 0.51f * most / steps, "dimension %lld of %s",
            static_cast<long long>(i), precision_name(cache.shape().precision));
    }
  }
}

std::vector<float> turned(std::vector<float> x, std::int64_t group) {
  for (std::size_t i = 0; i < x.size(); i += at(group)) vector_ops().turn(x.data() + i, group);
  return x;
}

void check_storage(Random& random, Precision precision) {
  const KvCache::Shape shape = random_storage(random, precision);
  const std::int64_t d = shape.head_dim;
  KvCache cache(shape);
  std::vector<float> read(at(2 * d));
  std::vector<float> again(at(2 * d));
  // In another order than they lie in, and twice: a slot leaves its neighbours alone.
  std::vector<std::vector<float>> written(130);
  for (std::int64_t i = 0; i < 260; ++i) {
    const std::int64_t slot = i * 37 % 130;
    const auto& x = written[at(slot)] = normal(random, 2 * d);
    cache.write(1, 0, 1, slot, x.data(), x.data() + d);
  }
  for (std::int64_t slot = 0; slot < 130; ++slot) {
    const auto& x = written[at(slot)];
    cache.read(1, 0, 1, slot, read.data(), read.data() + d);
    const auto half = x.begin() + d;
    const auto read_half = read.begin() + d;
    check_head(cache, turned({x.begin(), half}, cache.group()),
               turned({read.begin(), read_half}, cache.group()));
    check_head(cache, {half, x.end()}, {read_half, read.end()});
  }
  for (std::int64_t layer = 0; layer < 2; ++layer) cache.set_length(layer, 0, 130);
  cache.read(1, 0, 1, 127, read.data(), read.data() + d);
  cache.keep(0, 60, {0, 67});
  cache.read(1, 0, 1, 61, again.data(), again.data() + d);
  CHECK(same_bits(read.data(), again.data(), 2 * d), "what was moved");
}

void check_not_a_number(Precision precision) {
  KvCache cache({precision, 1, 1, 1, 32, 4});
  std::vector<float> x(64, 1.0f);
  std::vector<float> read(64);
  x[40] = NAN;
  cache.write(0, 0, 0, 1, x.data(), x.data() + 32);
  cache.read(0, 0, 0, 1, read.data(), read.data() + 32);
  CHECK(std::isnan(read[0]) && read[40] == 0.0f, "a value that is not finite");
}

// One layer of attention, whose output is what attention gives as it is.
struct OneLayer {
  static constexpr std::int64_t kCols = 40;
  LayerSource source;
  std::vector<float> qkv;
  std::vector<float> output;
  std::int64_t width;

  explicit OneLayer(Random& random) {
    source.kv_heads = between(random, 1, 2);
    source.heads = source.kv_heads * between(random, 1, 3);
    source.head_dim = 16 * between(random, 1, 5);
    width = source.heads * source.head_dim;
    const std::int64_t rows = (source.heads + 2 * source.kv_heads) * source.head_dim;
    qkv = normal(random, rows * kCols, 0.3f);
    output.resize(at(width * width));
    for (std::int64_t i = 0; i < width; ++i) output[at(i * width + i)] = 1.0f;
    source.qkv = {rows, kCols, qkv.data(), nullptr};
    source.output = {width, width, output.data(), nullptr};
    source.input_norms.resize(1);
  }

  std::vector<float> run(LayerModule& layer, KvCache& cache, const std::vector<float>& x,
                         ThreadPool& pool) const {
    const auto text = static_cast<std::int64_t>(x.size()) / kCols;
    std::vector<std::int64_t> positions;
    for (std::int64_t i = 0; i < text; ++i) positions.push_back(i);
    std::vector<float> y(at(text * width));
    BatchRows batch;
    batch.cache = &cache;
    batch.rows = {0};
    batch.width = text;
    batch.positions = positions.data();
    batch.end_layer = 1;
    layer.run(batch, {{x.data(), kCols}}, y.data(), pool);
    return y;
  }

  std::vector<double> query(std::int64_t head, const float* x) const {
    std::vector<double> q(at(source.head_dim));
    for (std::int64_t i = 0; i < source.head_dim; ++i) {
      for (std::int64_t k = 0; k < kCols; ++k)
        q[at(i)] += static_cast<double>(qkv[at((head * source.head_dim + i) * kCols + k)]) * x[k];
    }
    return q;
  }
};

// The attention of a query over keys and values [text, d], in double precision.
std::vector<double> attend(const std::vector<double>& query, const std::vector<float>& keys,
                           const std::vector<float>& values) {
  const auto d = static_cast<std::int64_t>(query.size());
  const auto text = static_cast<std::int64_t>(keys.size()) / d;
  std::vector<double> weights(at(text));
  double most = -1e30;
  for (std::int64_t s = 0; s < text; ++s) {
    for (std::int64_t i = 0; i < d; ++i) weights[at(s)] += query[at(i)] * keys[at(s * d + i)];
    weights[at(s)] /= std::sqrt(static_cast<double>(d));
    most = std::max(most, weights[at(s)]);
  }
  double total = 0.0;
  for (double& w : weights) total += w = std::exp(w - most);
  std::vector<double> out(at(d));
  for (std::int64_t s = 0; s < text; ++s) {
    for (std::int64_t i = 0; i < d; ++i)
      out[at(i)] += weights[at(s)] / total * values[at(s * d + i)];
  }
  return out;
}

// Attention over codes is attention over the numbers that they stand for.
void check_attention(Random& random, Precision precision, ThreadPool& pool) {
  const OneLayer one(random);
  LayerModule layer(one.source, {Precision::fp32, 0, best_level()}, pool);
  const std::int64_t d = one.source.head_dim;
  const std::int64_t text = between(random, 1, 150);
  const auto x = normal(random, text * OneLayer::kCols);
  KvCache::Shape shape = layer.cache_shape(1, text);
  shape.precision = precision;
  KvCache cache(shape);
  const auto got = one.run(layer, cache, x, pool);
  std::vector<float> keys(at(text * d));
  std::vector<float> values(at(text * d));
  for (std::int64_t head = 0; head < one.source.heads; ++head) {
    const std::int64_t kv_head = head * one.source.kv_heads / one.source.heads;
    for (std::int64_t s = 0; s < text; ++s)
      cache.read(0, 0, kv_head, s, keys.data() + s * d, values.data() + s * d);
    const auto query = one.query(head, x.data() + (text - 1) * OneLayer::kCols);
    const auto expected = attend(query, keys, values);
    for (std::int64_t i = 0; i < d; ++i) {
      const float y = got[at((text - 1) * one.width + head * d + i)];
      CHECK(std::fabs(y - expected[at(i)]) < 2e-3, "%s: %f instead of %f",
            precision_name(precision), static_cast<double>(y), expected[at(i)]);
    }
  }
}

}  // namespace
}  // namespace forerun::cpu::test

int main() {
  using namespace forerun::cpu;
  using namespace forerun::cpu::test;
  Random random(5);
  ThreadPool pool(2);
  for (int columns = 1; columns <= kMaxCodedColumns; ++columns) {
    for (const int planes : {1, 2}) check_levels(random, planes, columns);
  }
  const Forward forward(pool);
  for (const Precision precision : {Precision::int8, Precision::int4}) {
    for (int i = 0; i < 5; ++i) check_storage(random, precision);
    for (int i = 0; i < 20; ++i) check_attention(random, precision, pool);
    check_not_a_number(precision);
    CHECK_THROWS(std::invalid_argument, KvCache({precision, 1, 1, 1, 24, 4}));
  }
  std::puts("ok");
}
