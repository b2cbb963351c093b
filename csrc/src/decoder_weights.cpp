#include "decoder_weights.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "numbers.h"
#include "quantize.h"
#include "source_values.h"

namespace forerun::cpu {
namespace {

std::size_t bytes_of(SourceType type) { return type == SourceType::fp32 ? 4 : 2; }

// layers.<index>.<rest>; -1 where the name is no layer's.
std::int64_t layer_index(const std::string& name, std::string& rest) {
  const std::string prefix = "layers.";
  if (name.compare(0, prefix.size(), prefix) != 0) return -1;
  const std::size_t dot = name.find('.', prefix.size());
  if (dot == std::string::npos || dot == prefix.size() || dot - prefix.size() > 6) return -1;
  std::int64_t index = 0;
  for (std::size_t i = prefix.size(); i < dot; ++i) {
    if (name[i] < '0' || name[i] > '9') return -1;
    index = 10 * index + (name[i] - '0');
  }
  rest = name.substr(dot + 1);
  return index;
}

}  // namespace

void Table::make(std::int64_t r, std::int64_t c, bool wide) {
  rows = r;
  cols = c;
  fp32 = wide;
  memory = Buffer(static_cast<std::size_t>(r * c) * (wide ? 4 : 2));
}

void Table::store(std::int64_t first, std::int64_t count, const void* data, SourceType type) {
  std::vector<float> row(static_cast<std::size_t>(cols));
  for (std::int64_t i = 0; i < count; ++i) {
    read_values(data, type, i * cols, cols, row.data());
    const auto at = static_cast<std::size_t>((first + i) * cols);
    if (fp32) {
      std::memcpy(memory.data() + at * 4, row.data(), row.size() * 4);
      continue;
    }
    check_bf16(row.data(), cols);
    auto* out = reinterpret_cast<std::uint16_t*>(memory.data()) + at;
    for (std::size_t k = 0; k < row.size(); ++k) out[k] = float_to_bf16(row[k]);
  }
}

void Table::read(std::int64_t row, float* out) const {
  const auto at = static_cast<std::size_t>(row * cols);
  if (fp32) {
    std::memcpy(out, memory.data() + at * 4, static_cast<std::size_t>(cols) * 4);
    return;
  }
  const auto* source = reinterpret_cast<const std::uint16_t*>(memory.data()) + at;
  for (std::int64_t k = 0; k < cols; ++k) out[k] = bf16_to_float(source[k]);
}

DecoderWeights::DecoderWeights(const DecoderShape& s)
    : shape(s), rotary(s.inverse_frequencies, s.rotary_scale) {
  check();
  layers.resize(static_cast<std::size_t>(shape.layers));
  make_vectors();
  make_matrices();
  const bool wide = shape.precision == Precision::fp32;
  if (!shape.tied) embedding.make(shape.vocab, shape.hidden, wide);
  if (!rotary.used()) positions.make(shape.max_context, shape.hidden, wide);
}

void DecoderWeights::check() const {
  const std::int64_t sizes[] = {shape.vocab, shape.hidden,   shape.intermediate, shape.layers,
                                shape.heads, shape.kv_heads, shape.head_dim,     shape.max_context};
  for (const std::int64_t size : sizes) {
    if (size < 1 || size > (std::int64_t{1} << 30)) throw std::invalid_argument("a size of the model is out of range");
  }
  const auto half = static_cast<std::int64_t>(shape.inverse_frequencies.size());
  if (shape.heads % shape.kv_heads != 0) throw std::invalid_argument("heads do not share keys evenly");
  if (half != 0 && 2 * half != shape.head_dim) {
    throw std::invalid_argument("a rotary embedding turns half of head_dim pairs");
  }
  if (static_cast<std::int64_t>(shape.windows.size()) != shape.layers) {
    throw std::invalid_argument("there must be one window for each layer");
  }
  for (const std::int64_t window : shape.windows) {
    if (window < 0) throw std::invalid_argument("a window is 0 for none, or positive");
  }
}

void DecoderWeights::make_vectors() {
  const auto size = [](bool there, std::int64_t n) { return there ? static_cast<std::size_t>(n) : 0; };
  for (LayerWeights& w : layers) {
    w.input_norm.resize(size(true, shape.hidden));
    w.mlp_norm.resize(size(true, shape.hidden));
    w.input_norm_bias.resize(size(shape.layer_norm, shape.hidden));
    w.mlp_norm_bias.resize(size(shape.layer_norm, shape.hidden));
    w.q_norm.resize(size(shape.query_key_norm, shape.head_dim));
    w.k_norm.resize(size(shape.query_key_norm, shape.head_dim));
    w.qkv_bias.resize(size(shape.qkv_bias, shape.qkv_rows()));
    w.output_bias.resize(size(shape.output_bias, shape.hidden));
    w.up_bias.resize(size(shape.mlp_bias, shape.up_rows()));
    w.down_bias.resize(size(shape.mlp_bias, shape.hidden));
  }
  norm.resize(size(true, shape.hidden));
  norm_bias.resize(size(shape.layer_norm, shape.hidden));
}

void DecoderWeights::make_matrices() {
  const std::int64_t mixed = shape.heads * shape.head_dim;
  const auto make = [&](std::int64_t rows, std::int64_t cols) {
    return MatrixShape::make(shape.precision, rows, cols, shape.group);
  };
  const MatrixShape qkv = make(shape.qkv_rows(), shape.hidden);
  const MatrixShape output = make(shape.hidden, mixed);
  const MatrixShape up = make(shape.up_rows(), shape.hidden);
  const MatrixShape down = make(shape.hidden, shape.intermediate);
  const MatrixShape last = MatrixShape::make(shape.head_precision, shape.vocab, shape.hidden,
                                             shape.head_precision == shape.precision ? shape.group : 0);
  const std::size_t layer_bytes = qkv.bytes() + output.bytes() + up.bytes() + down.bytes();
  memory = Buffer(static_cast<std::size_t>(shape.layers) * layer_bytes + last.bytes());
  std::uint8_t* at = memory.data();
  const auto place = [&](const MatrixShape& m) {
    std::uint8_t* here = at;
    at += m.bytes();
    return PackedMatrix(m, here);
  };
  for (LayerWeights& w : layers) {
    w.qkv = place(qkv);
    w.output = place(output);
    w.up = place(up);
    w.down = place(down);
  }
  head = place(last);
}

namespace {

WeightPlace place_in(LayerWeights& w, const std::string& rest) {
  const std::pair<const char*, PackedMatrix*> matrices[] = {
      {"qkv.weight", &w.qkv},       {"output.weight", &w.output}, {"gate_up.weight", &w.up},
      {"up.weight", &w.up},         {"down.weight", &w.down}};
  for (const auto& [name, matrix] : matrices) {
    if (rest == name) return {matrix, nullptr, nullptr};
  }
  const std::pair<const char*, std::vector<float>*> vectors[] = {
      {"input_norm.weight", &w.input_norm}, {"input_norm.bias", &w.input_norm_bias},
      {"mlp_norm.weight", &w.mlp_norm},     {"mlp_norm.bias", &w.mlp_norm_bias},
      {"q_norm.weight", &w.q_norm},         {"k_norm.weight", &w.k_norm},
      {"qkv.bias", &w.qkv_bias},            {"output.bias", &w.output_bias},
      {"gate_up.bias", &w.up_bias},         {"up.bias", &w.up_bias},
      {"down.bias", &w.down_bias}};
  for (const auto& [name, vector] : vectors) {
    if (rest == name && !vector->empty()) return {nullptr, nullptr, vector};
  }
  return {};
}

}  // namespace

WeightPlace DecoderWeights::find(const std::string& name) {
  std::string rest;
  const std::int64_t index = layer_index(name, rest);
  if (index >= 0) return index < shape.layers ? place_in(layers[static_cast<std::size_t>(index)], rest) : WeightPlace{};
  if (name == "norm.weight") return {nullptr, nullptr, &norm};
  if (name == "norm.bias" && shape.layer_norm) return {nullptr, nullptr, &norm_bias};
  if (name == "embedding.weight") return shape.tied ? WeightPlace{&head, nullptr, nullptr}  : WeightPlace{nullptr, &embedding, nullptr};
  if (name == "head.weight" && !shape.tied) return {&head, nullptr, nullptr};
  if (name == "positions.weight" && !rotary.used()) return {nullptr, &positions, nullptr};
  return {};
}

void Decoder::load(const std::string& name, std::int64_t first, std::int64_t count, std::int64_t cols,
                   const void* data, SourceType type, ThreadPool& pool) {
  const WeightPlace place = weights_->find(name);
  std::int64_t rows = 1;
  std::int64_t expected = 0;
  if (place.matrix != nullptr) rows = place.matrix->shape().rows, expected = place.matrix->shape().cols;
  if (place.table != nullptr) rows = place.table->rows, expected = place.table->cols;
  // A vector may come in parts (the biases of q, k and v): its "rows" are its values.
  if (place.vector != nullptr) rows = static_cast<std::int64_t>(place.vector->size()), expected = 1;
  if (expected == 0) throw std::invalid_argument("the model has no weight " + name);
  if (first < 0 || count < 0 || first > rows - count || cols != expected) {
    throw std::invalid_argument(name + " has " + std::to_string(rows) + " x " + std::to_string(expected) +
                                " values; rows " + std::to_string(first) + " + " + std::to_string(count) +
                                " of " + std::to_string(cols) + " do not fit");
  }
  if (place.table != nullptr) return place.table->store(first, count, data, type);
  if (place.vector != nullptr) return read_values(data, type, 0, count, place.vector->data() + first);
  // A body of the pool must not throw: what goes wrong is kept and thrown afterwards.
  std::atomic<bool> failed{false};
  std::string message;
  const Forward forward(pool);
  pool.for_ranges(count, 16, [&](const Range& r) {
    try {
      const auto* source = static_cast<const std::uint8_t*>(data) + static_cast<std::size_t>(r.begin * cols) * bytes_of(type);
      place.matrix->pack_rows(first + r.begin, r.end - r.begin, source, type, cols);
    } catch (const std::exception& error) {
      if (!failed.exchange(true)) message = error.what();
    }
  });
  if (failed) throw std::domain_error(name + ": " + message);
}

}  // namespace forerun::cpu
