#include "forerun/draft_chains.h"

#include <algorithm>
#include <stdexcept>

namespace forerun::cpu {
namespace {

// One forward for the chains that grow.
class Step {
 public:
  Step(Decoder& decoder, KvCache& cache, std::int64_t chains)
      : decoder_(decoder),
        cache_(cache),
        logits_(static_cast<std::size_t>(chains * decoder.shape().vocab)) {}

  // Appends `tokens[i]` to the row of `growing[i]`; the logits after the last of them.
  const float* run(const std::vector<DraftChain*>& growing,
                   const std::vector<std::vector<std::int64_t>>& tokens, ThreadPool& pool) {
    ForwardCall call;
    call.cache = &cache_;
    for (const auto& some : tokens) {
      call.width = std::max(call.width, static_cast<std::int64_t>(some.size()));
    }
    ids_.clear();
    positions_.clear();
    for (std::size_t i = 0; i < growing.size(); ++i) {
      call.rows.push_back(growing[i]->row);
      cache_.check_row(growing[i]->row);
      const std::int64_t start = cache_.length(growing[i]->row);
      for (std::int64_t j = 0; j < call.width; ++j) {
        const bool there = j < static_cast<std::int64_t>(tokens[i].size());
        ids_.push_back(there ? tokens[i][static_cast<std::size_t>(j)] : 0);
        positions_.push_back(there ? start + j : -1);
      }
    }
    call.token_ids = ids_.data();
    call.positions = positions_.data();
    call.end_layer = decoder_.shape().layers;
    call.logits_for = LogitsFor::last;
    call.logits = logits_.data();
    decoder_.forward(call, pool);
    return logits_.data();
  }

 private:
  Decoder& decoder_;
  KvCache& cache_;
  std::vector<float> logits_;
  std::vector<std::int64_t> ids_;
  std::vector<std::int64_t> positions_;
};

// Draws the chain's next token; whether it may grow further.
bool grow(DraftChain& chain, const float* logits, std::int64_t known, std::int64_t vocab) {
  const auto node = static_cast<std::int64_t>(chain.tokens.size());
  float* probs = chain.probs == nullptr ? nullptr : chain.probs + node * vocab;
  const std::int64_t token = draw_drafted(logits, known, chain.draw, node, probs);
  if (token < 0) return false;
  if (probs != nullptr) std::fill(probs + known, probs + vocab, 0.0f);
  chain.tokens.push_back(token);
  const bool stop = std::find(chain.stops.begin(), chain.stops.end(), token) != chain.stops.end();
  return !stop && node + 1 < chain.limit;
}

}  // namespace

void draft_chains(Decoder& decoder, KvCache& cache, std::vector<DraftChain>& chains, std::int64_t vocab,
                  ThreadPool& pool) {
  const std::int64_t known = std::min(vocab, decoder.shape().vocab);
  std::vector<DraftChain*> growing;
  std::vector<std::vector<std::int64_t>> tokens;
  for (DraftChain& chain : chains) {
    if (chain.pending.empty() || chain.limit < 1 || vocab < 1) {
      throw std::invalid_argument("a chain needs a token to start from, and room for one");
    }
    growing.push_back(&chain);
    tokens.push_back(chain.pending);
  }
  Step step(decoder, cache, static_cast<std::int64_t>(chains.size()));
  while (!growing.empty()) {
    const float* logits = step.run(growing, tokens, pool);
    std::vector<DraftChain*> still;
    tokens.clear();
    for (std::size_t i = 0; i < growing.size(); ++i) {
      const float* row = logits + static_cast<std::int64_t>(i) * decoder.shape().vocab;
      if (!grow(*growing[i], row, known, vocab)) continue;
      still.push_back(growing[i]);
      tokens.push_back({growing[i]->tokens.back()});
    }
    growing = std::move(still);
  }
}

}  // namespace forerun::cpu
