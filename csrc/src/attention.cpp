#include "attention.h"

#include <algorithm>
#include <cmath>

#include "float_mode.h"
#include "vector/lanes.h"

namespace forerun::cpu {
namespace {

constexpr std::int64_t kPartRanks = 8 * kTileSlots;
// Sets of columns that take turns with a tile while it is in the first-level cache.
constexpr std::int64_t kSetsOfItem = 4;
constexpr std::int64_t kWhole = -1;

std::int64_t round_up(std::int64_t ranks) { return (ranks + kPartRanks - 1) / kPartRanks; }

}  // namespace

Attention::Attention(const AttentionShape& shape, Precision precision, Level limit, int threads)
    : shape_(shape), precision_(precision), tiles_(shape, precision, limit) {
  for (int i = 0; i < threads; ++i) scratch_.push_back(std::make_unique<TileAttention::Scratch>());
}

Attention::Parts Attention::parts_of(const RowMask& mask, const View& view) {
  const std::int64_t all = round_up(mask.start + mask.count);
  if (view.window == 0 || mask.count == 0) return {all, 0, all};
  const Visible seen = mask.seen(view);
  const std::int64_t sinks = round_up(seen.sinks);
  // What is chosen of them may lie in any part.
  const std::int64_t hidden =
      view.blocks > 0 ? 0 : std::max<std::int64_t>(seen.first / kPartRanks - sinks, 0);
  return {sinks, hidden, round_up(seen.end) - hidden};
}

// As few items as possible or, where that leaves threads idle, so many that it does not: long
// contexts in pieces, else many columns halved.
Attention::Split Attention::split(const RowMask& mask, std::int64_t parts, std::size_t rows) const {
  constexpr std::int64_t kWorthHalving = 16;
  const std::int64_t columns = mask.count * shape_.group();
  const std::int64_t most = kSetsOfItem * tiles_.max_columns();
  const std::int64_t sets = (columns + most - 1) / most;
  const auto even = [&](std::int64_t pieces) {
    const std::int64_t items = pieces * sets * shape_.kv_heads * static_cast<std::int64_t>(rows);
    return items % threads() == 0 || items >= 4 * threads();
  };
  if (even(1)) return {sets, 1};
  if (parts == 1) return {columns < kWorthHalving * sets ? sets : 2 * sets, 1};
  std::int64_t pieces = 2;
  while (pieces < parts && !even(pieces)) ++pieces;
  return {sets, pieces};
}

void Attention::add_items(Plan& plan, const RowMask& mask, std::int64_t head, const Parts& parts,
                          const Split& split) const {
  const std::int64_t columns = mask.count * shape_.group();
  for (std::int64_t i = 0; i < split.sets; ++i) {
    const Columns some = {&mask, head, columns * i / split.sets, columns * (i + 1) / split.sets};
    plan.widest = std::max(
        plan.widest, static_cast<int>(std::min<std::int64_t>(some.count(), tiles_.max_columns())));
    if (split.pieces == 1) {
      plan.items.push_back({some, parts, 0, parts.count, kWhole});
      continue;
    }
    const std::int64_t stride = some.count() * tiles_.sums_stride();
    for (std::int64_t p = 0; p < split.pieces; ++p) {
      const std::int64_t first = parts.count * p / split.pieces;
      const std::int64_t end = parts.count * (p + 1) / split.pieces;
      plan.items.push_back({some, parts, first, end, plan.partial_size + first * stride});
    }
    plan.merges.push_back({some, parts, 0, parts.count, plan.partial_size});
    plan.partial_size += parts.count * stride;
  }
}

void Attention::make(Plan& plan, const NewTokens& tokens) const {
  plan.items.clear();
  plan.merges.clear();
  plan.partial_size = 0;
  plan.whole_heads = true;
  plan.widest = 1;
  for (const RowMask& mask : tokens.masks) {
    // A row without tokens has no items, so they no longer count heads.
    const Parts parts = parts_of(mask, plan.view);
    const Split how = mask.count == 0 ? Split{0, 1} : split(mask, parts.count, tokens.masks.size());
    plan.whole_heads = plan.whole_heads && how.sets == 1 && how.pieces == 1;
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head)
      add_items(plan, mask, head, parts, how);
  }
}

