// Decoders of random shape and weights.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "check.h"
#include "forerun/decoder.h"

namespace forerun::cpu::test {

inline bool coin(Random& random) { return between(random, 0, 1) == 1; }

// Matrices, and parts of them, in precisions of their own, as in files that mix them.
inline void mix_precisions(DecoderShape& s, Random& random) {
  const auto mix = [&](const std::string& name, std::int64_t rows, bool parts) {
    while (rows > 0 && (coin(random) || s.precisions.count(name) > 0)) {
      const std::int64_t some = parts ? between(random, 1, rows) : rows;
      s.precisions[name].push_back({some, any_precision(random)});
      rows -= some;
    }
  };
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string at = "layers." + std::to_string(i) + ".";
    mix(at + "qkv.weight", s.qkv_rows(), true);
    const std::int64_t mlps = std::max<std::int64_t>(s.experts, 1);
    mix(at + (s.gated ? "gate_up.weight" : "up.weight"), mlps * s.up_rows(), true);
    mix(at + "output.weight", s.hidden, false);
    mix(at + "down.weight", mlps * s.hidden, false);
  }
  mix("embedding.weight", s.vocab, false);
  mix("head.weight", s.vocab, false);
}

inline DecoderShape random_shape(Random& random) {
  DecoderShape s;
  s.precision = any_precision(random);
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
  s.gated = coin(random);
  s.activation = static_cast<Activation>(between(random, 0, s.gated ? 4 : 3));
  s.layer_norm = coin(random);
  s.norm_before = coin(random);
  s.norm_after = coin(random);
  s.parallel = s.norm_before && !s.norm_after && coin(random);
  s.query_key_norm = static_cast<HeadNorm>(between(random, 0, 2));
  s.qkv_bias = coin(random);
  s.output_bias = coin(random);
  s.experts = coin(random) ? between(random, 1, 9) : 0;
  s.experts_used = std::min<std::int64_t>(s.experts, between(random, 1, 4));
  s.norm_topk = coin(random);
  s.mlp_bias = coin(random);
  s.sinks = coin(random);
  s.tied = coin(random);
  s.learned_positions = coin(random);
  for (std::int64_t k = between(random, 0, 2); k > 0; --k) {
    s.ropes.emplace_back();
    for (std::int64_t i = between(random, 1, s.head_dim / 2); i > 0; --i)
      s.ropes.back().inverse_frequencies.push_back(1.0f / static_cast<float>(k + 3 * i));
  }
  s.rope_pairs = coin(random);
  const auto ropes = static_cast<std::int64_t>(s.ropes.size());
  for (std::int64_t i = 0; i < s.layers; ++i)
    s.each.push_back({coin(random) ? 0 : between(random, 1, 40), between(random, -1, ropes - 1)});
  for (float* scale : {&s.attention_scale, &s.embedding_scale, &s.residual_scale, &s.logit_scale}) {
    if (coin(random)) *scale = 0.25f * static_cast<float>(between(random, 1, 8));
  }
  if (coin(random)) s.score_cap = 2.0f;
  if (coin(random)) s.logit_cap = 3.0f;
  if (coin(random)) mix_precisions(s, random);
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
  put(s.learned_positions, "positions.weight", s.max_context, s.hidden);
  put(true, "norm.weight", s.hidden, 1);
  put(s.layer_norm, "norm.bias", s.hidden, 1);
  for (std::int64_t i = 0; i < s.layers; ++i) {
    const std::string at = "layers." + std::to_string(i) + ".";
    const std::pair<const char*, bool> norms[] = {{"input_norm", s.norm_before},
                                                  {"mlp_norm", s.norm_before && !s.parallel},
                                                  {"post_attention_norm", s.norm_after},
                                                  {"post_mlp_norm", s.norm_after}};
    for (const auto& [norm, there] : norms) {
      put(there, at + norm + ".weight", s.hidden, 1);
      put(there && s.layer_norm, at + norm + ".bias", s.hidden, 1);
    }
    const bool normed = s.query_key_norm != HeadNorm::none;
    const bool whole = s.query_key_norm == HeadNorm::whole;
    put(normed, at + "q_norm.weight", (whole ? s.heads : 1) * s.head_dim, 1);
    put(normed, at + "k_norm.weight", (whole ? s.kv_heads : 1) * s.head_dim, 1);
    put(true, at + "qkv.weight", s.qkv_rows(), s.hidden);
    put(s.qkv_bias, at + "qkv.bias", s.qkv_rows(), 1);
    put(true, at + "output.weight", s.hidden, s.heads * s.head_dim);
    put(s.output_bias, at + "output.bias", s.hidden, 1);
    put(s.sinks, at + "sinks.weight", s.heads, 1);
    const std::int64_t mlps = std::max<std::int64_t>(s.experts, 1);
    put(s.experts > 0, at + "router.weight", s.experts, s.hidden);
    put(true, at + "gate_up.weight", mlps * s.up_rows(), s.hidden);
    put(s.mlp_bias && s.experts > 0, at + "router.bias", s.experts, 1);
    put(s.mlp_bias, at + "gate_up.bias", mlps * s.up_rows(), 1);
    put(true, at + "down.weight", mlps * s.hidden, s.intermediate);
    put(s.mlp_bias, at + "down.bias", mlps * s.hidden, 1);
  }
  return decoder;
}

}  // namespace forerun::cpu::test
