// The output head for a part of the vocabulary: its first tokens, which in tokenizers that merge
// pairs are the most frequent, and those of one text, which repeats itself (as FR-Spec,
// arXiv 2502.14856, where the part is fixed). Drafts need no more; reading a head takes long.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "forerun/buffer.h"
#include "forerun/decoder.h"
#include "forerun/packed_matrix.h"
#include "forerun/thread_pool.h"

namespace forerun::cpu {

class DraftHead {
 public:
  // Knows the first tokens of the decoder, which must outlive it. Throws std::invalid_argument for
  // less than one.
  DraftHead(Decoder& decoder, std::int64_t first);

  // Makes more tokens known. Throws std::invalid_argument for ids that are not tokens, and then
  // adds nothing; std::bad_alloc.
  void add(const std::vector<std::int64_t>& tokens);

  // Held while a forward uses the head.
  std::recursive_mutex& mutex() const { return mutex_; }

  // How many tokens are known.
  std::int64_t size() const { return first_ + static_cast<std::int64_t>(added_.size()); }

  // Logits [heads, vocab] of hidden states after the final norm, one for each of some heads of one
  // decoder: those of Decoder::lm_head bit for bit, -inf for tokens that a head does not know. Rows
  // that all know from the beginning are read once. Within one Forward of the pool.
  static void run(const std::vector<DraftHead*>& heads, const float* normed, float* logits,
                  ThreadPool& pool);

 private:
  void run_added(const float* normed, float* logits, ThreadPool& pool);
  void reserve(std::int64_t rows);

  mutable std::recursive_mutex mutex_;
  Decoder& decoder_;
  std::int64_t first_;
  std::vector<std::int64_t> added_;  // in the order of their rows
  std::vector<bool> known_;          // by token
  Buffer memory_;
  PackedMatrix rows_;  // as many as there is room for
  std::vector<float> logits_;
};

}  // namespace forerun::cpu
