// y[n, rows] = x[n, cols] W^T, each weight read once for all n tokens.
//
// The result for a token depends on that token and the weights alone: not on n, on the other
// tokens, on the number of threads, nor on the instruction set. AMX alone gives other last digits,
// in bf16 (kernels.h says what is computed).
#pragma once

#include <cstdint>
#include <vector>

#include "forerun/buffer.h"
#include "forerun/cpu_level.h"
#include "forerun/packed_matrix.h"
#include "forerun/thread_pool.h"

namespace forerun::cpu {

struct KernelSet;

// The tokens of one call in the order in which the kernels read them: rounded to bf16, or quantized
// to int8 with one scale for each token and group of columns, or two groups of int4. Packed once,
// used with every matrix of the same precision, columns and group (q, k and v; gate and up). Keeps
// its memory between calls.
//
// Memory: one panel for each tile of T tokens, of 4-byte units:
//   fp32  [cols][T]    bf16  [pairs][T]
//   int8, int4: for each group  -zero_point * sum of its values [T], scale [T], then [quads][T]
//   with offset: for each group  sum of its values [T], a float, scale [T], then [quads][T]
//   where the kernels want it so (AMX): [T][quads] in place of [quads][T], of whole groups or, for
//   few tokens, pairs of groups (paired_groups.h), in int4 with 16 times the sum and a 16th of the
//   scale, and in bf16 [T][16 pairs] for every 32 columns, with zeros at the end
class Activations {
 public:
  // `group` as in MatrixShape; `limit` caps the instruction set.
  explicit Activations(Precision precision, int group = 0, Level limit = best_level());

  // n tokens of `cols` floats, `stride` apart. A token with a NaN or infinity gives NaN in its
  // group and so in its whole result. Throws std::invalid_argument for n or cols below 1 or a short
  // stride.
  void pack(const float* x, std::int64_t n, std::int64_t cols, std::int64_t stride,
            ThreadPool& pool);

  // The same in parts, as values are computed: room for n tokens of `cols`, then columns [begin,
  // end) of tokens [first, first + count) from x [count, stride], in any order and thread. `begin`
  // and `end` are multiples of shape().unit_columns(), but the last part ends at `cols`.
  void resize(std::int64_t n, std::int64_t cols, const ThreadPool& pool);
  void pack_part(std::int64_t first, std::int64_t count, std::int64_t begin, std::int64_t end,
                 const float* x, std::int64_t stride);

  std::int64_t tokens() const { return tokens_; }
  const MatrixShape& shape() const { return shape_; }  // of one row: what a matrix must agree with
  const KernelSet& kernels() const { return *kernels_; }
  bool paired() const;  // whether the panel is as paired_groups.h says: of one tile

  // One tile where the kernels take all tokens at once; tiles differ by at most one token, longer
  // ones first.
  std::int64_t tiles() const { return tiles_; }
  std::int64_t tile_begin(std::int64_t tile) const;
  int tile_tokens(std::int64_t tile) const;
  const std::uint32_t* panel(std::int64_t tile) const { return panel_at(tile); }
  // Of a thread, for what a product lays out of weights: of a matrix or its first half (0), or of
  // its second (1). Null where that saves nothing. One product at a time may use it.
  std::uint8_t* room(int thread, int half) const;

 private:
  std::int64_t tile_of(std::int64_t token) const;
  std::uint32_t* panel_at(std::int64_t tile) const;
  bool has_rooms() const;

  Level limit_;
  MatrixShape shape_;
  const KernelSet* kernels_;  // for as many tokens as are packed
  std::int64_t tokens_ = 0;
  std::int64_t tiles_ = 0;
  std::int64_t units_ = 0;  // of a panel, for each of its tokens
  Buffer memory_;
  Buffer rooms_;
};

// y = f(gate, up), n values each: one of VectorOps.
using Gate = void (*)(const float* gate, const float* up, std::int64_t n, float* y);

struct LinearOptions {
  const float* bias = nullptr;  // [rows]
  bool accumulate = false;      // y += instead of y =, after the bias
  const PackedMatrix* next =
      nullptr;  // the product that follows: its first lines are fetched at the end
  // Where given, the first half of the rows are those of a gate, the others those that it takes,
  // and y has half as many: each thread gates what it has just computed, so that no value goes
  // from one core to another. Halves are whole blocks; not with `accumulate`.
  Gate gate = nullptr;
  // Where given, with a gate: the results go there, for the product that follows, and none to y.
  Activations* packed = nullptr;
};

// y: rows of the result, y_stride apart. Throws std::invalid_argument where matrix and activations
// do not agree, the stride is short, a matrix with a gate has no two halves of whole blocks, or
// `packed` is x or lacks a gate.
void linear(const PackedMatrix& weights, const Activations& x, float* y, std::int64_t y_stride,
            ThreadPool& pool, const LinearOptions& options = {});

// One of several products.
struct Factors {
  const PackedMatrix* weights;
  const Activations* x;
  float* y;
};

// Several products of as many rows each, or parts of them: their blocks are shared out together, so
// that threads wait for each other once. Of the options each takes the gate and what comes next.
void linear(const std::vector<Factors>& products, std::int64_t y_stride, ThreadPool& pool,
            const LinearOptions& options = {});

// Whether a gate's results for x, which a matrix of shape `then` takes, are best packed as they are
// computed: not where threads would get unequal shares of units, nor where few columns come at a
// time, as in several tiles, and groups are packed faster many together.
bool packs_at_once(const Activations& x, const MatrixShape& then, const ThreadPool& pool);

}  // namespace forerun::cpu
