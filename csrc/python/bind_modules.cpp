// Parts of a model, to compose in Python.
#include "forerun/modules.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>

#include "bindings.h"
#include "model_arguments.h"

namespace forerun::cpu {
namespace {

// Values that one thread works through sooner than others wake.
constexpr std::int64_t kAlone = 8192;

using Matrix = Array<const float, 2>;
using Vector = Array<const float, 1>;
using OptionalVector = std::optional<Vector>;
// Of any number of dimensions, of which the last is a token's.
using States = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using StatesOut = nb::ndarray<float, nb::c_contig, nb::device::cpu>;

std::int64_t rows_of(const Matrix& m) { return static_cast<std::int64_t>(m.shape(0)); }
std::int64_t cols_of(const Matrix& m) { return static_cast<std::int64_t>(m.shape(1)); }

std::vector<float> values_of(const OptionalVector& v) {
  if (!v) return {};
  return {v->data(), v->data() + v->shape(0)};
}

LinearSource source_of(const Matrix& weight, const OptionalVector& bias) {
  const std::int64_t rows = rows_of(weight);
  if (bias) expect(is_shaped(*bias, {rows}), "bias");
  return {rows, cols_of(weight), weight.data(), bias ? bias->data() : nullptr};
}

void make_linear(LinearModule* self, ThreadPool& pool, const Matrix& weight,
                 const OptionalVector& bias, const OptionalVector& norm, float eps,
                 const std::string& precision, int group, const std::string& level) {
  const LinearSource source = source_of(weight, bias);
  const Packing packing{precision_named(precision), group, level_named(level)};
  const nb::gil_scoped_release released;
  const Forward forward(pool);
  new (self) LinearModule(source, packing, pool, values_of(norm), eps);
}

// The size of a token's values; 0 for an array without dimensions.
template <class Array>
std::int64_t token_size(const Array& states) {
  return states.ndim() == 0 ? 0 : static_cast<std::int64_t>(states.shape(states.ndim() - 1));
}

// The tokens of x with `size` values each, for which `out` has room, `out_size` values each.
std::int64_t tokens_of(const States& x, std::int64_t size, const StatesOut& out,
                       std::int64_t out_size) {
  expect(size > 0 && token_size(x) == size, "x");
  const std::int64_t tokens = static_cast<std::int64_t>(x.size()) / size;
  expect(token_size(out) == out_size && static_cast<std::int64_t>(out.size()) == tokens * out_size,
         "out");
  return tokens;
}

void run_linear(LinearModule& linear, ThreadPool& pool, const States& x, const StatesOut& out) {
  const std::int64_t tokens = tokens_of(x, linear.cols(), out, linear.rows());
  const nb::gil_scoped_release released;
  const Forward forward(pool, linear.rows() * linear.cols() > kAlone);
  linear.run(x.data(), tokens, out.data(), pool);
}

void run_norm(const NormModule& norm, ThreadPool& pool, const States& x, const StatesOut& out) {
  const std::int64_t tokens = tokens_of(x, norm.size(), out, norm.size());
  const nb::gil_scoped_release released;
  const Forward forward(pool, tokens * norm.size() > kAlone);
  norm.run(x.data(), tokens, out.data(), pool);
}

void activate(ThreadPool& pool, const std::string& name, const States& x, const StatesOut& out,
              const std::string& level) {
  const std::int64_t size = token_size(out);
  const bool gated = token_size(x) == 2 * size;
  const std::int64_t tokens = tokens_of(x, gated ? 2 * size : size, out, size);
  const Activation activation = activation_named(name);
  const Level limit = level_named(level);
  const nb::gil_scoped_release released;
  const Forward forward(pool, tokens * size > kAlone);
  run_activation(activation, gated, x.data(), tokens, size, out.data(), limit, pool);
}

// An array among weights by name, which stays theirs; none where it is not there.
template <class T>
std::optional<T> given(const nb::dict& weights, const std::string& name) {
  if (!weights.contains(name.c_str())) return std::nullopt;
  T array;
  expect(nb::try_cast(weights[name.c_str()], array, false), name.c_str());
  return array;
}

LinearSource matrix_of(const nb::dict& weights, const std::string& name) {
  const auto weight = given<Matrix>(weights, name);
  expect(weight.has_value(), name.c_str());
  return source_of(*weight, given<Vector>(weights, name + "_bias"));
}

std::vector<float> vector_of(const nb::dict& weights, const std::string& name) {
  return values_of(given<Vector>(weights, name));
}

// With an MLP where an activation is named.
LayerSource layer_of(const nb::dict& shape, const nb::dict& weights,
                     const std::string& activation) {
  LayerSource source;
  source.heads = take<std::int64_t>(shape, "num_heads");
  source.kv_heads = take<std::int64_t>(shape, "num_kv_heads");
  source.head_dim = take<std::int64_t>(shape, "head_dim");
  source.window = take<std::int64_t>(shape, "window");
  source.norm_eps = take<float>(shape, "norm_eps");
  source.inverse_frequencies = take<std::vector<float>>(shape, "inverse_frequencies");
  source.rotary_scale = take<float>(shape, "rotary_scale");
  source.qkv = matrix_of(weights, "qkv");
  source.output = matrix_of(weights, "output");
  source.q_norm = vector_of(weights, "q_norm");
  source.k_norm = vector_of(weights, "k_norm");
  if (activation.empty()) {
    source.input_norms.resize(1);
    return source;
  }
  for (int i = 0; i < take<int>(shape, "inputs"); ++i) {
    source.input_norms.push_back(vector_of(weights, "input_norm." + std::to_string(i)));
  }
  source.normed_residual = take<bool>(shape, "normed_residual");
  source.mlp = MlpSource{vector_of(weights, "mlp_norm"), activation_named(activation),
                         matrix_of(weights, "gate_up"), matrix_of(weights, "down")};
  return source;
}

void make_layer(LayerModule* self, ThreadPool& pool, const nb::dict& shape, const nb::dict& weights,
                const std::string& activation, const std::string& precision, int group,
                const std::string& level) {
  LayerSource source = layer_of(shape, weights, activation);
  const Packing packing{precision_named(precision), group, level_named(level)};
  const nb::gil_scoped_release released;
  const Forward forward(pool);
  new (self) LayerModule(std::move(source), packing, pool);
}

// What a layer reads of the tokens of a batch.
std::vector<LayerInput> inputs_of(const std::vector<Array<const float, 3>>& x,
                                  const BatchArguments& arguments) {
  std::vector<LayerInput> inputs;
  for (const auto& states : x) {
    const auto size = static_cast<std::int64_t>(states.shape(2));
    expect(is_shaped(states, {arguments.size(), arguments.width(), size}), "x");
    inputs.push_back({states.data(), size});
  }
  return inputs;
}

void run_layer(LayerModule& layer, ThreadPool& pool, KvCache& cache, std::vector<std::int64_t> rows,
               const Lists& positions, const std::vector<Array<const float, 3>>& x,
               std::optional<Array<const bool, 3>> tree_mask, const Array<float, 3>& out) {
  const BatchArguments arguments(std::move(rows), positions, std::move(tree_mask));
  const BatchRows batch = arguments.of(cache);
  const std::vector<LayerInput> inputs = inputs_of(x, arguments);
  expect(is_shaped(out, {arguments.size(), arguments.width(), layer.hidden()}), "out");
  const auto held = lock(cache);
  const nb::gil_scoped_release released;
  const Forward forward(pool);
  layer.run(batch, inputs, out.data(), pool);
}

}  // namespace

void bind_modules(nb::module_& m) {
  nb::class_<LinearModule>(m, "Linear",
                           "A matrix [rows, cols], packed, perhaps a bias, and a norm.")
      .def("__init__", &make_linear, nb::arg("pool"), nb::arg("weight"), nb::arg("bias").none(),
           nb::arg("norm").none(), nb::arg("eps"), nb::arg("precision"), nb::arg("group") = 0,
           nb::arg("level") = "")
      .def_prop_ro("weight_bytes", &LinearModule::weight_bytes)
      .def("run", &run_linear, nb::arg("pool"), nb::arg("x"), nb::arg("out").noconvert(),
           "From [..., cols] to [..., rows].");

  nb::class_<NormModule>(m, "Norm", "By the root mean square or, with a bias, a layer norm.")
      .def(
          "__init__",
          [](NormModule* self, const Vector& weight, const OptionalVector& bias, float eps,
             const std::string& level) {
            new (self) NormModule(values_of(weight), values_of(bias), eps, level_named(level));
          },
          nb::arg("weight"), nb::arg("bias").none(), nb::arg("eps"), nb::arg("level") = "")
      .def("run", &run_norm, nb::arg("pool"), nb::arg("x"), nb::arg("out").noconvert(),
           "From [..., size] to the same.");

  m.def("activate", &activate, nb::arg("pool"), nb::arg("name"), nb::arg("x"),
        nb::arg("out").noconvert(), nb::arg("level") = "",
        "act(x) of [..., size] or, where x is twice as wide, act(first half) * second half.");

  nb::class_<LayerModule>(m, "Layer", "Self-attention or a decoder layer, with caches of its own.")
      .def("__init__", &make_layer, nb::arg("pool"), nb::arg("shape"), nb::arg("weights"),
           nb::arg("activation"), nb::arg("precision"), nb::arg("group") = 0, nb::arg("level") = "")
      .def_prop_ro("weight_bytes", &LayerModule::weight_bytes)
      .def(
          "new_cache",
          [](const LayerModule& layer, std::int64_t rows, std::int64_t capacity) {
            return new KvCache(layer.cache_shape(rows, capacity));
          },
          nb::arg("rows"), nb::arg("capacity"), nb::rv_policy::take_ownership)
      .def("run", &run_layer, nb::arg("pool"), nb::arg("cache"), nb::arg("rows"),
           nb::arg("positions"), nb::arg("x"), nb::arg("tree_mask").none(),
           nb::arg("out").noconvert(), "From inputs [B, n, size] each to [B, n, hidden].");
}

}  // namespace forerun::cpu
