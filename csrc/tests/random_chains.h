// Random chains, drafted side by side on threads, and each alone on one thread: the same bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "check.h"
#include "forerun/draft_chains.h"
#include "random_decoder.h"

namespace forerun::cpu::test {

inline DraftChain random_chain(Random& random, std::int64_t row, std::int64_t vocab) {
  DraftChain chain;
  chain.row = row;
  for (std::int64_t i = between(random, 1, 12); i > 0; --i)
    chain.pending.push_back(between(random, 0, vocab - 1));
  chain.limit = between(random, 1, 6);
  if (coin(random)) chain.stops = {between(random, 0, vocab - 1), 0};
  chain.draw.drawing = static_cast<Drawing>(between(random, 0, 2));
  const double temperatures[] = {0.0, 0.3, 1.0, 2.5};
  chain.draw.warp.temperature = temperatures[between(random, 0, 3)];
  if (coin(random)) chain.draw.warp.top_k = between(random, 1, vocab);
  if (coin(random)) chain.draw.warp.top_p = static_cast<double>(between(random, 1, 99)) / 100.0;
  if (coin(random)) chain.draw.warp.min_p = static_cast<double>(between(random, 0, 30)) / 100.0;
  chain.draw.seed = random();
  chain.draw.committed = between(random, 1, 100);
  return chain;
}

// Heads for parts of the vocabulary: of some chains, or of all the same.
inline std::vector<std::unique_ptr<DraftHead>> random_heads(Decoder& decoder, Random& random,
                                                            std::vector<DraftChain>& chains) {
  const std::int64_t vocab = decoder.shape().vocab;
  std::vector<std::unique_ptr<DraftHead>> heads;
  const bool alike = coin(random);
  const std::int64_t first = between(random, 1, vocab + 2);
  for (DraftChain& chain : chains) {
    if (!alike && coin(random)) continue;
    heads.push_back(
        std::make_unique<DraftHead>(decoder, alike ? first : between(random, 1, vocab + 2)));
    heads.back()->add(chain.pending);
    chain.head = heads.back().get();
  }
  return heads;
}

// A head for a part of the vocabulary has the whole one's logits, bit for bit, of what it knows.
inline void check_head(Decoder& decoder, Random& random, ThreadPool& pool) {
  const std::int64_t vocab = decoder.shape().vocab;
  std::vector<bool> known(static_cast<std::size_t>(vocab));
  const std::int64_t first = between(random, 1, vocab + 2);
  std::fill_n(known.begin(), std::min(first, vocab), true);
  DraftHead head(decoder, first);
  // Often more than there is room for at first.
  for (std::int64_t times = between(random, 0, 3); times > 0; --times) {
    std::vector<std::int64_t> tokens;
    for (std::int64_t i = between(random, 0, 700); i > 0; --i)
      tokens.push_back(between(random, 0, vocab - 1));
    head.add(tokens);
    for (const std::int64_t token : tokens) known[static_cast<std::size_t>(token)] = true;
  }
  const auto normed = normal(random, decoder.shape().hidden);
  std::vector<float> whole(static_cast<std::size_t>(vocab));
  std::vector<float> part(whole.size(), 7.0f);
  const Forward forward(pool);
  decoder.lm_head(normed.data(), 1, whole.data(), pool);
  DraftHead::run({&head}, normed.data(), part.data(), pool);
  CHECK(head.size() == std::count(known.begin(), known.end(), true), "%lld tokens",
        static_cast<long long>(head.size()));
  for (std::size_t token = 0; token < known.size(); ++token) {
    const float expected = known[token] ? whole[token] : -INFINITY;
    CHECK(same_bits(&part[token], &expected, 1), "token %zu: %g, not %g", token, part[token],
          expected);
  }
}

// Drafts chains in a cache of their own; the rows that each was drawn from.
inline std::vector<std::vector<float>> draft(Decoder& decoder, std::vector<DraftChain>& chains,
                                             std::int64_t vocab, const View& view,
                                             ThreadPool& pool) {
  KvCache cache(decoder.cache_shape(4, 32));
  ScratchPool<float> scratches;
  std::vector<std::vector<float>> probs;
  for (const DraftChain& chain : chains)
    probs.emplace_back(static_cast<std::size_t>(chain.limit * vocab));
  for (std::size_t i = 0; i < chains.size(); ++i) chains[i].probs = probs[i].data();
  const Forward forward(pool);
  draft_chains(decoder, cache, chains, vocab, view, pool, scratches);
  return probs;
}

// Half of the vocabularies are so large that threads share the drawing.
inline void check_chains(Random& random, ThreadPool* (&pools)[3], Level level) {
  DecoderShape shape = random_shape(random);
  if (coin(random)) {
    shape.vocab = between(random, 6000, 12000);
    shape.hidden = between(random, 1, 24);
    shape.precisions.clear();
  }
  const auto decoder = random_decoder(shape, level, random, *pools[2]);
  const std::int64_t vocab = shape.vocab + between(random, -2, 5);
  std::vector<DraftChain> chains;
  for (std::int64_t row = between(random, 0, 3); row >= 0; --row)
    chains.push_back(random_chain(random, row, shape.vocab));
  check_head(*decoder, random, *pools[between(random, 0, 2)]);
  const auto heads = random_heads(*decoder, random, chains);
  const std::vector<DraftChain> asked = chains;
  View view;
  if (coin(random)) view = {between(random, 0, 4), between(random, 1, 9)};
  const auto together = draft(*decoder, chains, vocab, view, *pools[between(random, 0, 2)]);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    std::vector<DraftChain> alone = {asked[i]};
    const auto rows = draft(*decoder, alone, vocab, view, *pools[0]);
    CHECK(alone[0].tokens == chains[i].tokens, "tokens of chain %zu", i);
    const auto drawn = static_cast<std::int64_t>(alone[0].tokens.size());
    CHECK(drawn >= 1 && drawn <= asked[i].limit, "%lld tokens", static_cast<long long>(drawn));
    CHECK(same_bits(rows[0].data(), together[i].data(), drawn * vocab), "rows of chain %zu", i);
    for (std::int64_t node = 0; node < drawn; ++node) {
      const std::int64_t token = alone[0].tokens[static_cast<std::size_t>(node)];
      CHECK(token >= 0 && token < vocab && rows[0][node * vocab + token] > 0.0f, "token %lld",
            static_cast<long long>(token));
    }
  }
}

}  // namespace forerun::cpu::test
