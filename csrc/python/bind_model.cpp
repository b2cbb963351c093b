// Models, caches and threads. What is written into is never converted: a copy would be filled and lost.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "bindings.h"
#include "forerun/cpu_level.h"
#include "forerun/decoder.h"
#include "forerun/errors.h"
#include "forerun/gated_mlp.h"
#include "runtime.h"

namespace nb = nanobind;

namespace forerun::cpu {
namespace {

using Ids = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Mask = nb::ndarray<const bool, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using States = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Level level_named(const std::string& name) {
  for (const Level level : {Level::portable, Level::avx2, Level::avx512}) {
    if (name == level_name(level)) return level;
  }
  throw std::invalid_argument("no instruction set " + name);
}

Activation activation_named(const std::string& name) {
  if (name == "silu") return Activation::silu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  if (name == "gelu_erf") return Activation::gelu_erf;
  if (name == "relu") return Activation::relu;
  throw std::invalid_argument("no activation " + name);
}

SourceType source_type(const std::string& name) {
  if (name == "float32") return SourceType::fp32;
  if (name == "bfloat16") return SourceType::bf16;
  if (name == "float16") return SourceType::fp16;
  throw std::invalid_argument("weights are float32, bfloat16 or float16, not " + name);
}

template <class T>
T take(const nb::dict& values, const char* name) {
  return nb::cast<T>(values[name]);
}

DecoderShape shape_of(const nb::dict& v) {
  DecoderShape s;
  s.precision = precision_named(take<std::string>(v, "precision"));
  s.head_precision = precision_named(take<std::string>(v, "head_precision"));
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
  s.gated = take<bool>(v, "gated");
  s.layer_norm = take<bool>(v, "layer_norm");
  s.query_key_norm = take<bool>(v, "query_key_norm");
  s.qkv_bias = take<bool>(v, "attention_bias");
  s.output_bias = take<bool>(v, "output_bias");
  s.mlp_bias = take<bool>(v, "mlp_bias");
  s.tied = take<bool>(v, "tied");
  s.windows = take<std::vector<std::int64_t>>(v, "windows");
  s.inverse_frequencies = take<std::vector<float>>(v, "inverse_frequencies");
  s.rotary_scale = take<float>(v, "rotary_scale");
  return s;
}

void expect(bool fits, const char* what) {
  if (!fits) throw std::invalid_argument(std::string(what) + " has a shape that does not fit");
}

LogitsFor logits_for(const std::optional<Out>& logits, std::size_t rows, std::size_t width, bool last,
                     const Decoder& decoder) {
  if (!logits) return LogitsFor::none;
  const auto vocab = static_cast<std::size_t>(decoder.shape().vocab);
  expect(logits->shape(0) == rows && logits->shape(1) == (last ? 1 : width) && logits->shape(2) == vocab,
         "logits");
  return last ? LogitsFor::last : LogitsFor::all;
}

using Layers = std::pair<std::int64_t, std::int64_t>;
using HiddenOut = std::vector<std::pair<std::int64_t, Out>>;

// The parts of a call that come as arrays, checked.
struct Arrays {
  std::optional<Out> logits;
  bool last;
  std::optional<Mask> tree_mask;
  std::optional<Floats> hidden_in;
  const HiddenOut& hidden_out;

