#include "forerun/head_chains.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "chain_batch.h"
#include "floats.h"

namespace forerun::cpu {

using Lists = std::vector<std::vector<std::int64_t>>;

namespace {

void copy(const float* from, std::int64_t count, float* to) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
}

void fit(bool fits, const char* what) {
  if (!fits) throw std::invalid_argument(what);
}

}  // namespace

// Runs a head on the newest tokens of chains; it keeps its memory from draft to draft.
class HeadChains::Step final : public ChainStep {
 public:
  explicit Step(const HeadParts& parts) : parts_(parts), hidden_(parts.fuse->rows()) {}

  void begin(const std::vector<KvCache*>& caches) {
    caches_ = caches;
    carriers_.clear();
  }

  std::int64_t columns() const override { return parts_.output->rows(); }
  const std::vector<std::int64_t>& token_ids() const override { return parts_.token_ids; }

  void run(const std::vector<DraftChain*>& chains, const Lists& tokens, float* logits,
           ThreadPool& pool) override {
    batch_.gather(chains, tokens, *caches_.front());
    const auto count = static_cast<std::int64_t>(chains.size());
    read_states(chains, tokens, pool);
    embed(tokens);
    const float* out = run_layers(count, pool);
    // The newest token of each chain is what goes on.
    newest_.reserve(count * hidden_);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto last = static_cast<std::int64_t>(tokens[static_cast<std::size_t>(i)].size()) - 1;
      copy(out + (i * batch_.width() + last) * hidden_, hidden_, newest_.data() + i * hidden_);
    }
    if (parts_.norm != nullptr) parts_.norm->run(newest_.data(), count, newest_.data(), pool);
    carriers_ = chains;
    parts_.output->run(newest_.data(), count, logits, pool);
  }

 private:
  // In `beside_`: of pending tokens the target's states, fused; of drafted ones what was made of
  // the token before.
  void read_states(const std::vector<DraftChain*>& chains, const Lists& tokens, ThreadPool& pool) {
    const auto count = static_cast<std::int64_t>(chains.size());
    beside_.reserve(count * batch_.width() * hidden_);
    if (!carriers_.empty()) {
      auto carrier = carriers_.begin();
      for (std::int64_t i = 0; i < count; ++i) {
        // Chains keep their order, and some have ended.
        carrier = std::find(carrier, carriers_.end(), chains[static_cast<std::size_t>(i)]);
        copy(newest_.data() + (carrier - carriers_.begin()) * hidden_, hidden_,
             beside_.data() + i * hidden_);
      }
      return;
    }
    std::int64_t total = 0;
    for (const auto& some : tokens) total += static_cast<std::int64_t>(some.size());
    const std::int64_t size = parts_.fuse->cols();
    states_.reserve(total * size);
    fused_.reserve(total * hidden_);
    float* to = states_.data();
    for (std::size_t i = 0; i < chains.size(); ++i) {
      const auto some = static_cast<std::int64_t>(tokens[i].size());
      copy(chains[i]->states, some * size, to);
      to += some * size;
    }
    norm_states(total, pool);
    parts_.fuse->run(states_.data(), total, fused_.data(), pool);
    const float* from = fused_.data();
    for (std::size_t i = 0; i < chains.size(); ++i) {
      const auto some = static_cast<std::int64_t>(tokens[i].size());
      const auto row = static_cast<std::int64_t>(i) * batch_.width();
      copy(from, some * hidden_, beside_.data() + row * hidden_);
      from += some * hidden_;
    }
  }

  void norm_states(std::int64_t total, ThreadPool& pool) {
    float* part = states_.data();
    for (std::int64_t i = 0; i < total; ++i) {
      for (const NormModule* norm : parts_.state_norms) {
        norm->run(part, 1, part, pool);
        part += norm->size();
      }
    }
  }

  // In `embedded_`, [chains, width, hidden]; that of padding is read by nothing.
  void embed(const Lists& tokens) {
    embedded_.reserve(static_cast<std::int64_t>(tokens.size()) * batch_.width() * hidden_);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      float* to = embedded_.data() + static_cast<std::int64_t>(i) * batch_.width() * hidden_;
      for (const std::int64_t token : tokens[i]) {
        if (token < 0 || token >= parts_.vocab) {
          throw std::invalid_argument(std::to_string(token) + " is not a token");
        }
        if (parts_.table != nullptr) copy(parts_.table + token * hidden_, hidden_, to);
        else parts_.target->embed(&token, 1, to);
        to += hidden_;
      }
    }
  }

  // What the last layer gives, [chains, width, hidden].
  const float* run_layers(std::int64_t count, ThreadPool& pool) {
    std::vector<LayerInput> inputs = {{embedded_.data(), hidden_}, {beside_.data(), hidden_}};
    for (std::size_t i = 0; i < parts_.layers.size(); ++i) {
      Floats& out = layers_[i % 2];
      out.reserve(count * batch_.width() * hidden_);
      parts_.layers[i]->run(batch_.rows(*caches_[i]), inputs, out.data(), pool);
      inputs = {{out.data(), hidden_}};
    }
    return inputs.front().values;
  }

  const HeadParts& parts_;
  std::vector<KvCache*> caches_;
  std::int64_t hidden_;
  ChainBatch batch_;
  std::vector<DraftChain*> carriers_;  // the chains of the step before, in the order of `newest_`
  Floats newest_;                      // [chains, hidden]
  Floats states_;                      // [pending tokens, state]
  Floats fused_;                       // [pending tokens, hidden]
  Floats beside_;                      // [chains, width, hidden]
  Floats embedded_;                    // [chains, width, hidden]
  Floats layers_[2];                   // [chains, width, hidden]
};

