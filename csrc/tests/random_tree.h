// Random trees of tokens.
#pragma once

#include "check.h"

namespace forerun::cpu::test {

using Ids = std::vector<std::int64_t>;

inline Ids count_from(std::int64_t first, std::int64_t n) {
  Ids ids;
  for (std::int64_t i = 0; i < n; ++i) ids.push_back(first + i);
  return ids;
}

inline Ids random_ids(Random& random, std::int64_t n, std::int64_t vocab) {
  Ids ids;
  for (std::int64_t i = 0; i < n; ++i) ids.push_back(between(random, 0, vocab - 1));
  return ids;
}

struct Tree {
  Ids ids;
  Ids parents;  // -1: the text

  Ids path(std::int64_t node) const {
    Ids nodes;
    for (; node >= 0; node = parents[static_cast<std::size_t>(node)])
      nodes.insert(nodes.begin(), node);
    return nodes;
  }
};

inline Tree random_tree(Random& random, std::int64_t vocab) {
  Tree tree;
  const std::int64_t n = between(random, 1, 30);
  tree.ids = random_ids(random, n, vocab);
  for (std::int64_t i = 0; i < n; ++i) tree.parents.push_back(between(random, -1, i - 1));
  return tree;
}

}  // namespace forerun::cpu::test
