// Memory that work on rows of the vocabulary needs besides its arguments, kept from call to call:
// rows are long, and taking them from the system each round costs more than many a row's work.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace forerun::cpu {

// The tokens of a row that have probability, in order of ids, where they are few.
template <class T>
struct SparseRow {
  std::vector<std::int64_t> ids;
  std::vector<T> probs;
  bool holds_row = false;  // false where the row is dense

  T prob(std::int64_t id) const {
    const auto place = std::lower_bound(ids.begin(), ids.end(), id);
    return place != ids.end() && *place == id ? probs[static_cast<std::size_t>(place - ids.begin())]
                                              : T(0);
  }

  void write(T* row, std::int64_t vocab) const {
    std::fill(row, row + vocab, T(0));
    for (std::size_t i = 0; i < ids.size(); ++i) row[ids[i]] = probs[i];
  }
};

// Used by one call at a time; what it holds between calls means nothing.
template <class T>
struct RowScratch {
  // Of warp_row.
  std::vector<T> blocks;   // the largest logit of each block
  std::vector<T> weights;  // [vocab]
  std::vector<T> rest;
  SparseRow<T> sparse;
  // Of drawing and verification.
  std::vector<T> rows;  // [n, vocab]
  std::vector<SparseRow<T>> sparse_rows;
  std::vector<T> residual;             // [vocab]
  std::vector<std::vector<T>> levels;  // [depth][vocab]
};

// As many scratches as are in use at once, and no more than processors: a call that finds the lock
// taken makes one of its own. No call waits for it, so that a fork in the wrong moment costs memory
// at most.
template <class T>
class ScratchPool {
 public:
  // Gives the scratch back at its end.
  class Lease {
   public:
    explicit Lease(ScratchPool& pool) : pool_(pool), scratch_(pool.take()) {}
    ~Lease() { pool_.give_back(std::move(scratch_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    RowScratch<T>& operator*() const { return *scratch_; }

   private:
    ScratchPool& pool_;
    std::unique_ptr<RowScratch<T>> scratch_;
  };

 private:
  std::unique_ptr<RowScratch<T>> take() {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock || free_.empty()) return std::make_unique<RowScratch<T>>();
    auto scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }
  void give_back(std::unique_ptr<RowScratch<T>> scratch) {
    static const std::size_t most = std::max(std::thread::hardware_concurrency(), 1u);
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (lock && free_.size() < most) free_.push_back(std::move(scratch));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<RowScratch<T>>> free_;
};

}  // namespace forerun::cpu
