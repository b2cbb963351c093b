// The weights of a decoder: matrices packed in the order of use, and vectors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "forerun/buffer.h"
#include "forerun/decoder.h"
#include "forerun/packed_matrix.h"
#include "forerun/thread_pool.h"
#include "parts.h"
#include "rotary.h"

namespace forerun::cpu {

// Rows that are looked up, not multiplied with: fp32, or else bf16.
struct Table {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  bool fp32 = false;
  Buffer memory;

  void make(std::int64_t rows, std::int64_t cols, bool fp32);
  void store(std::int64_t first, std::int64_t count, const void* data, SourceType type);
  void read(std::int64_t row, float* out) const;
};

// What a name stands for: one of the three, or nothing.
struct NamedWeight {
  std::vector<PackedMatrix*> parts;  // of a matrix, whose rows follow each other
  Table* table = nullptr;
  std::vector<float>* vector = nullptr;
};

struct DecoderWeights {
  explicit DecoderWeights(const DecoderShape& shape);

  DecoderShape shape;
  std::vector<RotaryTable> ropes;
  std::vector<DecoderLayer> layers;
  Norm norm;
  Linear head;
  // One of the two, neither where the head is the embedding: quantized, or as a table.
  Linear packed_embedding;
  Table embedding;
  Table positions;  // empty unless learned
  Buffer memory;    // of all matrices

  NamedWeight find(const std::string& name);

 private:
  void check() const;
  void make_layer(DecoderLayer& layer, const LayerShape& each);
  void make_vectors();
  void make_matrices();
  std::vector<MatrixShape> shapes_of(const std::string& name, std::int64_t first, std::int64_t rows,
                                     std::int64_t cols) const;
};

}  // namespace forerun::cpu
