#include <stdexcept>

#include "forerun/errors.h"
#include "forerun/verification.h"

namespace forerun::cpu {
namespace {

template <class T>
Outcome run(const DraftToVerify<T>& draft, std::int64_t vocab, RowScratch<T>& scratch,
            const Helpers<T>& helpers) {
  if (draft.warp.greedy()) return verify_greedy(draft.tree, draft.logits, vocab);
  WarpedRows<T> warped(draft.logits, draft.tree, vocab, draft.warp, scratch, helpers);
  const Rows<T> rows{nullptr, draft.draft, vocab, &warped};
  if (draft.rule == Rule::coupled) {
    return verify_coupled(draft.tree, rows, draft.seed, draft.committed);
  }
  const Uniforms uniforms = [&](Purpose purpose, std::int64_t node) {
    return uniform(draft.seed, draft.committed, purpose, node);
  };
  return verify(draft.rule, draft.tree, rows, uniforms, scratch);
}

template <class T>
Answer answer(const DraftToVerify<T>& draft, std::int64_t vocab, RowScratch<T>& scratch,
              const Helpers<T>& helpers) {
  try {
    return {run(draft, vocab, scratch, helpers), Fault::none, {}};
  } catch (const RowError& error) {
    return {{-1, -1}, Fault::row, error.what()};
  } catch (const std::invalid_argument& error) {
    return {{-1, -1}, Fault::draft, error.what()};
  }
}

}  // namespace

template <class T>
std::vector<Answer> verify_batch(const std::vector<DraftToVerify<T>>& drafts, std::int64_t vocab,
                                 ThreadPool* pool, ScratchPool<T>& scratches) {
  std::vector<Answer> answers(drafts.size());
  if (drafts.size() == 1) {
    const typename ScratchPool<T>::Lease scratch(scratches);
    answers[0] = answer<T>(drafts[0], vocab, *scratch, {pool, &scratches});
    return answers;
  }
  const auto share = [&](const Range& range) {
    const typename ScratchPool<T>::Lease scratch(scratches);
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const auto request = static_cast<std::size_t>(i);
      answers[request] = answer<T>(drafts[request], vocab, *scratch, {});
    }
  };
  const auto count = static_cast<std::int64_t>(drafts.size());
  if (pool != nullptr) {
    pool->for_ranges(count, 1, share);
  } else {
    share(Range{0, 0, count, count});
  }
  return answers;
}

#define FORERUN_INSTANTIATE(T)                                                                  \
  template std::vector<Answer> verify_batch(const std::vector<DraftToVerify<T>>&, std::int64_t, \
                                            ThreadPool*, ScratchPool<T>&);
FORERUN_INSTANTIATE(float)
FORERUN_INSTANTIATE(double)
#undef FORERUN_INSTANTIATE

}  // namespace forerun::cpu
