// Decoders of random shape and weights.
#pragma once

#include <memory>
#include <string>

#include "check.h"
#include "forerun/decoder.h"

namespace forerun::cpu::test {

inline bool coin(Random& random) { return between(random, 0, 1) == 1; }

// Matrices in precisions of their own, as in files that mix them.
inline void mix_precisions(DecoderShape& s, Random& random) {
  const auto mix = [&](const std::string& name) {
    if (coin(random)) s.precisions[name] = kPrecisions[between(random, 0, kNumPrecisions - 1)];
  };
  for (std::int64_t i = 0; i < s.layers; ++i) {
    for (const char* name : {"qkv", "output", "gate_up", "up", "down"})
      mix("layers." + std::to_string(i) + "." + name + ".weight");
  }
  mix("embedding.weight");
  mix("head.weight");
}

inline DecoderShape random_shape(Random& random) {
  DecoderShape s;
  s.precision = kPrecisions[between(random, 0, kNumPrecisions - 1)];
  s.head_precision = s.precision == Precision::int4 ? Precision::int8 : s.precision;
  s.group = 32 << between(random, 0, 2);
  s.vocab = between(random, 3, 70);
  s.hidden = between(random, 1, 140);
  s.intermediate = between(random, 1, 200);
  s.layers = between(random, 1, 3);
  s.kv_heads = between(random, 1, 3);
  s.heads = s.kv_heads * between(random, 1, 4);
  // Every other one a size that a cache of codes can have.
  s.head_dim = coin(random) ? 2 * between(random, 1, 20) : 16 * between(random, 1, 5);
  s.max_context = 700;
  s.activation = static_cast<Activation>(between(random, 0, 3));
  s.gated = coin(random);
  s.layer_norm = coin(random);
  s.query_key_norm = coin(random);
  s.qkv_bias = coin(random);
  s.output_bias = coin(random);
  s.mlp_bias = coin(random);
  s.tied = coin(random);
  for (std::int64_t i = 0; i < s.layers; ++i)
    s.windows.push_back(coin(random) ? 0 : between(random, 1, 40));
  if (coin(random)) mix_precisions(s, random);
  if (coin(random)) {
    for (std::int64_t i = 0; i < s.head_dim / 2; ++i) {
      s.inverse_frequencies.push_back(1.0f / static_cast<float>(1 + 3 * i));
    }
  }
  return s;
}

// A cache for the decoder, of any precision that its heads can have.
inline KvCache::Shape random_cache_shape(const Decoder& decoder, Random& random) {
  KvCache::Shape shape = decoder.cache_shape(1, 1);
  const Precision others[] = {Precision::fp32, Precision::bf16, Precision::int8, Precision::int4};
  const bool grouped = shape.head_dim % 16 == 0;
  if (coin(random)) shape.precision = others[between(random, 0, grouped ? 3 : 1)];
  return shape;
}

inline void fill(Decoder& decoder, const std::string& name, std::int64_t rows, std::int64_t cols,
                 Random& random, ThreadPool& pool) {
  const auto values = normal(random, rows * cols, 0.3f);
  decoder.load(name, 0, rows, cols, values.data(), SourceType::fp32, pool);
}

inline std::unique_ptr<Decoder> random_decoder(const DecoderShape& s, Level level, Random& random,
                                               ThreadPool& pool) {
  auto decoder = std::make_unique<Decoder>(s, level);
  const auto put = [&](bool there, const std::string& name, std::int64_t rows, std::int64_t cols) {
    if (there) fill(*decoder, name, rows, cols, random, pool);
  };
  put(true, "embedding.weight", s.vocab, s.hidden);
  put(!s.tied, "head.weight", s.vocab, s.hidden);
  put(s.inverse_frequencies.empty(), "positions.weight", s.max_context, s.hidden);
  put(true, "norm.weight", s.hidden, 1);
  put(s.layer_norm, "norm.bias", s.hidden, 1);
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string at = "layers." + std::to_string(i) + ".";
    for (const char* norm : {"input_norm", "mlp_norm"}) {
      put(true, at + norm + ".weight", s.hidden, 1);
      put(s.layer_norm, at + norm + ".bias", s.hidden, 1);
    }
    put(s.query_key_norm, at + "q_norm.weight", s.head_dim, 1);
    put(s.query_key_norm, at + "k_norm.weight", s.head_dim, 1);
    put(true, at + "qkv.weight", s.qkv_rows(), s.hidden);
    put(s.qkv_bias, at + "qkv.bias", s.qkv_rows(), 1);
    put(true, at + "output.weight", s.hidden, s.heads * s.head_dim);
    put(s.output_bias, at + "output.bias", s.hidden, 1);
    put(true, at + "gate_up.weight", s.up_rows(), s.hidden);
    put(s.mlp_bias, at + "gate_up.bias", s.up_rows(), 1);
    put(true, at + "down.weight", s.hidden, s.intermediate);
    put(s.mlp_bias, at + "down.bias", s.hidden, 1);
  }
  return decoder;
}

}  // namespace forerun::cpu::test
