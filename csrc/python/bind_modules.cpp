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
                 const OptionalVector& bias, const std::string& precision, int group,
                 const std::string& level) {
  const LinearSource source = source_of(weight, bias);
  const Packing packing{precision_named(precision), group, level_named(level)};
  const nb::gil_scoped_release released;
  const Forward forward(pool);
  new (self) LinearModule(source, packing, pool);
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

// What `shape` names beside the weights.
AttentionSource attention_of(const nb::dict& shape) {
  AttentionSource source;
  source.heads = take<std::int64_t>(shape, "num_heads");
  source.kv_heads = take<std::int64_t>(shape, "num_kv_heads");
  source.head_dim = take<std::int64_t>(shape, "head_dim");
  source.window = take<std::int64_t>(shape, "window");
  source.norm_eps = take<float>(shape, "norm_eps");
  source.inverse_frequencies = take<std::vector<float>>(shape, "inverse_frequencies");
  source.rotary_scale = take<float>(shape, "rotary_scale");
  return source;
}

void make_attention(AttentionModule* self, ThreadPool& pool, const nb::dict& shape,
                    const Matrix& qkv, const OptionalVector& qkv_bias, const Matrix& output,
                    const OptionalVector& output_bias, const OptionalVector& q_norm,
                    const OptionalVector& k_norm, const std::string& precision, int group,
                    const std::string& level) {
  AttentionSource source = attention_of(shape);
  source.qkv = source_of(qkv, qkv_bias);
  source.output = source_of(output, output_bias);
  source.q_norm = values_of(q_norm);
  source.k_norm = values_of(k_norm);
  const Packing packing{precision_named(precision), group, level_named(level)};
  const nb::gil_scoped_release released;
  const Forward forward(pool);
  new (self) AttentionModule(std::move(source), packing, pool);
}

void run_attention(AttentionModule& attention, ThreadPool& pool, KvCache& cache,
                   std::vector<std::int64_t> rows, const Lists& positions,
                   const Array<const float, 3>& x, std::optional<Array<const bool, 3>> tree_mask,
                   const Array<float, 3>& out) {
  const BatchArguments arguments(std::move(rows), positions, std::move(tree_mask));
  BatchRows batch;
  arguments.put(batch);
  batch.cache = &cache;
  batch.end_layer = 1;
  expect(is_shaped(x, {arguments.size(), arguments.width(), attention.cols()}), "x");
  expect(is_shaped(out, {arguments.size(), arguments.width(), attention.hidden()}), "out");
  const nb::gil_scoped_release released;
  const Forward forward(pool);
  attention.run(batch, x.data(), out.data(), pool);
}

}  // namespace

void bind_modules(nb::module_& m) {
  nb::class_<LinearModule>(m, "Linear", "A matrix [rows, cols], packed, and perhaps a bias.")
      .def("__init__", &make_linear, nb::arg("pool"), nb::arg("weight"), nb::arg("bias").none(),
           nb::arg("precision"), nb::arg("group") = 0, nb::arg("level") = "")
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

  nb::class_<AttentionModule>(m, "Attention", "Self-attention with caches of its own.")
      .def("__init__", &make_attention, nb::arg("pool"), nb::arg("shape"), nb::arg("qkv"),
           nb::arg("qkv_bias").none(), nb::arg("output"), nb::arg("output_bias").none(),
           nb::arg("q_norm").none(), nb::arg("k_norm").none(), nb::arg("precision"),
           nb::arg("group") = 0, nb::arg("level") = "")
      .def_prop_ro("weight_bytes", &AttentionModule::weight_bytes)
      .def(
          "new_cache",
          [](const AttentionModule& a, std::int64_t rows, std::int64_t capacity) {
            return new KvCache(a.cache_shape(rows, capacity));
          },
          nb::arg("rows"), nb::arg("capacity"), nb::rv_policy::take_ownership)
      .def("run", &run_attention, nb::arg("pool"), nb::arg("cache"), nb::arg("rows"),
           nb::arg("positions"), nb::arg("x"), nb::arg("tree_mask").none(),
           nb::arg("out").noconvert(), "From [B, n, cols] to [B, n, hidden].");
}

}  // namespace forerun::cpu
