// Random models, views, trees, batches, chunks and threads, for as long as asked: every token's
// logits must equal those of plain decoding, bit for bit, and chains drafted together those drafted
// alone. Built with the sanitizers, it looks for other faults too.
//
//   fuzz_decoder [SECONDS] [SEED]
#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "check.h"
#include "forerun/decoder.h"
#include "forerun/errors.h"
#include "forerun/sampling.h"
#include "random_chains.h"
#include "random_decoder.h"
#include "random_heads.h"
#include "random_tree.h"

namespace forerun::cpu::test {
namespace {

class Case {
 public:
  Case(Random& random, ThreadPool* (&pools)[3], Level level)
      : random_(random), pools_(pools), shape_(random_shape(random)) {
    decoder_ = random_decoder(shape_, level, random, pool());
    cache_ = random_cache_shape(*decoder_, random);
    // Now and then past the first part of a context (attention.h).
    const bool longer = between(random, 0, 15) == 0;
    const bool chooses = between(random, 0, 7) == 0;
    const std::int64_t length = longer    ? between(random, 480, 560)
                                : chooses ? between(random, 190, 330)
                                          : between(random, 1, 90);
    text_ = random_ids(random, length, shape_.vocab);
    if (coin(random)) view_ = {between(random, 0, 90), between(random, 1, length)};
    // The window holds all nodes of a tree.
    if (chooses) {
      view_ = {between(random, 0, 90), between(random, 40, 100)};
      view_.blocks = between(random, 1, 3);
    }
    view_.coarse = coin(random);
    plain_ = plain(text_);
  }

  // The text in random chunks.
  void chunks() {
    KvCache cache = make_cache(1);
    std::int64_t at = 0;
    const auto length = static_cast<std::int64_t>(text_.size());
    while (at < length) {
      const std::int64_t n = std::min(between(random_, 1, 70), length - at);
      const auto got =
          run(cache, 0, Ids(text_.begin() + at, text_.begin() + at + n), count_from(at, n), pool());
      expect(got, at, "a chunk");
      at += n;
    }
  }

  // A tree behind the text, grown in one or several forwards; then one of its paths is kept.
  void tree() {
    KvCache cache = make_cache(3);
    const std::int64_t row = between(random_, 0, 2);
    const auto length = static_cast<std::int64_t>(text_.size());
    run(cache, row, text_, count_from(0, length), pool());
    const Tree tree = random_tree(random_, shape_.vocab);
    const auto nodes = static_cast<std::int64_t>(tree.ids.size());
    std::vector<float> logits;
    for (std::int64_t first = 0; first < nodes;) {
      const std::int64_t n = std::min(between(random_, 1, 30), nodes - first);
      const auto got = grow(cache, row, tree, first, n);
      logits.insert(logits.end(), got.begin(), got.end());
      first += n;
    }
    for (std::int64_t node = 0; node < nodes; ++node) check_node(tree, node, logits);
    const Ids path = tree.path(between(random_, 0, nodes - 1));
    cache.keep(row, length, path);
    go_on(cache, row, tree, path);
  }

  // The text in three rows at once, each as far as it comes, some with nothing to run.
  void batch() {
    KvCache cache = make_cache(3);
    const auto length = static_cast<std::int64_t>(text_.size());
    std::int64_t at[3] = {0, 0, 0};
    while (at[0] + at[1] + at[2] < 3 * length) {
      std::int64_t counts[3];
      std::int64_t width = 1;
      for (int row = 0; row < 3; ++row) {
        counts[row] = std::min(between(random_, 0, 20), length - at[row]);
        width = std::max(width, counts[row]);
      }
      step(cache, at, counts, width);
      for (int row = 0; row < 3; ++row) at[row] += counts[row];
    }
  }

