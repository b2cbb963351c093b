#include "forerun/draft_chains.h"

#include <algorithm>
#include <exception>
#include <stdexcept>

namespace forerun::cpu {
namespace {

// Logits that one thread draws from sooner than others join.
constexpr std::int64_t kAlone = 16384;

// The chains that grow, step by step.
class Growing {
 public:
  Growing(Decoder& decoder, KvCache& cache, std::vector<DraftChain>& chains, std::int64_t vocab,
          const View& view, ScratchPool<float>& scratches)
      : decoder_(decoder),
        cache_(cache),
        vocab_(vocab),
        known_(std::min(vocab, decoder.shape().vocab)),
        view_(view),
        scratches_(scratches),
        logits_(chains.size() * static_cast<std::size_t>(decoder.shape().vocab)) {
    for (DraftChain& chain : chains) {
      own_heads_ = own_heads_ || chain.head != nullptr;
      if (chain.pending.empty() || chain.limit < 1 || vocab < 1) {
        throw std::invalid_argument("a chain needs a token to start from, and room for one");
      }
      chains_.push_back(&chain);
      tokens_.push_back(chain.pending);
    }
  }

  bool any() const { return !chains_.empty(); }

  // Runs the newest tokens of all chains and draws the ones that follow.
  void step(ThreadPool& pool) {
    run(pool);
    const std::vector<char> goes_on = draw_all(pool);
    std::vector<DraftChain*> chains;
    tokens_.clear();
    for (std::size_t i = 0; i < chains_.size(); ++i) {
      if (goes_on[i] == 0) continue;
      chains.push_back(chains_[i]);
      tokens_.push_back({chains_[i]->tokens.back()});
    }
    chains_ = std::move(chains);
  }

 private:
  // Appends `tokens_[i]` to the row of chain i; its logits are those after the last of them.
  void run(ThreadPool& pool) {
    ForwardCall call;
    call.cache = &cache_;
    for (const auto& some : tokens_) {
      call.width = std::max(call.width, static_cast<std::int64_t>(some.size()));
    }
    ids_.clear();
    positions_.clear();
    for (std::size_t i = 0; i < chains_.size(); ++i) {
      const std::int64_t row = chains_[i]->row;
      call.rows.push_back(row);
      cache_.check_row(row);
      const std::int64_t start = cache_.length(row);
      for (std::int64_t j = 0; j < call.width; ++j) {
        const bool there = j < static_cast<std::int64_t>(tokens_[i].size());
        ids_.push_back(there ? tokens_[i][static_cast<std::size_t>(j)] : 0);
        positions_.push_back(there ? start + j : -1);
      }
    }
    call.token_ids = ids_.data();
    call.positions = positions_.data();
    call.end_layer = decoder_.shape().layers;
    call.view = view_;
    if (own_heads_) {
      run_heads(call, pool);
      return;
    }
    call.logits_for = LogitsFor::last;
    call.logits = logits_.data();
    decoder_.forward(call, pool);
  }

  // The forward without its head, then each chain's.
  void run_heads(ForwardCall& call, ThreadPool& pool) {
    const std::int64_t hidden = decoder_.shape().hidden;
    const auto count = static_cast<std::int64_t>(chains_.size());
    hidden_.resize(static_cast<std::size_t>(count * call.width * hidden));
    normed_.resize(static_cast<std::size_t>(hidden));
    call.logits_for = LogitsFor::none;
    call.hidden_out.emplace_back(call.end_layer, hidden_.data());
    decoder_.forward(call, pool);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto chain = static_cast<std::size_t>(i);
      const auto newest = static_cast<std::int64_t>(tokens_[chain].size()) - 1;
      decoder_.final_norm(hidden_.data() + (i * call.width + newest) * hidden, 1, normed_.data(),
                          pool);
      float* logits = logits_.data() + i * decoder_.shape().vocab;
      DraftHead* head = chains_[chain]->head;
      if (head != nullptr) {
        head->run(normed_.data(), logits, pool);
      } else {
        decoder_.lm_head(normed_.data(), 1, logits, pool);
      }
    }
  }

  // Draws the next token of each chain; which of them may grow further.
  std::vector<char> draw_all(ThreadPool& pool) {
    std::vector<char> goes_on(chains_.size());
    std::vector<std::exception_ptr> errors(chains_.size());
    const auto count = static_cast<std::int64_t>(chains_.size());
    const std::int64_t grain = count * known_ <= kAlone ? count : 1;
    pool.for_ranges(count, grain, [&](const Range& range) {
      const ScratchPool<float>::Lease scratch(scratches_);
      for (std::int64_t i = range.begin; i < range.end; ++i) {
        const auto chain = static_cast<std::size_t>(i);
        const float* logits = logits_.data() + i * decoder_.shape().vocab;
        try {
          goes_on[chain] = draw(*chains_[chain], logits, *scratch) ? 1 : 0;
        } catch (...) {
          errors[chain] = std::current_exception();
        }
      }
    });
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
    return goes_on;
  }

  // Draws the chain's next token; whether it may grow further.
  bool draw(DraftChain& chain, const float* logits, RowScratch<float>& scratch) const {
    const auto node = static_cast<std::int64_t>(chain.tokens.size());
    float* probs = chain.probs == nullptr ? nullptr : chain.probs + node * vocab_;
    const std::int64_t token = draw_drafted(logits, known_, chain.draw, node, probs, scratch);
    if (token < 0) return false;
    if (probs != nullptr) std::fill(probs + known_, probs + vocab_, 0.0f);
    chain.tokens.push_back(token);
    const bool stop = std::find(chain.stops.begin(), chain.stops.end(), token) != chain.stops.end();
    return !stop && node + 1 < chain.limit;
  }

  Decoder& decoder_;
  KvCache& cache_;
  std::int64_t vocab_;
  std::int64_t known_;
  View view_;
  ScratchPool<float>& scratches_;
  std::vector<DraftChain*> chains_;
  std::vector<std::vector<std::int64_t>> tokens_;  // of each chain, to be run next
  bool own_heads_ = false;
  std::vector<float> logits_;
  std::vector<float> hidden_;
  std::vector<float> normed_;
  std::vector<std::int64_t> ids_;
  std::vector<std::int64_t> positions_;
};

}  // namespace

void draft_chains(Decoder& decoder, KvCache& cache, std::vector<DraftChain>& chains,
                  std::int64_t vocab, const View& view, ThreadPool& pool,
                  ScratchPool<float>& scratches) {
  Growing growing(decoder, cache, chains, vocab, view, scratches);
  while (growing.any()) growing.step(pool);
}

}  // namespace forerun::cpu
