// Random trained heads whose chains are drafted side by side on threads, and each alone on one
// thread: the same bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "check.h"
#include "forerun/head_chains.h"
#include "random_chains.h"

namespace forerun::cpu::test {

// A head and what it is made of.
struct RandomHead {
  std::vector<std::unique_ptr<NormModule>> norms;
  std::vector<std::unique_ptr<LinearModule>> linears;
  std::vector<std::unique_ptr<LayerModule>> layers;
  std::vector<float> table;
  std::unique_ptr<HeadChains> chains;
};

inline std::unique_ptr<LinearModule> random_linear(Random& random, std::int64_t rows,
                                                   std::int64_t cols, const Packing& packing,
                                                   ThreadPool& pool) {
  const auto weights = normal(random, rows * cols, 0.3f);
  const std::vector<float> norm = coin(random) ? normal(random, cols) : std::vector<float>();
  return std::make_unique<LinearModule>(LinearSource{rows, cols, weights.data(), nullptr}, packing,
                                        pool, norm, 1e-5f);
}

inline std::unique_ptr<LayerModule> random_layer(Random& random, std::int64_t hidden, int inputs,
                                                 const Packing& packing, ThreadPool& pool) {
  LayerSource source;
  source.kv_heads = between(random, 1, 2);
  source.heads = source.kv_heads * between(random, 1, 3);
  source.head_dim = 2 * between(random, 1, 10);
  source.window = coin(random) ? 0 : between(random, 1, 12);
  const std::int64_t queries = source.heads * source.head_dim;
  const std::int64_t rows = queries + 2 * source.kv_heads * source.head_dim;
  const std::int64_t cols = inputs * hidden, inner = between(random, 1, 60);
  const auto qkv = normal(random, rows * cols, 0.3f), out = normal(random, hidden * queries, 0.3f);
  const auto up = normal(random, 2 * inner * hidden, 0.3f),
             down = normal(random, hidden * inner, 0.3f);
  source.qkv = {rows, cols, qkv.data(), nullptr};
  source.output = {hidden, queries, out.data(), nullptr};
  for (std::int64_t i = 0; i < source.head_dim / 2; ++i) {
    source.inverse_frequencies.push_back(1.0f / static_cast<float>(1 + 3 * i));
  }
  for (int i = 0; i < inputs; ++i) {
    source.input_norms.push_back(coin(random) ? normal(random, hidden) : std::vector<float>());
  }
  source.normed_residual = coin(random);
  source.mlp = MlpSource{normal(random, hidden),
                         Activation::silu,
                         {2 * inner, hidden, up.data(), nullptr},
                         {hidden, inner, down.data(), nullptr}};
  return std::make_unique<LayerModule>(std::move(source), packing, pool);
}

inline RandomHead random_head(Random& random, std::int64_t vocab, Level level, ThreadPool& pool) {
  RandomHead head;
  const Packing packing{any_precision(random), 32 << between(random, 0, 2), level};
  const std::int64_t hidden = between(random, 1, 40), parts = between(random, 1, 3);
  HeadParts made;
  for (std::int64_t i = 0; coin(random) && i < parts; ++i) {
    head.norms.push_back(
        std::make_unique<NormModule>(normal(random, hidden), std::vector<float>(), 1e-5f, level));
  }
  // Norms of all parts, or of none.
  if (static_cast<std::int64_t>(head.norms.size()) < parts) head.norms.clear();
  for (const auto& norm : head.norms) made.state_norms.push_back(norm.get());
  for (std::int64_t i = between(random, 1, 3); i > 0; --i) {
    head.layers.push_back(random_layer(random, hidden, made.layers.empty() ? 2 : 1, packing, pool));
    made.layers.push_back(head.layers.back().get());
  }
  std::set<std::int64_t> ids;
  for (std::int64_t i = between(random, 1, vocab); coin(random) && i > 0; --i)
    ids.insert(between(random, 0, vocab - 1));
  made.token_ids.assign(ids.begin(), ids.end());
  head.linears.push_back(random_linear(random, hidden, parts * hidden, packing, pool));
  const auto rows = ids.empty() ? vocab : static_cast<std::int64_t>(ids.size());
  head.linears.push_back(random_linear(random, rows, hidden, packing, pool));
  made.fuse = head.linears[0].get();
  made.output = head.linears[1].get();
  head.table = normal(random, vocab * hidden);
  made.table = head.table.data();
  made.vocab = vocab;
  head.chains = std::make_unique<HeadChains>(std::move(made));
  return head;
}

// The rows that each chain's tokens are drawn from, in caches of their own.
inline std::vector<std::vector<float>> draft(RandomHead& head, std::vector<DraftChain>& chains,
                                             std::int64_t vocab, ThreadPool& pool) {
  std::vector<std::unique_ptr<KvCache>> caches;
  std::vector<KvCache*> given;
  for (const auto& layer : head.layers) {
    caches.push_back(std::make_unique<KvCache>(layer->cache_shape(4, 32)));
    given.push_back(caches.back().get());
  }
  ScratchPool<float> scratches;
  std::vector<std::vector<float>> probs;
  for (const DraftChain& chain : chains)
    probs.emplace_back(static_cast<std::size_t>(chain.limit * vocab));
  for (std::size_t i = 0; i < chains.size(); ++i) chains[i].probs = probs[i].data();
  const Forward forward(pool);
  head.chains->draft(given, chains, pool, scratches);
  return probs;
}

inline void check_head_chains(Random& random, ThreadPool* (&pools)[3], Level level) {
  const std::int64_t vocab = coin(random) ? between(random, 2, 70) : between(random, 6000, 12000);
  RandomHead head = random_head(random, vocab, level, *pools[2]);
  std::vector<DraftChain> asked;
  std::vector<std::vector<float>> states;
  for (std::int64_t row = between(random, 0, 3); row >= 0; --row) {
    asked.push_back(random_chain(random, row, vocab));
    const auto pending = static_cast<std::int64_t>(asked.back().pending.size());
    states.push_back(normal(random, pending * head.chains->state_size()));
  }
  for (std::size_t i = 0; i < asked.size(); ++i) asked[i].states = states[i].data();
  std::vector<DraftChain> chains = asked;
  const auto together = draft(head, chains, vocab, *pools[between(random, 0, 2)]);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    std::vector<DraftChain> alone = {asked[i]};
    const auto rows = draft(head, alone, vocab, *pools[0]);
    CHECK(alone[0].tokens == chains[i].tokens, "tokens of a head's chain %zu", i);
    const auto drawn = static_cast<std::int64_t>(alone[0].tokens.size());
    CHECK(same_bits(rows[0].data(), together[i].data(), drawn * vocab), "rows of chain %zu", i);
    for (std::int64_t node = 0; node < drawn; ++node) {
      const std::int64_t token = alone[0].tokens[static_cast<std::size_t>(node)];
      CHECK(token >= 0 && token < vocab && rows[0][node * vocab + token] > 0.0f, "token %lld",
            static_cast<long long>(token));
    }
  }
}

}  // namespace forerun::cpu::test