  // The text in chunks, through the first layers token by token and through the rest at once, which
  // runs on other states before and forgets them; then the head, alone, for more tokens than ran at
  // once.
  void parts() {
    KvCache cache = make_cache(1);
    const auto length = static_cast<std::int64_t>(text_.size());
    const std::int64_t exit = between(random_, 0, shape_.layers - 1);
    std::vector<float> last(static_cast<std::size_t>(length * shape_.hidden));
    for (std::int64_t at = 0; at < length;) {
      const std::int64_t n = std::min(between(random_, 1, 20), length - at);
      std::vector<float> states(static_cast<std::size_t>(n * shape_.hidden));
      for (std::int64_t i = 0; i < n && exit > 0; ++i) {
        run_layers(cache, at + i, 1, {0, exit}, nullptr, states.data() + i * shape_.hidden);
      }
      const float* in = exit > 0 ? states.data() : nullptr;
      const auto wrong = normal(random_, n * shape_.hidden);
      run_layers(cache, at, n, {exit, shape_.layers}, exit > 0 ? wrong.data() : nullptr, nullptr);
      cache.trim(0, at, exit, shape_.layers);
      run_layers(cache, at, n, {exit, shape_.layers}, in, last.data() + at * shape_.hidden);
      at += n;
    }
    expect(head(last, length), 0, "the head");
    CHECK(cache.length(0) == length, "the lengths of layers that ran apart");
    CHECK_THROWS(CacheError, cache.trim(0, 0, 0, shape_.layers + 1));
  }

  // The beginning of the text, copied into another row of a smaller or larger cache over other
  // tokens, goes on as where it was run.
  void copied() {
    KvCache cache = make_cache(1);
    const auto length = static_cast<std::int64_t>(text_.size());
    run(cache, 0, text_, count_from(0, length), pool());
    const std::int64_t n = between(random_, 0, length - 1);
    KvCache::Shape shape = cache_;
    shape.rows = 2;
    shape.capacity = length + between(random_, 0, 2000);
    KvCache other(shape);
    run(other, 1, {0, 0, 0}, count_from(0, 3), pool());
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      std::vector<std::uint8_t> tiles(static_cast<std::size_t>(cache.row_bytes(layer, 0, n)));
      cache.read_row(layer, 0, n, tiles.data());
      other.write_row(layer, 1, n, tiles.data());
    }
    const Ids rest(text_.begin() + n, text_.end());
    expect(run(other, 1, rest, count_from(n, length - n), pool()), n, "a copied row");
    CHECK_THROWS(CacheError, cache.row_bytes(0, 1, 1));
    CHECK_THROWS(CacheError, cache.row_bytes(shape_.layers, 0, 1));
    CHECK_THROWS(CacheError, cache.row_bytes(0, 0, cache.shape().capacity + 1));
  }

  // Behind a text that lost tokens, other ones in each head, a tree reads as its paths alone do.
  void evicted() {
    // Layers with windows of their own are not evicted from.
    for (const LayerShape& layer : shape_.each)
      if (layer.window != 0) return;
    const View view = std::exchange(view_, View{});
    const std::unique_ptr<KvCache> cache(new KvCache(make_cache(1)));
    const auto length = static_cast<std::int64_t>(text_.size());
    run(*cache, 0, text_, count_from(0, length), pool());
    evict(*cache, between(random_, 1, length));
    const Tree tree = random_tree(random_, shape_.vocab);
    const auto nodes = static_cast<std::int64_t>(tree.ids.size());
    const auto logits = grow(*cache, 0, tree, 0, nodes);
    const std::int64_t node = between(random_, 0, nodes - 1);
    const Ids path = tree.path(node);
    const auto alone = cache->copy();
    alone->trim(0, length - cache->dropped(0), 0, shape_.layers);
    const Ids ids = with_path(tree, path), steps(ids.begin() + length, ids.end());
    const auto count = static_cast<std::int64_t>(steps.size());
    const auto wanted = run(*alone, 0, steps, count_from(length, count), *pools_[0]);
    CHECK(same_bits(logits.data() + node * shape_.vocab, wanted.data() + (count - 1) * shape_.vocab,
                    shape_.vocab),
          "a tree behind evicted tokens");
    cache->keep(0, length - cache->dropped(0), path);
    view_ = {1, 1};
    if (cache->dropped(0) > 0)
      CHECK_THROWS(CacheError, run(*cache, 0, {0}, {length + count}, pool()));
    view_ = view;
  }

  // What is refused leaves nothing behind.
  void bad_input() {
    KvCache cache = make_cache(1);
    const auto length = static_cast<std::int64_t>(text_.size());
    CHECK_THROWS(std::invalid_argument, run(cache, 0, {shape_.vocab}, {0}, pool()));
    CHECK_THROWS(CacheError, run(cache, 0, {0}, {shape_.max_context}, pool()));
    CHECK_THROWS(CacheError, run(cache, 1, {0}, {0}, pool()));
    const std::int64_t room = cache.shape().capacity;
    const Ids many(static_cast<std::size_t>(room + 1), 0);
    CHECK_THROWS(CacheError, run(cache, 0, many, count_from(0, room + 1), pool()));
    CHECK_THROWS(CacheError, cache.keep(0, 0, {0}));
    const View view = std::exchange(view_, coin(random_) ? View{-1, 3} : View{3, -1});
    CHECK_THROWS(std::invalid_argument, run(cache, 0, {0}, {0}, pool()));
    view_ = view;
    expect(run(cache, 0, text_, count_from(0, length), pool()), 0, "after bad input");
  }

