// Whole chains of draft steps: run the draft model, draw a token, run it on that, and so on.
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
  float* probs = nullptr;     // [limit, vocab], the rows drawn from; null: not wanted
  DraftHead* head = nullptr;  // of the decoder, in place of its own; of no other chain

  std::vector<std::int64_t> tokens;  // what was drafted
};

// Drafts all chains side by side, one forward for each step. `vocab` is the target's: the draft's
// own logits beyond it are ignored, and tokens that the draft lacks have no probability. Every
// token reads no more than the view. Within one Forward of the pool. Throws what Decoder::forward
// throws, std::domain_error for logits that are not numbers.
void draft_chains(Decoder& decoder, KvCache& cache, std::vector<DraftChain>& chains,
                  std::int64_t vocab, const View& view, ThreadPool& pool,
                  ScratchPool<float>& scratches);

}  // namespace forerun::cpu
