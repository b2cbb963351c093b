// Models, caches and threads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "bindings.h"
#include "forerun/cpu_level.h"
#include "forerun/decoder.h"
#include "forerun/errors.h"
#include "forerun/thread_pool.h"
#include "model_arguments.h"

namespace forerun::cpu {
namespace {

SourceType source_type(const std::string& name) {
  if (name == "float32") return SourceType::fp32;
  if (name == "bfloat16") return SourceType::bf16;
  if (name == "float16") return SourceType::fp16;
  throw std::invalid_argument("weights are float32, bfloat16 or float16, not " + name);
}

using Layers = std::pair<std::int64_t, std::int64_t>;

DecoderShape shape_of(const nb::dict& v) {
  DecoderShape s;
  s.precision = precision_named(take<std::string>(v, "precision"));
  s.head_precision = precision_named(take<std::string>(v, "head_precision"));
  using Formats = std::vector<std::pair<std::int64_t, std::string>>;
  for (const auto& [name, formats] : take<std::map<std::string, Formats>>(v, "precisions")) {
    for (const auto& [rows, precision] : formats)
      s.precisions[name].push_back({rows, precision_named(precision)});
  }
  s.group = take<int>(v, "group");
  s.vocab = take<std::int64_t>(v, "vocab_size");
  s.hidden = take<std::int64_t>(v, "hidden_size");
  s.intermediate = take<std::int64_t>(v, "intermediate_size");
  s.layers = take<std::int64_t>(v, "num_layers");
  s.heads = take<std::int64_t>(v, "num_heads");
  s.kv_heads = take<std::int64_t>(v, "num_kv_heads");
  s.head_dim = take<std::int64_t>(v, "head_dim");
  s.max_context = take<std::int64_t>(v, "max_context");
  s.norm_eps = take<float>(v, "norm_eps");
  s.activation = activation_named(take<std::string>(v, "activation"));
  s.experts = take<std::int64_t>(v, "num_experts");
  s.experts_used = take<std::int64_t>(v, "experts_per_token");
  s.norm_topk = take<bool>(v, "norm_topk_prob");
  s.gated = take<bool>(v, "gated");
  s.layer_norm = take<bool>(v, "layer_norm");
  const std::string head_norm = take<std::string>(v, "query_key_norm");
  if (!head_norm.empty()) s.query_key_norm = head_norm == "head" ? HeadNorm::head : HeadNorm::whole;
  s.norm_before = take<bool>(v, "norm_before");
  s.norm_after = take<bool>(v, "norm_after");
  s.parallel = take<bool>(v, "parallel");
  s.qkv_bias = take<bool>(v, "attention_bias");
  s.output_bias = take<bool>(v, "output_bias");
  s.mlp_bias = take<bool>(v, "mlp_bias");
  s.sinks = take<bool>(v, "sinks");
  s.tied = take<bool>(v, "tied");
  s.learned_positions = take<bool>(v, "learned_positions");
  for (const auto& [window, rope] : take<std::vector<Layers>>(v, "each"))
    s.each.push_back({window, rope});
  for (auto& [frequencies, scale] :
       take<std::vector<std::pair<std::vector<float>, float>>>(v, "ropes"))
    s.ropes.push_back({frequencies, scale});
  s.rope_pairs = take<bool>(v, "rope_pairs");
  s.attention_scale = take<float>(v, "attention_scale");
  s.score_cap = take<float>(v, "score_cap");
  s.logit_cap = take<float>(v, "logit_cap");
  s.embedding_scale = take<float>(v, "embedding_scale");
  s.residual_scale = take<float>(v, "residual_scale");
  s.logit_scale = take<float>(v, "logit_scale");
  return s;
}

// Layers, and an array with the states of all of them side by side.
using HiddenOut = std::pair<std::vector<std::int64_t>, std::optional<Array<float, 3>>>;

// What a forward reads and writes beside its tokens, checked.
struct Arrays {
  std::optional<Array<float, 3>> logits;
  bool last;
  std::optional<Array<const float, 3>> hidden_in;
  const HiddenOut& hidden_out;

