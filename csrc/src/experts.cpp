#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "forerun/vector_ops.h"
#include "parts.h"

namespace forerun::cpu {
namespace {

std::size_t size_of(std::int64_t n) { return static_cast<std::size_t>(n); }

// Tokens of an expert that are packed together.
struct Tile {
  Activations* to;
  std::int64_t index;
  std::int64_t route;  // of the first
};

}  // namespace

// The experts of a token, rising, and their weights.
void Experts::choose(const float* products, std::int64_t* experts, float* weights) const {
  const auto count = static_cast<std::int64_t>(each.size());
  // By falling product; what is not a number stays where it comes.
  for (std::int64_t expert = 0; expert < count; ++expert) {
    std::int64_t place = std::min(expert, used);
    while (place > 0 && products[expert] > products[experts[place - 1]]) --place;
    for (std::int64_t i = std::min(expert, used - 1); i > place; --i) experts[i] = experts[i - 1];
    if (place < used) experts[place] = expert;
  }
  const double top = products[experts[0]];
  const auto share = [&](std::int64_t expert) { return std::exp(products[expert] - top); };
  std::sort(experts, experts + used);
  double sum = 0.0;
  for (std::int64_t i = 0; i < (norm_topk ? used : count); ++i)
    sum += share(norm_topk ? experts[i] : i);
  for (std::int64_t i = 0; i < used; ++i) weights[i] = static_cast<float>(share(experts[i]) / sum);
}

void Experts::route(LayerRun& run, const float* x) const {
  ExpertSpace& space = run.space.experts;
  const auto count = static_cast<std::int64_t>(each.size());
  const std::int64_t tokens = run.tokens.count();
  space.products.reserve(tokens * count);
  space.weights.reserve(tokens * used);
  space.chosen.resize(size_of(tokens * used));
  router.run(x, tokens, space.products.data(), run.space.activations, run.pool,
             {nullptr, false, &each.front().up.matrix});
  run.pool.for_ranges(tokens, grain(tokens, 4 * count, run.pool), [&](const Range& r) {
    for (std::int64_t i = r.begin; i < r.end; ++i) {
      choose(space.products.data() + i * count, space.chosen.data() + i * used,
             space.weights.data() + i * used);
    }
  });
  space.begin.assign(each.size() + 1, 0);
  for (const std::int64_t expert : space.chosen) ++space.begin[size_of(expert) + 1];
  std::partial_sum(space.begin.begin(), space.begin.end(), space.begin.begin());
  std::vector<std::int64_t> next = space.begin;
  space.tokens.resize(space.chosen.size());
  space.routes.resize(space.chosen.size());
  for (std::size_t i = 0; i < space.chosen.size(); ++i) {
    space.routes[i] = next[size_of(space.chosen[i])]++;
    space.tokens[size_of(space.routes[i])] = static_cast<std::int64_t>(i) / used;
  }
}

// y [routes, rows] = the products with `part` of the experts; a route's values are those of its
// token in x, or its own.
void Experts::multiply(LayerRun& run, Linear Mlp::* part, const float* x, bool of_tokens, float* y,
                       Gate gate) const {
  ExpertSpace& space = run.space.experts;
  while (space.packed.size() < each.size()) space.packed.emplace_back(run.space.limit);
  const std::int64_t cols = (each.front().*part).matrix.shape().cols;
  const std::int64_t stride = (each.front().*part).rows() / (gate != nullptr ? 2 : 1);
  std::vector<Factors> products;
  std::vector<Tile> tiles;
  for (std::size_t expert = 0; expert < each.size(); ++expert) {
    const std::int64_t begin = space.begin[expert];
    if (space.begin[expert + 1] == begin) continue;
    float* to = y + begin * stride;
    const auto own = static_cast<std::ptrdiff_t>(products.size());
    (each[expert].*part).for_parts([&](const PackedMatrix& matrix) {
      Activations& packed = space.packed[expert].of(matrix.shape());
      const bool again = std::any_of(products.begin() + own, products.end(),
                                     [&](const Factors& other) { return other.x == &packed; });
      if (!again) packed.resize(space.begin[expert + 1] - begin, cols, run.pool);
      for (std::int64_t i = 0; !again && i < packed.tiles(); ++i)
        tiles.push_back({&packed, i, begin + packed.tile_begin(i)});
      products.push_back({&matrix, &packed, to});
      to += matrix.shape().rows;
    });
  }
  const auto count = static_cast<std::int64_t>(tiles.size());
  const std::int64_t tokens = run.tokens.count() * used / std::max<std::int64_t>(count, 1);
  run.pool.for_ranges(count, grain(count, tokens * cols, run.pool), [&](const Range& r) {
    for (std::int64_t i = r.begin; i < r.end; ++i) {
      const Tile& tile = tiles[size_of(i)];
      const std::int64_t first = tile.to->tile_begin(tile.index);
      for (std::int64_t k = 0; k < tile.to->tile_tokens(tile.index); ++k) {
        const std::int64_t row = of_tokens ? space.tokens[size_of(tile.route + k)] : tile.route + k;
        tile.to->pack_part(first + k, 1, 0, cols, x + row * cols, cols);
      }
    }
  });
  linear(products, stride, run.pool, {nullptr, false, nullptr, gate});
}

// y [routes, rows] += the bias of each route's expert, where there are any.
void Experts::add_biases(LayerRun& run, const std::vector<float>& biases, std::int64_t rows,
                         float* y) const {
  if (biases.empty()) return;
  const std::vector<std::int64_t>& begin = run.space.experts.begin;
  const VectorOps& ops = vector_ops(run.space.limit);
  run.pool.for_ranges(begin.back(), grain(begin.back(), rows, run.pool), [&](const Range& r) {
    for (std::int64_t i = r.begin; i < r.end; ++i) {
      const auto expert = std::upper_bound(begin.begin(), begin.end(), i) - begin.begin() - 1;
      ops.add(biases.data() + expert * rows, rows, y + i * rows);
    }
  });
}

void Experts::run(LayerRun& run, const float* x, float* y, bool accumulate) const {
  ExpertSpace& space = run.space.experts;
  const Mlp& first = each.front();
  const std::int64_t hidden = first.down.rows();
  const std::int64_t size = first.down.matrix.shape().cols;
  const std::int64_t tokens = run.tokens.count();
  const std::int64_t routes = tokens * used;
  const VectorOps& ops = vector_ops(run.space.limit);
  route(run, x);
  space.inner.reserve(routes * size);
  space.out.reserve(routes * hidden);
  // All or none: what formats a matrix has differs by layer.
  const bool at_once =
      up_bias.empty() && std::all_of(each.begin(), each.end(), [&](const Mlp& expert) {
        return expert.gate(run.space.limit) != nullptr;
      });
  if (at_once) {
    multiply(run, &Mlp::up, x, true, space.inner.data(), first.gate(run.space.limit));
  } else {
    space.up.reserve(routes * first.up.rows());
    multiply(run, &Mlp::up, x, true, space.up.data(), nullptr);
    add_biases(run, up_bias, first.up.rows(), space.up.data());
    activate(first.activation, first.gated, space.up.data(), routes, size, space.inner.data(),
             run.space.limit, run.pool);
  }
  multiply(run, &Mlp::down, space.inner.data(), false, space.out.data(), nullptr);
  add_biases(run, down_bias, hidden, space.out.data());
  run.pool.for_ranges(tokens, grain(tokens, used * hidden, run.pool), [&](const Range& r) {
    for (std::int64_t i = r.begin; i < r.end; ++i) {
      const auto out = [&](std::int64_t k) {
        return space.out.data() + space.routes[size_of(i * used + k)] * hidden;
      };
      const float* weights = space.weights.data() + i * used;
      ops.scale(out(0), weights[0], hidden, out(0));
      for (std::int64_t k = 1; k < used; ++k) ops.blend(out(k), 1.0f, weights[k], hidden, out(0));
      if (accumulate) ops.add(out(0), hidden, y + i * hidden);
      else std::memcpy(y + i * hidden, out(0), size_of(hidden) * sizeof(float));
    }
  });
}

}  // namespace forerun::cpu
