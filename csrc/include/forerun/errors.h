// Errors that callers tell from others.
#pragma once

#include <stdexcept>

namespace forerun::cpu {

// A row is full, its layers differ in length, or a position lies beyond the context.
struct CacheError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A row of logits without a distribution: NaN, infinity, or nothing possible.
struct RowError : std::domain_error {
  using std::domain_error::domain_error;
};

}  // namespace forerun::cpu