// All memory is taken here: the threads must not throw.
void Attention::plan(const NewTokens& tokens, const KvCache& cache, const View& view) {
  for (std::size_t i = 0; i < planned_; ++i) {
    plan_ = plans_[i].get();
    if (plan_->view == view) return;
  }
  if (planned_ == plans_.size()) plans_.push_back(std::make_unique<Plan>());
  plan_ = plans_[planned_++].get();
  plan_->view = view;
  make(*plan_, tokens);
  partials_.reserve(plan_->partial_size);
  const std::int64_t most = kSetsOfItem * tiles_.max_columns();
  for (const auto& s : scratch_) tiles_.reserve(*s, most, tokens.masks);
  if (view.blocks == 0) return;
  // Of the tokens, the sets of columns, and all of them.
  for (const auto& s : scratch_) s->choice.reserve(cache, most + kSetsOfItem + 2);
}

// As in linear.cpp: what vdpbf16ps and tiles do in any mode, all else is set to.
FloatMode::Subnormals Attention::float_mode() const {
  return precision_ == Precision::bf16 ? FloatMode::Subnormals::flush : FloatMode::Subnormals::ieee;
}

void Attention::run(const AttentionCall& call, const Range& range) {
  const FloatMode mode(float_mode());
  const std::vector<Item>& items = plan_->items;
  tiles_.begin(plan_->widest);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const bool more = i + 1 < range.stop;
    run_item(call, items[index], more ? first_tile(call, items[index + 1]) : nullptr,
             *scratch_[static_cast<std::size_t>(range.thread)]);
  }
  tiles_.end();
}

TileAttention::Head Attention::head_of(const AttentionCall& call, const Columns& columns) {
  return {call.cache, call.layer, columns.mask, columns.head, call.view.coarse};
}

void Attention::find_visible(const AttentionCall& call, const Columns& columns,
                             TileAttention::Scratch& s) const {
  const RowMask& mask = *columns.mask;
  const std::int64_t group = shape_.group();
  const bool chooses = call.view.blocks > 0;
  if (chooses) s.choice.begin(*call.cache, mask.row, call.layer, columns.head);
  s.visible.resize(static_cast<std::size_t>(mask.count));
  for (std::int64_t token = columns.begin / group; token <= (columns.end - 1) / group; ++token) {
    Visible seen = mask.seen(token, call.view);
    const float* queries = call.queries + (mask.first_token + token) * call.stride +
                           columns.head * group * shape_.head_dim;
    if (chooses)
      seen = s.choice.choose(seen, call.view.blocks, mask.orderly_tiles(), queries, group,
                             tiles_.ops());
    s.visible[static_cast<std::size_t>(token)] = seen;
  }
}

void Attention::set_up(const AttentionCall& call, const Columns& columns,
                       TileAttention::Scratch& s) const {
  const RowMask& mask = *columns.mask;
  const std::int64_t group = shape_.group();
  const std::int64_t d = shape_.head_dim;
  find_visible(call, columns, s);
  const auto own = [&](const Visible& seen) {
    return seen.chosen == nullptr ? seen : s.choice.copy(seen);
  };
  const std::int64_t count = (columns.count() + tiles_.max_columns() - 1) / tiles_.max_columns();
  float* panel = s.panels.data();
  s.sets.clear();
  s.seen = own(s.visible[static_cast<std::size_t>(columns.begin / group)]);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = columns.begin + columns.count() * i / count;
    const std::int64_t end = columns.begin + columns.count() * (i + 1) / count;
    TileAttention::Set set = {begin, end, own(s.visible[static_cast<std::size_t>(begin / group)]),
                              panel};
    for (std::int64_t column = begin; column < end; ++column) {
      const std::int64_t token = column / group;
      set.seen.include(s.visible[static_cast<std::size_t>(token)]);
      const std::int64_t head = columns.head * group + column % group;
      const float* query = call.queries + (mask.first_token + token) * call.stride + head * d;
      tiles_.pack_query(head_of(call, columns), query, set.columns(),
                        static_cast<int>(column - begin), s, panel);
    }
    panel += tiles_.panel_floats(set.columns());
    s.seen.include(set.seen);
    s.sets.push_back(set);
  }
}

void Attention::clear(float* sums, std::int64_t columns) const {
  std::fill(sums, sums + columns * tiles_.sums_stride(), 0.0f);
  for (std::int64_t i = 0; i < columns; ++i) *tiles_.sums_of(sums, i).top = -INFINITY;
}