  void put(ForwardCall& call, const Decoder& decoder, Layers layers) const {
    const std::size_t batch = call.rows.size();
    const auto width = static_cast<std::size_t>(call.width);
    const auto is_hidden = [&](const auto& a) {
      return a.shape(0) == batch && a.shape(1) == width &&
             a.shape(2) == static_cast<std::size_t>(decoder.shape().hidden);
    };
    call.first_layer = layers.first;
    call.end_layer = layers.second;
    call.logits_for = logits_for(logits, batch, width, last, decoder);
    if (logits) call.logits = logits->data();
    if (tree_mask) {
      expect(tree_mask->shape(0) == batch && tree_mask->shape(1) == width && tree_mask->shape(2) >= width,
             "tree_mask");
      call.tree_mask = reinterpret_cast<const std::uint8_t*>(tree_mask->data());
      call.mask_columns = static_cast<std::int64_t>(tree_mask->shape(2));
    }
    if (hidden_in) {
      expect(is_hidden(*hidden_in), "hidden_in");
      call.hidden_in = hidden_in->data();
    }
    for (const auto& [layer, out] : hidden_out) {
      expect(is_hidden(out), "hidden_out");
      call.hidden_out.emplace_back(layer, out.data());
    }
  }
};

void run(Decoder& decoder, Runtime& runtime, const ForwardCall& call) {
  const nb::gil_scoped_release released;
  const Turn turn(runtime);
  decoder.forward(call, runtime.pool);
}

void forward(Decoder& decoder, Runtime& runtime, KvCache& cache, std::vector<std::int64_t> rows,
             const Ids& token_ids, const Ids& positions, Layers layers, std::optional<Out> logits, bool last,
             std::optional<Mask> tree_mask, std::optional<Floats> hidden_in, const HiddenOut& hidden_out) {
  const std::size_t batch = token_ids.shape(0);
  const std::size_t width = token_ids.shape(1);
  expect(rows.size() == batch, "rows");
  expect(positions.shape(0) == batch && positions.shape(1) == width, "positions");
  ForwardCall call;
  call.cache = &cache;
  call.rows = std::move(rows);
  call.width = static_cast<std::int64_t>(width);
  call.token_ids = token_ids.data();
  call.positions = positions.data();
  Arrays{std::move(logits), last, std::move(tree_mask), std::move(hidden_in), hidden_out}.put(call, decoder, layers);
  run(decoder, runtime, call);
}

using Lists = std::vector<std::vector<std::int64_t>>;

// The same for rows of different lengths, as lists; without positions they go on from each row's length in
// the first of the layers that run. Without layers all run.
void forward_lists(Decoder& decoder, Runtime& runtime, KvCache& cache, std::vector<std::int64_t> rows,
                   const Lists& token_ids, const std::optional<Lists>& positions, std::optional<Layers> layers,
                   std::optional<Out> logits, bool last, std::optional<Mask> tree_mask,
                   std::optional<Floats> hidden_in, const HiddenOut& hidden_out) {
  const Layers run_layers = layers.value_or(Layers{0, decoder.shape().layers});
  expect(run_layers.first >= 0 && run_layers.first < cache.shape().layers, "layers");
  expect(rows.size() == token_ids.size() && (!positions || positions->size() == rows.size()), "rows");
  ForwardCall call;
  call.cache = &cache;
  call.rows = std::move(rows);
  for (const auto& some : token_ids) call.width = std::max(call.width, static_cast<std::int64_t>(some.size()));
  const auto total = call.rows.size() * static_cast<std::size_t>(call.width);
  std::vector<std::int64_t> ids(total, 0);
  std::vector<std::int64_t> places(total, -1);
  for (std::size_t b = 0; b < token_ids.size(); ++b) {
    cache.check_row(call.rows[b]);
    const std::size_t first = b * static_cast<std::size_t>(call.width);
    const std::size_t count = token_ids[b].size();
    std::copy(token_ids[b].begin(), token_ids[b].end(), ids.begin() + static_cast<std::ptrdiff_t>(first));
    if (positions) expect((*positions)[b].size() == count, "positions");
    for (std::size_t i = 0; i < count; ++i) {
      const auto next = cache.length(run_layers.first, call.rows[b]) + static_cast<std::int64_t>(i);
      places[first + i] = positions ? (*positions)[b][i] : next;
    }
  }
  call.token_ids = ids.data();
  call.positions = places.data();
  Arrays{std::move(logits), last, std::move(tree_mask), std::move(hidden_in), hidden_out}.put(call, decoder, run_layers);
  run(decoder, runtime, call);
}

void head(Decoder& decoder, Runtime& runtime, const States& hidden, const Logits& logits) {
  const std::size_t tokens = hidden.shape(0);
  expect(hidden.shape(1) == static_cast<std::size_t>(decoder.shape().hidden), "hidden");
  expect(logits.shape(0) == tokens && logits.shape(1) == static_cast<std::size_t>(decoder.shape().vocab), "logits");
  const nb::gil_scoped_release released;
  const Turn turn(runtime);
  decoder.head(hidden.data(), static_cast<std::int64_t>(tokens), logits.data(), runtime.pool);
}

void make_gated_mlp(GatedMlp* self, const Vector& norm, const States& gate, const States& up, const States& down,
                    float norm_eps, const std::string& precision, const std::string& level) {
  const std::size_t hidden = norm.shape(0);
  const std::size_t inner = gate.shape(0);
  expect(gate.shape(1) == hidden, "gate");
  expect(up.shape(0) == inner && up.shape(1) == hidden, "up");
  expect(down.shape(0) == hidden && down.shape(1) == inner, "down");
  if (!(norm_eps >= 0)) throw std::invalid_argument("norm_eps must be 0 or more");
  const GatedMlpSource source = {static_cast<std::int64_t>(hidden), static_cast<std::int64_t>(inner), norm.data(),
                                 gate.data(), up.data(), down.data(), norm_eps};
  new (self) GatedMlp(source, precision_named(precision), level.empty() ? best_level() : level_named(level));
}

void run_gated_mlp(GatedMlp& mlp, Runtime& runtime, const States& x, const Logits& y) {
  const auto width = static_cast<std::size_t>(mlp.hidden());
  expect(x.shape(1) == width, "hidden");
  expect(y.shape(0) == x.shape(0) && y.shape(1) == width, "out");
  const nb::gil_scoped_release released;
  const Turn turn(runtime);
  mlp.run(x.data(), static_cast<std::int64_t>(x.shape(0)), y.data(), runtime.pool);
}

void trim(KvCache& cache, std::int64_t row, std::int64_t length, std::optional<Layers> layers) {
  const Layers some = layers.value_or(Layers{0, cache.shape().layers});
  cache.trim(row, length, some.first, some.second);
}

// `address` points to count * cols values, which the caller keeps alive.
void load(Decoder& decoder, Runtime& runtime, const std::string& name, std::int64_t first,
          std::int64_t count, std::int64_t cols, std::uintptr_t address, const std::string& type) {
  const SourceType source = source_type(type);
  const nb::gil_scoped_release released;
  const std::lock_guard<std::mutex> lock(runtime.mutex);
  decoder.load(name, first, count, cols, reinterpret_cast<const void*>(address), source, runtime.pool);
}

}  // namespace

void bind_model(nb::module_& m) {
  nb::exception<CacheError>(m, "CacheError", PyExc_RuntimeError);
  nb::exception<RowError>(m, "RowError", PyExc_ArithmeticError);
  m.def("level", [] { return level_name(best_level()); }, "The instruction set in use.");

  nb::class_<Runtime>(m, "Runtime", "The threads that all models share.")
      .def(nb::init<int>(), nb::arg("threads"))
      .def_prop_ro("threads", [](const Runtime& r) { return r.pool.size(); });

  nb::class_<KvCache>(m, "KvCache", "Keys and values of a batch of rows.")
      .def_prop_ro("rows", [](const KvCache& c) { return c.shape().rows; })
      .def_prop_ro("capacity", [](const KvCache& c) { return c.shape().capacity; })
      .def_prop_ro("nbytes", &KvCache::bytes)
      .def("length", [](const KvCache& c, std::int64_t row) { c.check_row(row); return c.length(row); }, nb::arg("row"))
      .def("layer_length",
           [](const KvCache& c, std::int64_t layer, std::int64_t row) {
             c.check_row(row);
             if (layer < 0 || layer >= c.shape().layers) throw CacheError("there is no such layer");
             return c.length(layer, row);
           },
           nb::arg("layer"), nb::arg("row"))
      .def("keep", &KvCache::keep, nb::arg("row"), nb::arg("start"), nb::arg("slots"))
      .def("trim", &trim, nb::arg("row"), nb::arg("length"), nb::arg("layers") = nb::none());

  nb::class_<Decoder>(m, "Decoder", "A decoder-only transformer.")
      .def("__init__",
           [](Decoder* self, const nb::dict& shape, const std::string& level) {
             new (self) Decoder(shape_of(shape), level.empty() ? best_level() : level_named(level));
           },
           nb::arg("shape"), nb::arg("level") = "")
      .def_prop_ro("weight_bytes", &Decoder::weight_bytes)
      .def("new_cache",
           [](const Decoder& d, std::int64_t rows, std::int64_t capacity) {
             return new KvCache(d.cache_shape(rows, capacity));
           },
           nb::arg("rows"), nb::arg("capacity"), nb::rv_policy::take_ownership)
      .def("load", &load, nb::arg("runtime"), nb::arg("name"), nb::arg("first"), nb::arg("count"),
           nb::arg("cols"), nb::arg("address"), nb::arg("type"))
      .def("forward", &forward, nb::arg("runtime"), nb::arg("cache"), nb::arg("rows"), nb::arg("token_ids"),
           nb::arg("positions"), nb::arg("layers"), nb::arg("logits").none().noconvert(), nb::arg("last"),
           nb::arg("tree_mask").none(), nb::arg("hidden_in").none(), nb::arg("hidden_out").noconvert())
      .def("forward_lists", &forward_lists, nb::arg("runtime"), nb::arg("cache"), nb::arg("rows"),
           nb::arg("token_ids"), nb::arg("positions").none(), nb::arg("layers").none(), nb::arg("logits").none().noconvert(),
           nb::arg("last"), nb::arg("tree_mask").none(), nb::arg("hidden_in").none(), nb::arg("hidden_out").noconvert())
      .def("head", &head, nb::arg("runtime"), nb::arg("hidden"), nb::arg("logits").noconvert());

  nb::class_<GatedMlp>(m, "GatedMlp", "A gated MLP beside the residual.")
      .def("__init__", &make_gated_mlp, nb::arg("norm"), nb::arg("gate"), nb::arg("up"), nb::arg("down"),
           nb::arg("norm_eps"), nb::arg("precision"), nb::arg("level") = "")
      .def("run", &run_gated_mlp, nb::arg("runtime"), nb::arg("hidden"), nb::arg("out").noconvert());
}

}  // namespace forerun::cpu
