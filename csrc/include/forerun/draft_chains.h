// Whole chains of draft steps: run the drafter, draw a token, run it on that, and so on.
#pragma once

#include <cstdint>
#include <vector>

#include "forerun/decoder.h"
#include "forerun/draft_head.h"
#include "forerun/sampling.h"

namespace forerun::cpu {

struct DraftChain {
  std::int64_t row = 0;               // of the cache
  std::vector<std::int64_t> pending;  // tokens of the text that the row lacks, at least the newest
  std::int64_t limit = 1;             // tokens to draft at most
  std::vector<std::int64_t> stops;    // nothing is drafted after these
  DraftDraw draw;
  float* probs = nullptr;  // [limit, vocab], the rows drawn from; null: not wanted
  // Ends the chain where a token is expected to be reached and accepted with less than this
  // probability, by the shares of the most probable tokens before any warping; 0: nowhere.
  double least = 0.0;
  DraftHead* head = nullptr;      // of the decoder, in place of its own; of no other chain
  const float* states = nullptr;  // of the target, one for each pending token, for a trained head

  std::vector<std::int64_t> tokens;  // what was drafted
  double expected = 1.0;             // that all of it is accepted, where that is asked
};

// What chains are grown with.
class ChainStep {
 public:
  virtual ~ChainStep() = default;

  // Logits of a chain.
  virtual std::int64_t columns() const = 0;
  // The target's token of each logit, ascending; empty where that is its index.
  virtual const std::vector<std::int64_t>& token_ids() const;

  // Appends `tokens[i]` to the row of chain i; logits [chains, columns] after the last of each. The
  // first call runs the pending tokens, each one after it the token that was drawn.
  virtual void run(const std::vector<DraftChain*>& chains,
                   const std::vector<std::vector<std::int64_t>>& tokens, float* logits,
                   ThreadPool& pool) = 0;
};

// Grows all chains side by side. `vocab` is the target's: tokens without a logit have no
// probability. Within one Forward of the pool. Throws std::domain_error for logits that are not
// numbers, and what the step throws.
void grow_chains(ChainStep& step, std::vector<DraftChain>& chains, std::int64_t vocab,
                 ThreadPool& pool, ScratchPool<float>& scratches);

// Drafts all chains with a decoder, one forward for each step. The draft's own logits beyond
// `vocab` are ignored. Every token reads no more than the view. Throws what Decoder::forward
// throws, and what grow_chains throws.
void draft_chains(Decoder& decoder, KvCache& cache, std::vector<DraftChain>& chains,
                  std::int64_t vocab, const View& view, ThreadPool& pool,
                  ScratchPool<float>& scratches);

}  // namespace forerun::cpu
