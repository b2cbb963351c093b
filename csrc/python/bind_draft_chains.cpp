// Whole chains of draft steps.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <tuple>

#include "bindings.h"
#include "forerun/draft_chains.h"
#include "forerun/draft_head.h"
#include "forerun/head_chains.h"
#include "forerun/thread_pool.h"
#include "model_arguments.h"
#include "row_arguments.h"

namespace forerun::cpu {
namespace {

using Rows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using WarpArguments = std::tuple<double, std::int64_t, double, double>;

Drawing drawing_named(const std::string& name) {
  if (name == "sampled") return Drawing::sampled;
  if (name == "greedy") return Drawing::greedy;
  if (name == "coupled") return Drawing::coupled;
  throw std::invalid_argument("no way of drawing " + name);
}

// Makes a chain; `probs` [limit, vocab] is kept alive by the caller and filled by draft_chains.
DraftChain make_chain(std::int64_t row, std::vector<std::int64_t> pending, std::int64_t limit,
                      std::vector<std::int64_t> stops, const std::string& drawing,
                      const WarpArguments& warp, std::uint64_t seed, std::int64_t committed,
                      DraftHead* head, double least) {
  DraftChain chain;
  chain.row = row;
  chain.pending = std::move(pending);
  chain.limit = limit;
  chain.stops = std::move(stops);
  chain.draw.drawing = drawing_named(drawing);
  std::tie(chain.draw.warp.temperature, chain.draw.warp.top_k, chain.draw.warp.top_p,
           chain.draw.warp.min_p) = warp;
  chain.draw.seed = seed;
  chain.draw.committed = committed;
  chain.head = head;
  chain.least = least;
  return chain;
}

// probs[i] has no rows where chain i wants none.
void give_probs(std::vector<DraftChain>& chains, const std::vector<Rows>& probs,
                std::int64_t vocab) {
  if (probs.size() != chains.size())
    throw std::invalid_argument("there must be probs for each chain");
  for (std::size_t i = 0; i < chains.size(); ++i) {
    if (probs[i].shape(0) == 0) continue;
    const bool fits = static_cast<std::int64_t>(probs[i].shape(0)) >= chains[i].limit &&
                      static_cast<std::int64_t>(probs[i].shape(1)) == vocab;
    if (!fits) throw std::invalid_argument("probs has a shape that does not fit");
    chains[i].probs = probs[i].data();
  }
}

Lists tokens_of(std::vector<DraftChain>& chains) {
  Lists tokens;
  for (DraftChain& chain : chains) tokens.push_back(std::move(chain.tokens));
  return tokens;
}

Lists run(Decoder& decoder, ThreadPool& pool, KvCache& cache, std::vector<DraftChain> chains,
          const std::vector<Rows>& probs, std::int64_t vocab, std::optional<ViewArguments> view) {
  give_probs(chains, probs, vocab);
  const auto held = lock(cache);
  std::vector<std::unique_lock<std::recursive_mutex>> heads;
  for (const DraftChain& chain : chains) {
    if (chain.head != nullptr) heads.push_back(lock(*chain.head));
  }
  const nb::gil_scoped_release released;
  const Forward forward(pool);
  draft_chains(decoder, cache, chains, vocab, view_of(view), pool, scratches<float>());
  return tokens_of(chains);
}

// A head, and the Python objects that it is made of.
struct BoundHead {
  HeadChains chains;
  std::vector<nb::object> kept;
};

template <class T>
T* part_of(nb::handle object, std::vector<nb::object>& kept) {
  if (object.is_none()) return nullptr;
  kept.push_back(nb::borrow(object));
  return nb::cast<T*>(object);
}

// `embedding` is a decoder or a table.
void make_head(BoundHead* self, const nb::list& state_norms, nb::handle fuse,
               const nb::list& layers, nb::handle norm, nb::handle output,
               std::vector<std::int64_t> token_ids, nb::handle embedding, std::int64_t vocab) {
  HeadParts parts;
  std::vector<nb::object> kept;
  for (nb::handle each : state_norms) parts.state_norms.push_back(part_of<NormModule>(each, kept));
  for (nb::handle each : layers) parts.layers.push_back(part_of<LayerModule>(each, kept));
  parts.fuse = part_of<LinearModule>(fuse, kept);
  parts.norm = part_of<NormModule>(norm, kept);
  parts.output = part_of<LinearModule>(output, kept);
  parts.token_ids = std::move(token_ids);
  parts.vocab = vocab;
  if (nb::isinstance<Decoder>(embedding)) {
    parts.target = part_of<Decoder>(embedding, kept);
  } else {
    const auto table = nb::cast<Array<const float, 2>>(embedding, false);
    expect(parts.fuse != nullptr && is_shaped(table, {vocab, parts.fuse->rows()}), "embedding");
    parts.table = table.data();
    kept.push_back(nb::borrow(embedding));
  }
  new (self) BoundHead{HeadChains(std::move(parts)), std::move(kept)};
}

Lists run_head(BoundHead& head, ThreadPool& pool, const std::vector<KvCache*>& caches,
               std::vector<DraftChain> chains, const std::vector<Rows>& states,
               const std::vector<Rows>& probs) {
  expect(states.size() == chains.size(), "states");
  for (std::size_t i = 0; i < chains.size(); ++i) {
    expect(states[i].shape(0) == chains[i].pending.size() &&
               static_cast<std::int64_t>(states[i].shape(1)) == head.chains.state_size(),
           "states");
    chains[i].states = states[i].data();
  }
  give_probs(chains, probs, head.chains.vocab());
  std::vector<std::unique_lock<std::recursive_mutex>> held;
  for (const KvCache* cache : caches) held.push_back(lock(*cache));
  const nb::gil_scoped_release released;
  const Forward forward(pool);
  head.chains.draft(caches, chains, pool, scratches<float>());
  return tokens_of(chains);
}

}  // namespace

void bind_draft_chains(nb::module_& m) {
  nb::class_<DraftHead>(m, "DraftHead", "The output head for a part of a decoder's vocabulary.")
      .def(nb::init<Decoder&, std::int64_t>(), nb::arg("decoder"), nb::arg("first"),
           nb::keep_alive<1, 2>(), "Knows the decoder's first tokens.")
      .def(
          "add",
          [](DraftHead& head, const std::vector<std::int64_t>& tokens) {
            const auto held = lock(head);
            head.add(tokens);
          },
          nb::arg("tokens"), "Make more tokens known.");
  nb::class_<DraftChain>(m, "DraftChain", "One chain to draft.")
      .def(
          "__init__",
          [](DraftChain* self, std::int64_t row, std::vector<std::int64_t> pending,
             std::int64_t limit, std::vector<std::int64_t> stops, const std::string& drawing,
             const WarpArguments& warp, std::uint64_t seed, std::int64_t committed, DraftHead* head,
             double least) {
            new (self) DraftChain(make_chain(row, std::move(pending), limit, std::move(stops),
                                             drawing, warp, seed, committed, head, least));
          },
          nb::arg("row"), nb::arg("pending"), nb::arg("limit"), nb::arg("stops"),
          nb::arg("drawing"), nb::arg("warp"), nb::arg("seed"), nb::arg("committed"),
          nb::arg("head").none() = nb::none(), nb::arg("least") = 0.0, nb::keep_alive<1, 10>());
  m.def("draft_chains", &run, nb::arg("decoder"), nb::arg("pool"), nb::arg("cache"),
        nb::arg("chains"), nb::arg("probs").noconvert(), nb::arg("vocab"), nb::arg("view").none(),
        "Draft all chains side by side; the tokens of each.");
  nb::class_<BoundHead>(m, "HeadChains", "A trained head that drafts whole chains.")
      .def("__init__", &make_head, nb::arg("state_norms"), nb::arg("fuse"), nb::arg("layers"),
           nb::arg("norm").none(), nb::arg("output"), nb::arg("token_ids"), nb::arg("embedding"),
           nb::arg("vocab"))
      .def("draft", &run_head, nb::arg("pool"), nb::arg("caches"), nb::arg("chains"),
           nb::arg("states").noconvert(), nb::arg("probs").noconvert(),
           "Draft all chains side by side from states of the target; the tokens of each.");
}

}  // namespace forerun::cpu