 private:
  // Has each layer and head keep `count` slots of its own.
  void evict(KvCache& cache, std::int64_t count) {
    const Ids all = count_from(0, cache.length(0));
    Ids slots;
    for (std::int64_t i = 0; i < shape_.layers * shape_.kv_heads; ++i)
      std::sample(all.begin(), all.end(), std::back_inserter(slots), count, random_);
    ThreadPool& threads = pool();
    const Forward forward(threads);
    cache.evict(0, slots.data(), count, threads);
  }

  ThreadPool& pool() { return *pools_[between(random_, 0, 2)]; }
  KvCache make_cache(std::int64_t rows) {
    KvCache::Shape shape = cache_;
    shape.rows = rows;
    shape.capacity = static_cast<std::int64_t>(text_.size()) + 60;
    return KvCache(shape);
  }

  // Logits [tokens, vocab] of the tokens that are appended to one row.
  std::vector<float> run(KvCache& cache, std::int64_t row, const Ids& ids, const Ids& positions,
                         ThreadPool& pool, const std::vector<std::uint8_t>& mask = {},
                         std::int64_t columns = 0) {
    const auto n = static_cast<std::int64_t>(ids.size());
    std::vector<float> logits(static_cast<std::size_t>(n * decoder_->shape().vocab));
    ForwardCall call;
    call.cache = &cache;
    call.rows = {row};
    call.width = n;
    call.token_ids = ids.data();
    call.positions = positions.data();
    call.end_layer = decoder_->shape().layers;
    call.logits = logits.data();
    call.view = view_;
    if (!mask.empty()) {
      call.tree_mask = mask.data();
      call.mask_columns = columns;
    }
    const Forward forward(pool);
    decoder_->forward(call, pool);
    return logits;
  }

  // Tokens [at, at + n) of the text through some layers; the states above them go to `out`.
  void run_layers(KvCache& cache, std::int64_t at, std::int64_t n,
                  std::pair<std::int64_t, std::int64_t> layers, const float* in, float* out) {
    const Ids positions = count_from(at, n);
    ForwardCall call;
    call.cache = &cache;
    call.rows = {0};
    call.width = n;
    call.token_ids = text_.data() + at;
    call.positions = positions.data();
    call.first_layer = layers.first;
    call.end_layer = layers.second;
    call.hidden_in = in;
    if (out != nullptr) call.hidden_out = {{layers.second, out}};
    call.logits_for = LogitsFor::none;
    call.view = view_;
    ThreadPool& threads = pool();
    const Forward forward(threads);
    decoder_->forward(call, threads);
  }

  // Logits of n states, in two calls.
  std::vector<float> head(const std::vector<float>& states, std::int64_t n) {
    std::vector<float> logits(static_cast<std::size_t>(n * shape_.vocab));
    const std::int64_t first = between(random_, 0, n);
    ThreadPool& threads = pool();
    const Forward forward(threads);
    std::vector<float> normed(states.size());
    decoder_->final_norm(states.data(), n, normed.data(), threads);
    decoder_->lm_head(normed.data(), first, logits.data(), threads);
    decoder_->lm_head(normed.data() + first * shape_.hidden, n - first,
                      logits.data() + first * shape_.vocab, threads);
    return logits;
  }