HeadChains::HeadChains(HeadParts parts) : parts_(std::move(parts)) {
  const HeadParts& p = parts_;
  fit(p.fuse != nullptr && p.output != nullptr && !p.layers.empty(),
      "a head fuses states, and has a layer and an output head");
  const std::int64_t hidden = p.fuse->rows();
  std::int64_t normed = 0;
  for (const NormModule* norm : p.state_norms) normed += norm->size();
  fit(p.state_norms.empty() || normed == p.fuse->cols(), "norms and states do not fit");
  std::int64_t cols = 2 * hidden;
  for (const LayerModule* layer : p.layers) {
    fit(layer->cols() == cols && layer->hidden() == hidden, "layers do not fit each other");
    cols = hidden;
  }
  fit(p.norm == nullptr || p.norm->size() == hidden, "the norm does not fit");
  fit(p.output->cols() == hidden, "the output head does not fit");
  const bool own = p.table != nullptr;
  fit(own != (p.target != nullptr) &&
          (own || (p.target->shape().hidden == hidden && p.target->shape().vocab == p.vocab)),
      "the embedding does not fit");
  const auto ids = static_cast<std::int64_t>(p.token_ids.size());
  fit(p.output->rows() == (ids > 0 ? ids : p.vocab), "as many logits as tokens");
  const bool ascend = std::adjacent_find(p.token_ids.begin(), p.token_ids.end(),
                                         std::greater_equal<>()) == p.token_ids.end();
  fit(ids == 0 || (ascend && p.token_ids.front() >= 0 && p.token_ids.back() < p.vocab),
      "the tokens of the logits ascend");
  step_ = std::make_unique<Step>(parts_);
}

HeadChains::~HeadChains() = default;

void HeadChains::draft(const std::vector<KvCache*>& caches, std::vector<DraftChain>& chains,
                       ThreadPool& pool, ScratchPool<float>& scratches) {
  fit(caches.size() == parts_.layers.size(), "each layer has a cache");
  for (const DraftChain& chain : chains) fit(chain.states != nullptr, "a chain has states");
  step_->begin(caches);
  grow_chains(*step_, chains, parts_.vocab, pool, scratches);
}

}  // namespace forerun::cpu
