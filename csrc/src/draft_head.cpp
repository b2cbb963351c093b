#include "forerun/draft_head.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "decoder_weights.h"

namespace forerun::cpu {
namespace {

constexpr std::int64_t kFewest = 256;  // rows that there is room for at first

}  // namespace

DraftHead::DraftHead(Decoder& decoder, std::int64_t first)
    : decoder_(decoder), first_(std::min(first, decoder.shape().vocab)) {
  if (first < 1) throw std::invalid_argument("a head for drafts needs a token");
  known_.resize(static_cast<std::size_t>(decoder.shape().vocab));
  std::fill_n(known_.begin(), first_, true);
}

void DraftHead::add(const std::vector<std::int64_t>& tokens) {
  const std::int64_t vocab = decoder_.shape().vocab;
  for (const std::int64_t token : tokens) {
    if (token < 0 || token >= vocab)
      throw std::invalid_argument(std::to_string(token) + " is not a token");
  }
  for (const std::int64_t token : tokens) {
    if (known_[static_cast<std::size_t>(token)]) continue;
    const auto row = static_cast<std::int64_t>(added_.size());
    reserve(row + 1);
    rows_.copy_row(row, decoder_.head(), token);
    added_.push_back(token);
    known_[static_cast<std::size_t>(token)] = true;
  }
}

void DraftHead::reserve(std::int64_t rows) {
  const MatrixShape& head = decoder_.head().shape();
  const std::int64_t room = rows_.shape().rows;
  if (rows <= room && memory_.size() > 0) return;
  const std::int64_t more = std::max(kFewest, memory_.size() > 0 ? 2 * room : 0);
  const MatrixShape shape = MatrixShape::make(head.precision, more, head.cols, head.group);
  Buffer memory(shape.bytes());
  const PackedMatrix grown(shape, memory.data());
  if (memory_.size() > 0) std::memcpy(memory.data(), memory_.data(), rows_.shape().bytes());
  memory_ = std::move(memory);
  rows_ = grown;
}

void DraftHead::run(const std::vector<DraftHead*>& heads, const float* normed, float* logits,
                    ThreadPool& pool) {
  if (heads.empty()) return;
  Decoder& decoder = heads.front()->decoder_;
  const std::int64_t vocab = decoder.shape().vocab, hidden = decoder.shape().hidden;
  const auto count = static_cast<std::int64_t>(heads.size());
  const std::int64_t first = heads.front()->first_;
  const bool alike = std::all_of(heads.begin(), heads.end(),
                                 [&](const DraftHead* head) { return head->first_ == first; });
  if (!alike) {
    for (std::int64_t i = 0; i < count; ++i) {
      run({heads[static_cast<std::size_t>(i)]}, normed + i * hidden, logits + i * vocab, pool);
    }
    return;
  }
  std::vector<float>& together = heads.front()->logits_;
  if (count > 1) together.resize(static_cast<std::size_t>(count * first));
  float* out = count > 1 ? together.data() : logits;
  decoder.run_head(decoder.head().first_rows(first), normed, count, out, pool);
  for (std::int64_t i = 0; i < count; ++i) {
    float* own = logits + i * vocab;
    if (count > 1) std::copy_n(out + i * first, first, own);
    std::fill(own + first, own + vocab, -INFINITY);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    heads[static_cast<std::size_t>(i)]->run_added(normed + i * hidden, logits + i * vocab, pool);
  }
}

void DraftHead::run_added(const float* normed, float* logits, ThreadPool& pool) {
  if (added_.empty()) return;
  const auto rows = static_cast<std::int64_t>(added_.size());
  logits_.resize(added_.size());
  decoder_.run_head(rows_.first_rows(rows), normed, 1, logits_.data(), pool);
  for (std::size_t i = 0; i < added_.size(); ++i) logits[added_[i]] = logits_[i];
}

}  // namespace forerun::cpu
