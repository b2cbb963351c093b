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
                      DraftHead* head) {
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
  return chain;
}

// probs[i] has no rows where chain i wants none.
std::vector<std::vector<std::int64_t>> run(Decoder& decoder, ThreadPool& pool, KvCache& cache,
                                           std::vector<DraftChain> chains,
                                           const std::vector<Rows>& probs, std::int64_t vocab,
                                           std::optional<ViewArguments> view) {
  if (probs.size() != chains.size())
    throw std::invalid_argument("there must be probs for each chain");
  for (std::size_t i = 0; i < chains.size(); ++i) {
    if (probs[i].shape(0) == 0) continue;
    const bool fits = static_cast<std::int64_t>(probs[i].shape(0)) >= chains[i].limit &&
                      static_cast<std::int64_t>(probs[i].shape(1)) == vocab;
    if (!fits) throw std::invalid_argument("probs has a shape that does not fit");
    chains[i].probs = probs[i].data();
  }
  const nb::gil_scoped_release released;
  const Forward forward(pool);
  draft_chains(decoder, cache, chains, vocab, view_of(view), pool, scratches<float>());
  std::vector<std::vector<std::int64_t>> tokens;
  for (DraftChain& chain : chains) tokens.push_back(std::move(chain.tokens));
  return tokens;
}

}  // namespace

void bind_draft_chains(nb::module_& m) {
  nb::class_<DraftHead>(m, "DraftHead", "The output head for a part of a decoder's vocabulary.")
      .def(nb::init<Decoder&, std::int64_t>(), nb::arg("decoder"), nb::arg("first"),
           nb::keep_alive<1, 2>(), "Knows the decoder's first tokens.")
      .def("add", &DraftHead::add, nb::arg("tokens"), "Make more tokens known.");
  nb::class_<DraftChain>(m, "DraftChain", "One chain to draft.")
      .def(
          "__init__",
          [](DraftChain* self, std::int64_t row, std::vector<std::int64_t> pending,
             std::int64_t limit, std::vector<std::int64_t> stops, const std::string& drawing,
             const WarpArguments& warp, std::uint64_t seed, std::int64_t committed,
             DraftHead* head) {
            new (self) DraftChain(make_chain(row, std::move(pending), limit, std::move(stops),
                                             drawing, warp, seed, committed, head));
          },
          nb::arg("row"), nb::arg("pending"), nb::arg("limit"), nb::arg("stops"),
          nb::arg("drawing"), nb::arg("warp"), nb::arg("seed"), nb::arg("committed"),
          nb::arg("head").none() = nb::none(), nb::keep_alive<1, 10>());
  m.def("draft_chains", &run, nb::arg("decoder"), nb::arg("pool"), nb::arg("cache"),
        nb::arg("chains"), nb::arg("probs").noconvert(), nb::arg("vocab"), nb::arg("view").none(),
        "Draft all chains side by side; the tokens of each.");
}

}  // namespace forerun::cpu
