// Chains of a trained head (EAGLE-3, arXiv 2503.01840): layers that read a state of the target, or
// what they made of the token before, beside the embedding of the token after it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "forerun/decoder.h"
#include "forerun/draft_chains.h"
#include "forerun/modules.h"

namespace forerun::cpu {

// What a head is made of; all of it outlives the head.
struct HeadParts {
  // Of equal parts of a state, side by side, in order; empty: none.
  std::vector<const NormModule*> state_norms;
  LinearModule* fuse = nullptr;  // of a state
  // The first reads an embedding and a fused state, each other what the one before it gives.
  std::vector<LayerModule*> layers;
  const NormModule* norm = nullptr;  // of what the last layer gives; null: none
  LinearModule* output = nullptr;    // logits
  // The target's token of each logit, ascending; empty: its index.
  std::vector<std::int64_t> token_ids;
  // Embeddings: the target's, or those of a table [vocab, hidden].
  const Decoder* target = nullptr;
  const float* table = nullptr;
  std::int64_t vocab = 0;  // of the target
};

class HeadChains {
 public:
  // Throws std::invalid_argument for parts that do not fit each other.
  explicit HeadChains(HeadParts parts);
  ~HeadChains();
  HeadChains(const HeadChains&) = delete;
  HeadChains& operator=(const HeadChains&) = delete;

  // Of a state of the target.
  std::int64_t state_size() const { return parts_.fuse->cols(); }
  std::int64_t vocab() const { return parts_.vocab; }

  // Drafts all chains with `states`, one call for each step. Slot i of a row belongs to state i and
  // token i + 1 of its text. After an error the caches, one a layer, may hold more of a row in one
  // layer than in another. Within one Forward of the pool. Throws what LayerModule::run and
  // grow_chains throw, std::invalid_argument for ids outside the vocabulary.
  void draft(const std::vector<KvCache*>& caches, std::vector<DraftChain>& chains, ThreadPool& pool,
             ScratchPool<float>& scratches);

 private:
  class Step;

  HeadParts parts_;
  std::unique_ptr<Step> step_;
};

}  // namespace forerun::cpu
