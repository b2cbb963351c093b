// The random numbers of forerun/randomness.py: SplitMix64 started at a hash of (seed, position,
// purpose, node). Uniforms agree with Python's bit for bit; noise as far as the logarithms of libm
// and torch do.
#pragma once

#include <cstdint>

namespace forerun::cpu {

enum class Purpose : std::uint64_t { draft = 1, accept = 2, emit = 3, noise = 4 };

// In [0, 1), with 53 random bits.
double uniform(std::uint64_t seed, std::int64_t position, Purpose purpose, std::int64_t node = 0);

// Standard Gumbel noise for the token at one position: a pure function of seed, position and token
// id.
class Noise {
 public:
  Noise(std::uint64_t seed, std::int64_t position);

  // Uniform fractions of `kTokens` tokens from `first` on, in (0, 1): never 0 nor 1, where the
  // noise would be infinite.
  static constexpr int kTokens = 64;
  void fractions(std::int64_t first, double* u) const;

  static double of_fraction(double u);  // -log(-log(u))

 private:
  std::uint64_t state_;
};

}  // namespace forerun::cpu