  void put(ForwardCall& call, const DecoderShape& shape) const {
    const auto rows = static_cast<std::int64_t>(call.rows.size());
    call.logits_for = !logits ? LogitsFor::none : last ? LogitsFor::last : LogitsFor::all;
    if (logits) {
      expect(is_shaped(*logits, {rows, last ? 1 : call.width, shape.vocab}), "logits");
      call.logits = logits->data();
    }
    if (hidden_in) {
      expect(is_shaped(*hidden_in, {rows, call.width, shape.hidden}), "hidden_in");
      call.hidden_in = hidden_in->data();
    }
    const auto& [layers, states] = hidden_out;
    if (!states) return;
    call.hidden_stride = static_cast<std::int64_t>(layers.size()) * shape.hidden;
    expect(is_shaped(*states, {rows, call.width, call.hidden_stride}), "hidden_out");
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const auto place = static_cast<std::int64_t>(i) * shape.hidden;
      call.hidden_out.emplace_back(layers[i], states->data() + place);
    }
  }
};

void forward(Decoder& decoder, ThreadPool& pool, KvCache& cache, std::vector<std::int64_t> rows,
             const Lists& token_ids, const Lists& positions, Layers layers,
             std::optional<Array<float, 3>> logits, bool last,
             std::optional<Array<const bool, 3>> tree_mask,
             std::optional<Array<const float, 3>> hidden_in, const HiddenOut& hidden_out,
             std::optional<ViewArguments> view, std::optional<Array<float, 3>> queries) {
  const BatchArguments batch(std::move(rows), positions, std::move(tree_mask));
  expect(token_ids.size() == positions.size(), "token_ids");
  for (std::size_t row = 0; row < positions.size(); ++row) {
    expect(positions[row].size() == token_ids[row].size(), "positions");
  }
  const std::vector<std::int64_t> ids = batch.padded(token_ids, 0);
  ForwardCall call;
  batch.put(call);
  call.cache = &cache;
  call.token_ids = ids.data();
  std::tie(call.first_layer, call.end_layer) = layers;
  call.view = view_of(view);
  Arrays{std::move(logits), last, std::move(hidden_in), hidden_out}.put(call, decoder.shape());
  if (queries) {
    const DecoderShape& shape = decoder.shape();
    std::int64_t tokens = 0;
    for (const auto& row : positions) tokens += static_cast<std::int64_t>(row.size());
    const std::int64_t run = layers.second - layers.first;
    expect(is_shaped(*queries, {run, tokens, shape.heads * shape.head_dim}), "queries");
    call.queries = queries->data();
  }
  const auto held = lock(cache);
  const nb::gil_scoped_release released;
  const Forward forward(pool);
  decoder.forward(call, pool);
}

std::int64_t count_of(const Array<const float, 2>& states) {
  return static_cast<std::int64_t>(states.shape(0));
}

void embed(const Decoder& decoder, const Array<const std::int64_t, 1>& token_ids,
           const Array<float, 2>& out) {
  const auto tokens = static_cast<std::int64_t>(token_ids.shape(0));
  expect(is_shaped(out, {tokens, decoder.shape().hidden}), "out");
  decoder.embed(token_ids.data(), tokens, out.data());
}

void final_norm(Decoder& decoder, ThreadPool& pool, const Array<const float, 2>& hidden,
                const Array<float, 2>& out) {
  const std::int64_t tokens = count_of(hidden);
  expect(is_shaped(hidden, {tokens, decoder.shape().hidden}), "hidden");
  expect(is_shaped(out, {tokens, decoder.shape().hidden}), "out");
  const nb::gil_scoped_release released;
  const Forward forward(pool);
  decoder.final_norm(hidden.data(), tokens, out.data(), pool);
}

void lm_head(Decoder& decoder, ThreadPool& pool, const Array<const float, 2>& hidden,
             const Array<float, 2>& logits) {
  const std::int64_t tokens = count_of(hidden);
  expect(is_shaped(hidden, {tokens, decoder.shape().hidden}), "hidden");
  expect(is_shaped(logits, {tokens, decoder.shape().vocab}), "logits");
  const nb::gil_scoped_release released;
  const Forward forward(pool);
  decoder.lm_head(hidden.data(), tokens, logits.data(), pool);
}

void trim(KvCache& cache, std::int64_t row, std::int64_t length, std::optional<Layers> layers) {
  const auto held = lock(cache);
  const Layers some = layers.value_or(Layers{0, cache.shape().layers});
  const nb::gil_scoped_release released;
  cache.trim(row, length, some.first, some.second);
}

void read_row(const KvCache& cache, std::int64_t layer, std::int64_t row, std::int64_t length,
              const Array<std::uint8_t, 1>& out) {
  expect(is_shaped(out, {cache.row_bytes(layer, row, length)}), "out");
  const auto held = lock(cache);
  const nb::gil_scoped_release released;
  cache.read_row(layer, row, length, out.data());
}

void write_row(KvCache& cache, std::int64_t layer, std::int64_t row, std::int64_t length,
               const Array<const std::uint8_t, 1>& tiles) {
  expect(is_shaped(tiles, {cache.row_bytes(layer, row, length)}), "tiles");
  const auto held = lock(cache);
  const nb::gil_scoped_release released;
  cache.write_row(layer, row, length, tiles.data());
}

// The slots [layers, kv_heads, n] of a row that stay.
void evict(KvCache& cache, ThreadPool& pool, std::int64_t row,
           const Array<const std::int64_t, 3>& slots) {
  const auto count = static_cast<std::int64_t>(slots.shape(2));
  expect(is_shaped(slots, {cache.shape().layers, cache.shape().kv_heads, count}), "slots");
  const auto held = lock(cache);
  const nb::gil_scoped_release released;
  const Forward forward(pool);
  cache.evict(row, slots.data(), count, pool);
}

// Keys or values [kv_heads, n, head_dim] of the first n slots of a row.
void read(const KvCache& cache, ThreadPool& pool, std::int64_t layer, std::int64_t row, bool values,
          const Array<float, 3>& out) {
  const KvCache::Shape& shape = cache.shape();
  const auto held = lock(cache);
  cache.check_row(row);
  expect(layer >= 0 && layer < shape.layers, "layer");
  const auto count = static_cast<std::int64_t>(out.shape(1));
  expect(count <= cache.length(layer, row), "out");
  expect(is_shaped(out, {shape.kv_heads, count, shape.head_dim}), "out");
  const nb::gil_scoped_release released;
  const Forward forward(pool);
  pool.for_ranges(shape.kv_heads * count, kTileSlots, [&](const Range& r) {
    for (std::int64_t i = r.begin; i < r.end; ++i) {
      float* to = out.data() + i * shape.head_dim;
      cache.read(layer, row, i / count, i % count, values ? nullptr : to, values ? to : nullptr);
    }
  });
}

// `address` points to count * cols values, which the caller keeps alive.
void load(Decoder& decoder, ThreadPool& pool, const std::string& name, std::int64_t first,
          std::int64_t count, std::int64_t cols, std::uintptr_t address, const std::string& type) {
  const SourceType source = source_type(type);
  const nb::gil_scoped_release released;
  decoder.load(name, first, count, cols, reinterpret_cast<const void*>(address), source, pool);
}

void load_codes(Decoder& decoder, ThreadPool& pool, const std::string& name, std::int64_t first,
                std::int64_t count, std::int64_t cols, std::uintptr_t codes, std::uintptr_t scales,
                std::uintptr_t offsets) {
  const nb::gil_scoped_release released;
  decoder.load_codes(
      name, first, count, cols,
      {reinterpret_cast<const std::uint8_t*>(codes), reinterpret_cast<const std::uint16_t*>(scales),
       reinterpret_cast<const std::uint16_t*>(offsets)},
      pool);
}

}  // namespace

