#include "forerun/draft_chains.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <stdexcept>

#include "chain_batch.h"

namespace forerun::cpu {
namespace {

// Logits that one thread draws from sooner than others join.
constexpr std::int64_t kAlone = 16384;

// The chains that grow, step by step.
class Growing {
 public:
  Growing(ChainStep& step, std::vector<DraftChain>& chains, std::int64_t vocab,
          ScratchPool<float>& scratches)
      : step_(step),
        vocab_(vocab),
        known_(std::min(vocab, step.columns())),
        scratches_(scratches),
        logits_(chains.size() * static_cast<std::size_t>(step.columns())) {
    for (DraftChain& chain : chains) {
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
    step_.run(chains_, tokens_, logits_.data(), pool);
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
        const float* logits = logits_.data() + i * step_.columns();
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
    if (chain.least > 0.0) {
      chain.expected *= top_share(logits, scratch);
      if (chain.expected < chain.least) return false;
    }
    float* probs = chain.probs == nullptr ? nullptr : chain.probs + node * vocab_;
    const std::int64_t token = step_.token_ids().empty()
                                   ? draw_of_all(chain.draw, node, logits, probs, scratch)
                                   : draw_of_some(chain.draw, node, logits, probs, scratch);
    if (token < 0) return false;
    chain.tokens.push_back(token);
    const bool stop = std::find(chain.stops.begin(), chain.stops.end(), token) != chain.stops.end();
    return !stop && node + 1 < chain.limit;
  }

  // The probability of the most probable token before any warping; of broken rows, which are
  // refused where they are drawn from, 1.
  double top_share(const float* logits, RowScratch<float>& scratch) const {
    std::vector<float>& row = scratch.residual;
    row.resize(static_cast<std::size_t>(known_));
    if (warp_row(logits, known_, Warp{}, row.data(), scratch) != RowState::ok) return 1.0;
    return static_cast<double>(row[static_cast<std::size_t>(argmax(row.data(), known_))]);
  }

  // Where logits are those of the target's first tokens.
  std::int64_t draw_of_all(const DraftDraw& how, std::int64_t node, const float* logits,
                           float* probs, RowScratch<float>& scratch) const {
    const std::int64_t token = draw_drafted(logits, known_, how, node, probs, scratch);
    if (token >= 0 && probs != nullptr) std::fill(probs + known_, probs + vocab_, 0.0f);
    return token;
  }

  // Where they are those of some tokens. Drawn among these, and over the whole vocabulary only
  // where the noise of all its tokens is shared.
  std::int64_t draw_of_some(const DraftDraw& how, std::int64_t node, const float* logits,
                            float* probs, RowScratch<float>& scratch) const {
    const std::vector<std::int64_t>& ids = step_.token_ids();
    std::vector<float>& row = scratch.residual;
    if (how.drawing == Drawing::coupled && !how.warp.greedy()) {
      row.assign(static_cast<std::size_t>(vocab_), -INFINITY);
      for (std::size_t i = 0; i < ids.size(); ++i)
        row[static_cast<std::size_t>(ids[i])] = logits[i];
      return draw_drafted(row.data(), vocab_, how, node, probs, scratch);
    }
    if (probs != nullptr) row.resize(ids.size());
    const std::int64_t column =
        draw_drafted(logits, known_, how, node, probs == nullptr ? nullptr : row.data(), scratch);
    if (column < 0) return column;
    if (probs != nullptr) {
      std::fill(probs, probs + vocab_, 0.0f);
      for (std::size_t i = 0; i < ids.size(); ++i) probs[ids[i]] = row[i];
    }
    return ids[static_cast<std::size_t>(column)];
  }

  ChainStep& step_;
  std::int64_t vocab_;
  std::int64_t known_;
  ScratchPool<float>& scratches_;
  std::vector<DraftChain*> chains_;
  std::vector<std::vector<std::int64_t>> tokens_;  // of each chain, to be run next
  std::vector<float> logits_;
};

// Runs a decoder on the newest tokens of chains.
class DecoderStep final : public ChainStep {
 public:
  DecoderStep(Decoder& decoder, KvCache& cache, const View& view,
              const std::vector<DraftChain>& chains)
      : decoder_(decoder), cache_(cache), view_(view) {
    for (const DraftChain& chain : chains) own_heads_ = own_heads_ || chain.head != nullptr;
  }

  std::int64_t columns() const override { return decoder_.shape().vocab; }

  void run(const std::vector<DraftChain*>& chains,
           const std::vector<std::vector<std::int64_t>>& tokens, float* logits,
           ThreadPool& pool) override {
    batch_.gather(chains, tokens, cache_);
    ForwardCall call;
    static_cast<BatchRows&>(call) = batch_.rows(cache_);
    call.token_ids = batch_.token_ids();
    call.end_layer = decoder_.shape().layers;
    call.view = view_;
    if (own_heads_) {
      run_heads(call, chains, tokens, logits, pool);
      return;
    }
    call.logits_for = LogitsFor::last;
    call.logits = logits;
    decoder_.forward(call, pool);
  }

 private:
  // The forward without its head, then each chain's.
  void run_heads(ForwardCall& call, const std::vector<DraftChain*>& chains,
                 const std::vector<std::vector<std::int64_t>>& tokens, float* logits,
                 ThreadPool& pool) {
    const std::int64_t hidden = decoder_.shape().hidden;
    const auto count = static_cast<std::int64_t>(chains.size());
    hidden_.resize(static_cast<std::size_t>(count * call.width * hidden));
    normed_.resize(static_cast<std::size_t>(count * hidden));
    call.logits_for = LogitsFor::none;
    call.hidden_out.emplace_back(call.end_layer, hidden_.data());
    decoder_.forward(call, pool);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto newest = static_cast<std::int64_t>(tokens[static_cast<std::size_t>(i)].size()) - 1;
      decoder_.final_norm(hidden_.data() + (i * call.width + newest) * hidden, 1,
                          normed_.data() + i * hidden, pool);
    }
    std::vector<DraftHead*> heads;
    for (const DraftChain* chain : chains) heads.push_back(chain->head);
    if (std::find(heads.begin(), heads.end(), nullptr) == heads.end()) {
      DraftHead::run(heads, normed_.data(), logits, pool);
      return;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const float* normed = normed_.data() + i * hidden;
      float* own = logits + i * decoder_.shape().vocab;
      DraftHead* head = heads[static_cast<std::size_t>(i)];
      if (head != nullptr) DraftHead::run({head}, normed, own, pool);
      else decoder_.lm_head(normed, 1, own, pool);
    }
  }

  Decoder& decoder_;
  KvCache& cache_;
  View view_;
  ChainBatch batch_;
  bool own_heads_ = false;
  std::vector<float> hidden_;
  std::vector<float> normed_;
};

}  // namespace

const std::vector<std::int64_t>& ChainStep::token_ids() const {
  static const std::vector<std::int64_t> none;
  return none;
}

void grow_chains(ChainStep& step, std::vector<DraftChain>& chains, std::int64_t vocab,
                 ThreadPool& pool, ScratchPool<float>& scratches) {
  Growing growing(step, chains, vocab, scratches);
  while (growing.any()) growing.step(pool);
}

void draft_chains(Decoder& decoder, KvCache& cache, std::vector<DraftChain>& chains,
                  std::int64_t vocab, const View& view, ThreadPool& pool,
                  ScratchPool<float>& scratches) {
  DecoderStep step(decoder, cache, view, chains);
  grow_chains(step, chains, vocab, pool, scratches);
}

}  // namespace forerun::cpu
