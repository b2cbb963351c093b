// What the engine refuses, told apart for its caller.
#pragma once

#include <stdexcept>

namespace forerun::cpu {

// A row is full, its layers differ in length, or a position lies beyond the context.
struct CacheError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace forerun::cpu