const std::uint8_t* Attention::first_tile(const AttentionCall& call, const Item& item) const {
  // Which tile is first depends on queries.
  if (call.view.blocks > 0) return nullptr;
  const RowMask& mask = *item.columns.mask;
  const Visible seen = mask.seen(item.columns.begin / shape_.group(), call.view);
  const std::int64_t rank = seen.from(item.parts.at(item.first_part) * kPartRanks);
  if (rank >= seen.end) return nullptr;
  return call.cache->tile(call.layer, mask.row, item.columns.head, rank);
}

void Attention::run_item(const AttentionCall& call, const Item& item, const std::uint8_t* following,
                         TileAttention::Scratch& s) {
  const Columns& columns = item.columns;
  const bool whole = item.partial == kWhole;
  set_up(call, columns, s);
  if (whole) clear(s.merged.data(), columns.count());
  for (std::int64_t part = item.first_part; part < item.end_part; ++part) {
    const std::int64_t stride = columns.count() * tiles_.sums_stride();
    const std::int64_t first = item.parts.at(part) * kPartRanks;
    if (whole && s.seen.from(first) >= first + kPartRanks) continue;
    float* sums =
        whole ? s.sums.data() : partials_.data() + item.partial + (part - item.first_part) * stride;
    clear(sums, columns.count());
    run_part(call, columns, item.parts.at(part), following, s, sums);
    if (whole) merge_part(columns, sums, s.merged.data());
  }
  if (whole) write(call, columns, s.merged.data());
}

void Attention::run_part(const AttentionCall& call, const Columns& columns, std::int64_t part,
                         const std::uint8_t* following, TileAttention::Scratch& s,
                         float* sums) const {
  const TileAttention::Head head = head_of(call, columns);
  const std::int64_t end = std::min(s.seen.end, (part + 1) * kPartRanks);
  for (std::int64_t rank = s.seen.from(part * kPartRanks); rank < end;) {
    const std::int64_t next = s.seen.from(rank + kTileSlots);
    // Fetched once, by the first set.
    const std::uint8_t* ahead =
        next < s.seen.end ? call.cache->tile(call.layer, columns.mask->row, columns.head, next)
                          : following;
    for (const TileAttention::Set& set : s.sets) {
      if (!set.seen.meets(rank)) continue;
      tiles_.add(head, set, rank, ahead, s, sums, columns.begin);
      ahead = nullptr;
    }
    rank = next;
  }
}

void Attention::merge_part(const Columns& columns, float* sums, float* merged) const {
  for (std::int64_t i = 0; i < columns.count(); ++i)
    tiles_.merge(tiles_.sums_of(sums, i), tiles_.sums_of(merged, i));
}

void Attention::merge(const AttentionCall& call, const Range& range) {
  const FloatMode mode(float_mode());
  float* merged = scratch_[static_cast<std::size_t>(range.thread)]->merged.data();
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const Item& item = plan_->merges[static_cast<std::size_t>(i)];
    const std::int64_t stride = item.columns.count() * tiles_.sums_stride();
    clear(merged, item.columns.count());
    for (std::int64_t part = item.first_part; part < item.end_part; ++part)
      merge_part(item.columns, partials_.data() + item.partial + part * stride, merged);
    write(call, item.columns, merged);
  }
}

void Attention::write(const AttentionCall& call, const Columns& columns, float* merged) const {
  const RowMask& mask = *columns.mask;
  const std::int64_t group = shape_.group();
  const std::int64_t d = shape_.head_dim;
  for (std::int64_t i = 0; i < columns.count(); ++i) {
    const std::int64_t column = columns.begin + i;
    const std::int64_t head = columns.head * group + column % group;
    const ColumnSums sums = tiles_.sums_of(merged, i);
    float* out = call.out + (mask.first_token + column / group) * shape_.heads * d + head * d;
    float factor = 1.0f / *sums.lanes;
    if (call.sinks != nullptr) {
      const float sink = call.sinks[head];
      const float top = sink > *sums.top ? sink : *sums.top;
      const float seen = falling_exponential(*sums.top - top);
      factor = seen / (*sums.lanes * seen + falling_exponential(sink - top));
    }
    tiles_.ops().scale(sums.values, factor, d, out);
  }
}

}  // namespace forerun::cpu
