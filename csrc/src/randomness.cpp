#include "forerun/randomness.h"

#include <cmath>
#include <initializer_list>

#include "splitmix.h"
#include "vector/vector_set.h"

namespace forerun::cpu {
namespace {

std::uint64_t state_of(std::uint64_t seed, std::int64_t position, Purpose purpose,
                       std::int64_t node) {
  std::uint64_t state = 0;
  for (const std::uint64_t part :
       {seed, static_cast<std::uint64_t>(position), static_cast<std::uint64_t>(purpose),
        static_cast<std::uint64_t>(node)}) {
    state = mix((state + kGolden) ^ part);
  }
  return state;
}

}  // namespace

double uniform(std::uint64_t seed, std::int64_t position, Purpose purpose, std::int64_t node) {
  return static_cast<double>(mix(state_of(seed, position, purpose, node) + kGolden) >> 11) *
         0x1p-53;
}

Noise::Noise(std::uint64_t seed, std::int64_t position)
    : state_(state_of(seed, position, Purpose::noise, 0)) {}

void Noise::fractions(std::int64_t first, double* u) const {
  static_assert(kTokens == kBlock);
  vector_set(best_level()).fractions(state_, first, u);
}

double Noise::of_fraction(double u) { return -std::log(-std::log(u)); }

}  // namespace forerun::cpu