  std::vector<float> plain(const Ids& ids) {
    KvCache cache = make_cache(1);
    std::vector<float> all;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto one = run(cache, 0, {ids[i]}, {static_cast<std::int64_t>(i)}, *pools_[0]);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  void step(KvCache& cache, const std::int64_t (&at)[3], const std::int64_t (&counts)[3],
            std::int64_t width) {
    ForwardCall call;
    call.cache = &cache;
    call.rows = {2, 0, 1};
    call.width = width;
    Ids ids(static_cast<std::size_t>(3 * width), 0);
    Ids positions(static_cast<std::size_t>(3 * width), -1);
    for (std::int64_t row = 0; row < 3; ++row) {
      for (std::int64_t i = 0; i < counts[row]; ++i) {
        const auto slot = static_cast<std::size_t>(row * width + i);
        ids[slot] = text_[static_cast<std::size_t>(at[row] + i)];
        positions[slot] = at[row] + i;
      }
    }
    std::vector<float> logits(static_cast<std::size_t>(3 * width * shape_.vocab));
    call.token_ids = ids.data();
    call.positions = positions.data();
    call.end_layer = shape_.layers;
    call.logits = logits.data();
    call.view = view_;
    ThreadPool& threads = pool();
    const Forward forward(threads);
    decoder_->forward(call, threads);
    for (std::int64_t row = 0; row < 3; ++row) {
      const float* first = logits.data() + row * width * shape_.vocab;
      expect({first, first + counts[row] * shape_.vocab}, at[row], "a row of a batch");
    }
  }

  // Nodes [first, first + n), seen with all slots behind the text.
  std::vector<float> grow(KvCache& cache, std::int64_t row, const Tree& tree, std::int64_t first,
                          std::int64_t n) {
    const std::int64_t columns = first + n;
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(n * columns));
    Ids ids, positions;
    for (std::int64_t i = 0; i < n; ++i) {
      const Ids path = tree.path(first + i);
      for (const std::int64_t seen : path) mask[static_cast<std::size_t>(i * columns + seen)] = 1;
      ids.push_back(tree.ids[static_cast<std::size_t>(first + i)]);
      positions.push_back(static_cast<std::int64_t>(text_.size() + path.size()) - 1);
    }
    return run(cache, row, ids, positions, pool(), mask, columns);
  }

  Ids with_path(const Tree& tree, const Ids& path) const {
    Ids ids = text_;
    for (const std::int64_t node : path) ids.push_back(tree.ids[static_cast<std::size_t>(node)]);
    return ids;
  }

  void check_node(const Tree& tree, std::int64_t node, const std::vector<float>& logits) {
    const auto expected = plain(with_path(tree, tree.path(node)));
    const float* last = expected.data() + static_cast<std::int64_t>(expected.size()) - shape_.vocab;
    CHECK(same_bits(logits.data() + node * shape_.vocab, last, shape_.vocab),
          "node %lld of a tree, %s", static_cast<long long>(node),
          precision_name(shape_.precision));
  }

  void go_on(KvCache& cache, std::int64_t row, const Tree& tree, const Ids& path) {
    Ids ids = with_path(tree, path);
    const auto length = static_cast<std::int64_t>(ids.size());
    ids.push_back(0);
    const auto expected = plain(ids);
    const auto got = run(cache, row, {0}, {length}, pool());
    CHECK(same_bits(got.data(), expected.data() + length * shape_.vocab, shape_.vocab),
          "after keep");
  }

  void expect(const std::vector<float>& got, std::int64_t first, const char* what) {
    CHECK(same_bits(got.data(), plain_.data() + first * shape_.vocab,
                    static_cast<std::int64_t>(got.size())),
          "%s at token %lld, %s", what, static_cast<long long>(first),
          precision_name(shape_.precision));
  }

  Random& random_;
  ThreadPool* (&pools_)[3];
  DecoderShape shape_;
  std::unique_ptr<Decoder> decoder_;
  Ids text_;
  KvCache::Shape cache_;
  View view_;  // of all forwards
  std::vector<float> plain_;
};

}  // namespace
}  // namespace forerun::cpu::test

int main(int count, char** arguments) {
  using namespace forerun::cpu;
  using namespace forerun::cpu::test;
  const double seconds = count > 1 ? std::atof(arguments[1]) : 5.0;
  const std::uint64_t seed = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 7;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  ThreadPool one(1), two(2), three(3);
  ThreadPool* pools[3] = {&one, &two, &three};
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  const auto all = levels();
  int cases = 0;
  for (; Clock::now() < end; ++cases) {
    const Level level = all[static_cast<std::size_t>(cases) % all.size()];
    check_chains(random, pools, level);
    check_head_chains(random, pools, level);
    Case one_case(random, pools, level);
    one_case.chunks();
    one_case.tree();
    one_case.batch();
    one_case.parts();
    one_case.copied();
    one_case.evicted();
    one_case.bad_input();
  }
  std::printf("%d models, ok\n", cases);
}
