// Loops that are gone before the compiler allocates registers. Accumulators in arrays stay in
// registers only if every index is a constant by the time arrays are split; GCC's own unrolling
// comes too late for that and leaves copies between the dot products.
#pragma once

#include <utility>

#define FORERUN_INLINE inline __attribute__((always_inline))

// Likewise behind a lambda's parameters: arrays that it refers to are split only if it is inlined
// before, which flattening a kernel is too late for.
#define FORERUN_INLINE_BODY __attribute__((always_inline))

// On a kernel's entry: everything that it calls, lambdas too, becomes part of it, however long it
// gets.
#define FORERUN_FLATTEN __attribute__((flatten))

namespace forerun::cpu {
namespace {

// A constant as a type. Not std::integral_constant: its members would be shared with files that are
// compiled for other instruction sets.
template <int I>
struct Constant {
  constexpr operator int() const { return I; }
};

template <class Body, int... I>
FORERUN_INLINE void unroll_sequence(Body&& body, std::integer_sequence<int, I...>) {
  (body(Constant<I>{}), ...);
}

// body(Constant<i>) for i = 0 .. N - 1
template <int N, class Body>
FORERUN_INLINE void unroll(Body&& body) {
  unroll_sequence(body, std::make_integer_sequence<int, N>{});
}

}  // namespace
}  // namespace forerun::cpu