void bind_model(nb::module_& m) {
  nb::exception<CacheError>(m, "CacheError", PyExc_RuntimeError);
  nb::exception<RowError>(m, "RowError", PyExc_ArithmeticError);
  m.def("level", [] { return level_name(best_level()); }, "The instruction set in use.");

  nb::class_<ThreadPool>(m, "ThreadPool", "Threads that models share, one forward at a time.")
      .def(nb::init<int>(), nb::arg("threads"))
      .def_prop_ro("threads", &ThreadPool::size);

  nb::class_<KvCache>(m, "KvCache", "Keys and values of a batch of rows.")
      .def_prop_ro("rows", [](const KvCache& c) { return c.shape().rows; })
      .def_prop_ro("capacity", [](const KvCache& c) { return c.shape().capacity; })
      .def_prop_ro("nbytes", &KvCache::bytes)
      .def_prop_ro("precision",
                   [](const KvCache& c) { return precision_name(c.shape().precision); })
      .def("read", &read, nb::arg("pool"), nb::arg("layer"), nb::arg("row"), nb::arg("values"),
           nb::arg("out").noconvert(), "Keys or values of the first slots of a row, of all heads.")
      .def(
          "length",
          [](const KvCache& c, std::int64_t row) {
            c.check_row(row);
            return c.length(row);
          },
          nb::arg("row"))
      .def(
          "layer_length",
          [](const KvCache& c, std::int64_t layer, std::int64_t row) {
            c.check_row(row);
            if (layer < 0 || layer >= c.shape().layers) throw CacheError("there is no such layer");
            return c.length(layer, row);
          },
          nb::arg("layer"), nb::arg("row"))
      .def_prop_ro("layers", [](const KvCache& c) { return c.shape().layers; })
      .def_prop_ro("kv_heads", [](const KvCache& c) { return c.shape().kv_heads; })
      .def_prop_ro("head_dim", [](const KvCache& c) { return c.shape().head_dim; })
      .def_prop_ro("precision",
                   [](const KvCache& c) { return precision_name(c.shape().precision); })
      .def_prop_ro("tile_bytes", &KvCache::tile_bytes)
      .def("row_bytes", &KvCache::row_bytes, nb::arg("layer"), nb::arg("row"), nb::arg("length"))
      .def("read_row", &read_row, nb::arg("layer"), nb::arg("row"), nb::arg("length"),
           nb::arg("out").noconvert())
      .def("write_row", &write_row, nb::arg("layer"), nb::arg("row"), nb::arg("length"),
           nb::arg("tiles"))
      .def(
          "keep",
          [](KvCache& c, std::int64_t row, std::int64_t start,
             const std::vector<std::int64_t>& slots) {
            const auto held = lock(c);
            c.keep(row, start, slots);
          },
          nb::arg("row"), nb::arg("start"), nb::arg("slots"))
      .def("evict", &evict, nb::arg("pool"), nb::arg("row"), nb::arg("slots").noconvert(),
           "Of all slots of a row, each layer and head keeps its own.")
      .def(
          "copy",
          [](const KvCache& c) {
            const auto held = lock(c);
            return c.copy().release();
          },
          nb::rv_policy::take_ownership, "Another cache that holds the same.")
      .def("trim", &trim, nb::arg("row"), nb::arg("length"), nb::arg("layers") = nb::none());

  nb::class_<Decoder>(m, "Decoder", "A decoder-only transformer.")
      .def(
          "__init__",
          [](Decoder* self, const nb::dict& shape, const std::string& level) {
            new (self) Decoder(shape_of(shape), level_named(level));
          },
          nb::arg("shape"), nb::arg("level") = "")
      .def_prop_ro("weight_bytes", &Decoder::weight_bytes)
      .def_prop_ro("layer_bytes", &Decoder::layer_bytes)
      .def_prop_ro("head_bytes", &Decoder::head_bytes)
      .def(
          "new_cache",
          [](const Decoder& d, std::int64_t rows, std::int64_t capacity,
             const std::string& precision) {
            KvCache::Shape shape = d.cache_shape(rows, capacity);
            if (!precision.empty()) shape.precision = precision_named(precision);
            return new KvCache(shape);
          },
          nb::arg("rows"), nb::arg("capacity"), nb::arg("precision") = "",
          nb::rv_policy::take_ownership)
      .def("load", &load, nb::arg("pool"), nb::arg("name"), nb::arg("first"), nb::arg("count"),
           nb::arg("cols"), nb::arg("address"), nb::arg("type"))
      .def("load_codes", &load_codes, nb::arg("pool"), nb::arg("name"), nb::arg("first"),
           nb::arg("count"), nb::arg("cols"), nb::arg("codes"), nb::arg("scales"),
           nb::arg("offsets"))
      .def("forward", &forward, nb::arg("pool"), nb::arg("cache"), nb::arg("rows"),
           nb::arg("token_ids"), nb::arg("positions"), nb::arg("layers"),
           nb::arg("logits").none().noconvert(), nb::arg("last"), nb::arg("tree_mask").none(),
           nb::arg("hidden_in").none(), nb::arg("hidden_out").noconvert(), nb::arg("view").none(),
           nb::arg("queries").noconvert() = nb::none())
      .def("embed", &embed, nb::arg("token_ids"), nb::arg("out").noconvert())
      .def("final_norm", &final_norm, nb::arg("pool"), nb::arg("hidden"),
           nb::arg("out").noconvert())
      .def("lm_head", &lm_head, nb::arg("pool"), nb::arg("hidden"), nb::arg("logits").noconvert());
}

}  // namespace forerun::cpu
