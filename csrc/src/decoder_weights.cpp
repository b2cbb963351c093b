#include "decoder_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "numbers.h"
#include "quantize.h"
#include "source_values.h"

namespace forerun::cpu {
namespace {

// layers.<index>.<rest>; -1 for a name of another form.
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

DecoderWeights::DecoderWeights(const DecoderShape& s) : shape(s) {
  check();
  for (const RopeShape& rope : shape.ropes)
    ropes.emplace_back(rope.inverse_frequencies, rope.scale, shape.rope_pairs);
  layers.resize(static_cast<std::size_t>(shape.layers));
  make_vectors();
  make_matrices();
  const bool wide = shape.precision == Precision::fp32;
  const bool packed = packed_embedding.rows() > 0;
  if (!shape.tied && !packed) embedding.make(shape.vocab, shape.hidden, wide);
  if (shape.learned_positions) positions.make(shape.max_context, shape.hidden, wide);
}

void DecoderWeights::check() const {
  const std::int64_t sizes[] = {shape.vocab, shape.hidden,   shape.intermediate, shape.layers,
                                shape.heads, shape.kv_heads, shape.head_dim,     shape.max_context};
  for (const std::int64_t size : sizes) {
    if (size < 1 || size > (std::int64_t{1} << 30))
      throw std::invalid_argument("a size of the model is out of range");
  }
  if (shape.heads % shape.kv_heads != 0)
    throw std::invalid_argument("heads do not share keys evenly");
  for (const RopeShape& rope : shape.ropes) {
    const auto half = static_cast<std::int64_t>(rope.inverse_frequencies.size());
    if (half < 1 || 2 * half > shape.head_dim)
      throw std::invalid_argument(
          "a rotary embedding turns pairs of the head_dim values of a head");
  }
  if (static_cast<std::int64_t>(shape.each.size()) != shape.layers) {
    throw std::invalid_argument("there must be one shape for each layer");
  }
  const auto ropes = static_cast<std::int64_t>(shape.ropes.size());
  for (const LayerShape& layer : shape.each) {
    if (layer.window < 0) throw std::invalid_argument("a window is 0 for none, or positive");
    if (layer.rope < -1 || layer.rope >= ropes)
      throw std::invalid_argument("a layer has a rotary embedding that is not there");
  }
  if (shape.experts < 0 || shape.experts > (1 << 20) || shape.experts_used > shape.experts ||
      (shape.experts > 0 && shape.experts_used < 1))
    throw std::invalid_argument("a token goes through one or more of all experts");
  if (shape.activation == Activation::clamped_swiglu && !shape.gated)
    throw std::invalid_argument("the activation is a gate, and the MLP has none");
  if (shape.parallel && !(shape.norm_before && !shape.norm_after))
    throw std::invalid_argument("attention and MLP beside each other need a norm before them");
}

namespace {

std::size_t size_if(bool there, std::int64_t n) { return there ? static_cast<std::size_t>(n) : 0; }

void make_norm(Norm& norm, const DecoderShape& shape) {
  norm.eps = shape.norm_eps;
  norm.weight.resize(size_if(true, shape.hidden));
  norm.bias.resize(size_if(shape.layer_norm, shape.hidden));
}

}  // namespace

void DecoderWeights::make_layer(DecoderLayer& layer, const LayerShape& each) {
  SelfAttention& attention = layer.attention;
  if (shape.norm_before) make_norm(layer.input_norm, shape);
  if (shape.norm_before && !shape.parallel) make_norm(layer.mlp_norm, shape);
  for (Norm* after : {&layer.post_attention_norm, &layer.post_mlp_norm}) {
    if (shape.norm_after) make_norm(*after, shape);
  }
  layer.parallel = shape.parallel;
  layer.residual_scale = shape.residual_scale;
  attention.shape = {shape.heads, shape.kv_heads, shape.head_dim, shape.attention_scale,
                     shape.score_cap};
  attention.window = each.window;
  attention.norm_eps = shape.norm_eps;
  if (each.rope >= 0) attention.rotary = &ropes[static_cast<std::size_t>(each.rope)];
  const bool whole = shape.query_key_norm == HeadNorm::whole;
  const bool normed = shape.query_key_norm != HeadNorm::none;
  attention.q_norm.resize(size_if(normed, (whole ? shape.heads : 1) * shape.head_dim));
  attention.k_norm.resize(size_if(normed, (whole ? shape.kv_heads : 1) * shape.head_dim));
  attention.qkv.bias.resize(size_if(shape.qkv_bias, shape.qkv_rows()));
  attention.output.bias.resize(size_if(shape.output_bias, shape.hidden));
  attention.sinks.resize(size_if(shape.sinks, shape.heads));
  layer.mlp.activation = shape.activation;
  layer.mlp.gated = shape.gated;
  layer.experts.each.assign(static_cast<std::size_t>(shape.experts), layer.mlp);
  layer.experts.used = shape.experts_used;
  layer.experts.norm_topk = shape.norm_topk;
  const bool dense = shape.experts == 0;
  layer.mlp.up.bias.resize(size_if(shape.mlp_bias && dense, shape.up_rows()));
  layer.mlp.down.bias.resize(size_if(shape.mlp_bias && dense, shape.hidden));
  layer.experts.router.bias.resize(size_if(shape.mlp_bias, shape.experts));
  layer.experts.up_bias.resize(size_if(shape.mlp_bias, shape.experts * shape.up_rows()));
  layer.experts.down_bias.resize(size_if(shape.mlp_bias, shape.experts * shape.hidden));
}

void DecoderWeights::make_vectors() {
  for (std::size_t i = 0; i < layers.size(); ++i) make_layer(layers[i], shape.each[i]);
  make_norm(norm, shape);
}

// Of the parts of some rows of a matrix that have one format each.
std::vector<MatrixShape> DecoderWeights::shapes_of(const std::string& name, std::int64_t first,
                                                   std::int64_t rows, std::int64_t cols) const {
  const auto own = shape.precisions.find(name);
  if (own == shape.precisions.end()) {
    const bool is_head = name == (shape.tied ? "embedding.weight" : "head.weight");
    const Precision usual = is_head ? shape.head_precision : shape.precision;
    return {MatrixShape::make(usual, rows, cols, usual == shape.precision ? shape.group : 0)};
  }
  std::vector<MatrixShape> parts;
  const std::int64_t stop = first + rows;
  std::int64_t begin = 0;
  for (const RowsFormat& part : own->second) {
    const std::int64_t some = std::min(begin + part.rows, stop) - std::max(begin, first);
    if (some > 0) parts.push_back(MatrixShape::make(part.precision, some, cols, shape.group));
    rows -= std::max<std::int64_t>(some, 0);
    begin += part.rows;
  }
  if (rows != 0) throw std::invalid_argument("the formats of " + name + " are not of all its rows");
  return parts;
}

void DecoderWeights::make_matrices() {
  const std::int64_t mixed = shape.heads * shape.head_dim;
  std::vector<std::pair<PackedMatrix*, MatrixShape>> all;  // in the order of use
  const auto add = [&](Linear& linear, const std::string& name, std::int64_t rows,
                       std::int64_t cols, bool stacked = false, std::int64_t first = 0) {
    const std::vector<MatrixShape> parts = shapes_of(name, first, rows, cols);
    if (parts.size() > 1 && !stacked)
      throw std::invalid_argument(name + " is one matrix and takes one format");
    linear.more.resize(parts.size() - 1);
    for (std::size_t i = 0; i < parts.size(); ++i)
      all.emplace_back(i == 0 ? &linear.matrix : &linear.more[i - 1], parts[i]);
  };
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string prefix = "layers." + std::to_string(i);
    DecoderLayer& layer = layers[i];
    add(layer.attention.qkv, prefix + ".qkv.weight", shape.qkv_rows(), shape.hidden, true);
    add(layer.attention.output, prefix + ".output.weight", shape.hidden, mixed);
    const std::string up = prefix + (shape.gated ? ".gate_up.weight" : ".up.weight");
    const std::string down = prefix + ".down.weight";
    if (shape.experts == 0) {
      add(layer.mlp.up, up, shape.up_rows(), shape.hidden, true);
      add(layer.mlp.down, down, shape.hidden, shape.intermediate);
      continue;
    }
    // Rounding would choose other experts.
    all.emplace_back(&layer.experts.router.matrix,
                     MatrixShape::make(Precision::fp32, shape.experts, shape.hidden));
    for (std::int64_t k = 0; k < shape.experts; ++k) {
      Mlp& expert = layer.experts.each[static_cast<std::size_t>(k)];
      add(expert.up, up, shape.up_rows(), shape.hidden, true, k * shape.up_rows());
      add(expert.down, down, shape.hidden, shape.intermediate, false, k * shape.hidden);
    }
  }
  add(head, shape.tied ? "embedding.weight" : "head.weight", shape.vocab, shape.hidden);
  const auto table = shape.precisions.find("embedding.weight");
  if (!shape.tied && table != shape.precisions.end() &&
      table->second.front().precision >= Precision::int8)
    add(packed_embedding, table->first, shape.vocab, shape.hidden);
  std::size_t bytes = 0;
  for (const auto& [matrix, its_shape] : all) bytes += its_shape.bytes();
  memory = Buffer(bytes);
  std::uint8_t* at = memory.data();
  for (const auto& [matrix, its_shape] : all) {
    *matrix = PackedMatrix(its_shape, at);
    at += its_shape.bytes();
  }
}

namespace {

void append(NamedWeight& weight, Linear& linear) {
  weight.parts.push_back(&linear.matrix);
  for (PackedMatrix& part : linear.more) weight.parts.push_back(&part);
}

// A matrix of each expert, or that of the one MLP.
void append(NamedWeight& weight, DecoderLayer& layer, Linear Mlp::* part) {
  for (Mlp& expert : layer.experts.each) append(weight, expert.*part);
  if (layer.experts.each.empty()) append(weight, layer.mlp.*part);
}

NamedWeight weight_in(DecoderLayer& layer, const std::string& rest) {
  SelfAttention& attention = layer.attention;
  Experts& experts = layer.experts;
  std::vector<float>& up_bias = experts.each.empty() ? layer.mlp.up.bias : experts.up_bias;
  std::vector<float>& down_bias = experts.each.empty() ? layer.mlp.down.bias : experts.down_bias;
  NamedWeight matrix;
  if (rest == "qkv.weight") append(matrix, attention.qkv);
  if (rest == "output.weight") append(matrix, attention.output);
  if (rest == "gate_up.weight" || rest == "up.weight") append(matrix, layer, &Mlp::up);
  if (rest == "down.weight") append(matrix, layer, &Mlp::down);
  if (rest == "router.weight" && !experts.each.empty()) append(matrix, experts.router);
  if (!matrix.parts.empty()) return matrix;
  const std::pair<const char*, std::vector<float>*> vectors[] = {
      {"input_norm.weight", &layer.input_norm.weight},
      {"input_norm.bias", &layer.input_norm.bias},
      {"mlp_norm.weight", &layer.mlp_norm.weight},
      {"mlp_norm.bias", &layer.mlp_norm.bias},
      {"post_attention_norm.weight", &layer.post_attention_norm.weight},
      {"post_attention_norm.bias", &layer.post_attention_norm.bias},
      {"post_mlp_norm.weight", &layer.post_mlp_norm.weight},
      {"post_mlp_norm.bias", &layer.post_mlp_norm.bias},
      {"q_norm.weight", &attention.q_norm},
      {"k_norm.weight", &attention.k_norm},
      {"qkv.bias", &attention.qkv.bias},
      {"output.bias", &attention.output.bias},
      {"sinks.weight", &attention.sinks},
      {"router.bias", &experts.router.bias},
      {"gate_up.bias", &up_bias},
      {"up.bias", &up_bias},
      {"down.bias", &down_bias}};
  for (const auto& [name, vector] : vectors) {
    if (rest == name && !vector->empty()) return {{}, nullptr, vector};
  }
  return {};
}

}  // namespace

NamedWeight DecoderWeights::find(const std::string& name) {
  std::string rest;
  const std::int64_t index = layer_index(name, rest);
  if (index >= 0)
    return index < shape.layers ? weight_in(layers[static_cast<std::size_t>(index)], rest)
                                : NamedWeight{};
  if (name == "norm.weight") return {{}, nullptr, &norm.weight};
  if (name == "norm.bias" && shape.layer_norm) return {{}, nullptr, &norm.bias};
  if (name == "embedding.weight") {
    if (shape.tied) return {{&head.matrix}, nullptr, nullptr};
    if (embedding.rows == 0) return {{&packed_embedding.matrix}, nullptr, nullptr};
    return {{}, &embedding, nullptr};
  }
  if (name == "head.weight" && !shape.tied) return {{&head.matrix}, nullptr, nullptr};
  if (name == "positions.weight" && shape.learned_positions) return {{}, &positions, nullptr};
  return {};
}

namespace {

// Throws std::invalid_argument unless rows of a weight are there and as long as `cols`.
void check_rows(const std::string& name, const NamedWeight& weight, std::int64_t first,
                std::int64_t count, std::int64_t cols) {
  std::int64_t rows = 0;
  std::int64_t expected = 0;
  for (const PackedMatrix* part : weight.parts)
    rows += part->shape().rows, expected = part->shape().cols;
  if (weight.table != nullptr) rows = weight.table->rows, expected = weight.table->cols;
  // A vector may come in parts (the biases of q, k and v): its "rows" are its values.
  if (weight.vector != nullptr)
    rows = static_cast<std::int64_t>(weight.vector->size()), expected = 1;
  if (expected == 0) throw std::invalid_argument("the model has no weight " + name);
  if (first < 0 || count < 0 || first > rows - count || cols != expected) {
    throw std::invalid_argument(name + " has " + std::to_string(rows) + " x " +
                                std::to_string(expected) + " values; rows " +
                                std::to_string(first) + " + " + std::to_string(count) + " of " +
                                std::to_string(cols) + " do not fit");
  }
}

// Packs rows [first, first + count) of a matrix on all threads, by pack(part, first row in it, rows
// before, rows) for each of its parts; an error names the weight.
template <class Pack>
void pack_named(const std::string& name, const NamedWeight& weight, std::int64_t first,
                std::int64_t count, ThreadPool& pool, Pack pack) {
  const Forward forward(pool);
  std::int64_t begin = 0;
  for (PackedMatrix* part : weight.parts) {
    const std::int64_t end = begin + part->shape().rows;
    const std::int64_t from = std::max(first, begin);
    const std::int64_t rows = std::min(first + count, end) - from;
    try {
      if (rows > 0) pack(*part, from - begin, from - first, rows);
    } catch (const std::domain_error& error) {
      throw std::domain_error(name + ": " + error.what());
    }
    begin = end;
  }
}

}  // namespace

void Decoder::load(const std::string& name, std::int64_t first, std::int64_t count,
                   std::int64_t cols, const void* data, SourceType type, ThreadPool& pool) {
  const NamedWeight weight = weights_->find(name);
  check_rows(name, weight, first, count, cols);
  if (weight.table != nullptr) return weight.table->store(first, count, data, type);
  if (weight.vector != nullptr)
    return read_values(data, type, 0, count, weight.vector->data() + first);
  const std::size_t row_bytes = static_cast<std::size_t>(cols) * (type == SourceType::fp32 ? 4 : 2);
  pack_named(name, weight, first, count, pool,
             [&](PackedMatrix& part, std::int64_t at, std::int64_t before, std::int64_t rows) {
               const auto* from = static_cast<const std::uint8_t*>(data);
               pack_rows(part, at, rows, from + static_cast<std::size_t>(before) * row_bytes, type,
                         pool);
             });
}

void Decoder::load_codes(const std::string& name, std::int64_t first, std::int64_t count,
                         std::int64_t cols, const CodedRows& rows, ThreadPool& pool) {
  const NamedWeight weight = weights_->find(name);
  check_rows(name, weight, first, count, cols);
  if (weight.parts.empty()) throw std::invalid_argument(name + " is not a matrix");
  pack_named(name, weight, first, count, pool,
             [&](PackedMatrix& part, std::int64_t at, std::int64_t before, std::int64_t n) {
               pack_codes(part, at, n, rows.from(before, part.shape()), pool);
             });
}

}  // namespace forerun::cpu
