#include <stdexcept>

#include "forerun/errors.h"
#include "forerun/verification.h"

namespace forerun::cpu {
namespace {

// The rows after nodes that have children: traversal asks for all of them before it tests a leaf.
std::vector<std::int64_t> inner_rows(const Tree& tree) {
  std::vector<char> inner(static_cast<std::size_t>(tree.size) + 1);
  for (std::int64_t node = 0; node < tree.size; ++node) {
    // An invalid one is refused where the draft is verified.
    const std::int64_t parent = tree.parents[node];
    if (parent >= -1 && parent < tree.size) inner[static_cast<std::size_t>(parent + 1)] = 1;
  }
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row <= tree.size; ++row) {
    if (inner[static_cast<std::size_t>(row)] != 0) rows.push_back(row);
  }
  return rows;
}

// `pool`: threads that have nothing else to do, or null.
template <class T>
Outcome run(const DraftToVerify<T>& draft, std::int64_t vocab, RowScratch<T>& scratch,
            ThreadPool* pool, ScratchPool<T>& scratches) {
  if (draft.warp.greedy()) return verify_greedy(draft.tree, draft.logits, vocab);
  WarpedRows<T> warped(draft.logits, draft.tree.size + 1, vocab, draft.warp, scratch);
  if (pool != nullptr && draft.rule == Rule::traversal) {
    warped.make(inner_rows(draft.tree), *pool, scratches);
  }
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
              ThreadPool* pool, ScratchPool<T>& scratches) {
  try {
    return {run(draft, vocab, scratch, pool, scratches), Fault::none, {}};
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
    answers[0] = answer(drafts[0], vocab, *scratch, pool, scratches);
    return answers;
  }
  const auto share = [&](const Range& range) {
    const typename ScratchPool<T>::Lease scratch(scratches);
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const auto request = static_cast<std::size_t>(i);
      answers[request] = answer<T>(drafts[request], vocab, *scratch, nullptr, scratches);
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
