// All linear layers of one forward, random weights, for 1 to 256 tokens: milliseconds and GB/s
// beside the machine's own read bandwidth and the instruction's peak, all measured in turns.
//
//   bench_linear [--shape NAME] [--precision NAME] [--group G] [--threads T] [--level NAME]
//                [--rounds R] [--rest MS] [--clock processor]   (with one thread: see machine.h)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../src/floats.h"
#include "forerun/buffer.h"
#include "forerun/linear.h"
#include "forerun/machine.h"

namespace forerun::cpu::bench {
using namespace machine;
namespace {

struct Shape {
  const char* name;
  std::int64_t hidden, intermediate, layers, vocabulary;
};

constexpr Shape kShapes[] = {{"draft15m", 288, 768, 6, 32000},
                             {"llama110m", 768, 2048, 12, 32000},
                             {"llama350m", 1024, 2816, 24, 32000}};
constexpr std::size_t kShort = std::size_t{30}
                               << 20;  // below this one forward is too short to time
constexpr int kTokens[] = {1, 2, 4, 8, 16, 32, 64, 256};
constexpr int kMostTokens = 256;

struct Options {
  std::string shape;
  std::string precision;
  int group = 0;
  int threads = 2;
  Level level = best_level();
  int rounds = 15;
  double rest = 2.0;  // milliseconds between measurements, for whoever shares the machine
};

// The linear layers of a decoder, packed one behind the other, and a forward through them.
class Model {
 public:
  Model(const Shape& s, Precision precision, const Options& o) {
    std::vector<MatrixShape> shapes;
    for (std::int64_t i = 0; i < s.layers; ++i) {
      shapes.push_back(MatrixShape::make(precision, 3 * s.hidden, s.hidden, o.group));
      shapes.push_back(MatrixShape::make(precision, s.hidden, s.hidden, o.group));
      shapes.push_back(MatrixShape::make(precision, 2 * s.intermediate, s.hidden, o.group));
      shapes.push_back(MatrixShape::make(precision, s.hidden, s.intermediate, o.group));
    }
    shapes.push_back(MatrixShape::make(precision, s.vocabulary, s.hidden, o.group));
    for (const MatrixShape& m : shapes) bytes_ += m.bytes();
    memory_ = Buffer(bytes_);
    std::uint8_t* at = memory_.data();
    for (const MatrixShape& m : shapes) {
      matrices_.emplace_back(m, at);
      fill(matrices_.back(), at);
      at += m.bytes();
      multiply_adds_ += static_cast<double>(m.rows) * static_cast<double>(m.cols);
      widest_ = std::max({widest_, m.rows, m.cols});
    }
    const std::int64_t most = kMostTokens * widest_;
    x_.reserve(most);
    y_.reserve(most);
    for (std::int64_t i = 0; i < most; ++i)
      x_.data()[i] = static_cast<float>(i % 251) / 125.0f - 1.0f;
    activations_ = std::make_unique<Activations>(precision, o.group, o.level);
  }

  void forward(std::int64_t n, ThreadPool& pool) {
    for (std::size_t i = 0; i < matrices_.size(); ++i) {
      const MatrixShape& m = matrices_[i].shape();
      activations_->pack(x_.data(), n, m.cols, m.cols, pool);
      LinearOptions options;
      options.next = i + 1 < matrices_.size() ? &matrices_[i + 1] : nullptr;
      linear(matrices_[i], *activations_, y_.data(), m.rows, pool, options);
    }
  }

  std::size_t bytes() const { return bytes_; }
  double multiply_adds() const { return multiply_adds_; }
  const std::uint8_t* memory() const { return memory_.data(); }

 private:
  // A few rows of random numbers, over and over: the kernels do not care, and packing stays quick.
  static void fill(PackedMatrix& matrix, std::uint8_t* memory) {
    const MatrixShape& m = matrix.shape();
    std::mt19937 random(1);
    const std::int64_t count = kBlockRows * m.cols;
    if (m.blockwise()) {
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(count));
      for (std::uint8_t& code : codes) code = random() & 15;
      const std::vector<std::uint16_t> scales(codes.size(), 0x2000);  // and offsets: fp16
      matrix.pack_codes(0, kBlockRows,
                        {codes.data(), scales.data(), m.offsets() > 0 ? scales.data() : nullptr});
    } else {
      std::normal_distribution<float> draw(0.0f, 0.02f);
      std::vector<float> rows(static_cast<std::size_t>(count));
      for (float& v : rows) v = draw(random);
      matrix.pack_rows(0, kBlockRows, rows.data(), SourceType::fp32, m.cols);
    }
    const std::size_t bytes = m.block_bytes();
    for (std::int64_t b = 1; b < m.blocks(); ++b) {
      std::memcpy(memory + static_cast<std::size_t>(b) * bytes, memory, bytes);
    }
  }

  std::size_t bytes_ = 0;
  double multiply_adds_ = 0.0;
  std::int64_t widest_ = 0;
  Buffer memory_;
  std::vector<PackedMatrix> matrices_;
  Floats x_;
  Floats y_;
  std::unique_ptr<Activations> activations_;
};

using Samples = std::vector<double>;

double quantile(Samples s, double q) {
  std::sort(s.begin(), s.end());
  return s[static_cast<std::size_t>(q * static_cast<double>(s.size() - 1))];
}

// One sample: workers awake before the clock starts, several forwards where one is too short.
template <class Call>
double timed(ThreadPool& pool, double rest, int repeat, const Call& call) {
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(rest));
  const Forward forward(pool);
  for (const double until = seconds() + 1e-4; seconds() < until;) {
  }
  const double start = seconds();
  for (int i = 0; i < repeat; ++i) call();
  return (seconds() - start) / repeat;
}

// What a row is compared with.
struct Limits {
  double gigabytes;       // of weights
  double multiply_adds;   // for one token
  double stream_seconds;  // to read them
  double peak;            // multiply-adds a second
};

void print_row(const std::string& name, int tokens, const Limits& limits, const Samples& s,
               const Samples& one) {
  Samples ratio;
  for (std::size_t i = 0; i < s.size(); ++i) ratio.push_back(s[i] / one[i]);
  const double best = quantile(s, 0.0);
  const double of_peak =
      limits.peak > 0.0 ? limits.multiply_adds * tokens / best / limits.peak : 0.0;
  std::printf("%-8s %8.3f %8.3f %8.3f   %6.1f  %5.1f%%   %6.1f%%    %6.3f %6.3f\n", name.c_str(),
              best * 1e3, quantile(s, 0.25) * 1e3, quantile(s, 0.5) * 1e3, limits.gigabytes / best,
              100.0 * limits.stream_seconds / best, 100.0 * of_peak, best / quantile(one, 0.0),
              quantile(ratio, 0.5));
}

void print_head(const Shape& shape, Precision precision, const Options& o, const Limits& limits) {
  std::printf("\n%s %s", shape.name, precision_name(precision));
  if (o.group > 0) std::printf(" group %d", o.group);
  std::printf(", %.1f MB, %s, %d threads, %d rounds; peak %.0f G multiply-adds/s\n",
              limits.gigabytes * 1e3, level_name(o.level), o.threads, o.rounds, limits.peak / 1e9);
  std::printf("tokens    best ms   25%% ms   50%% ms     GB/s  stream     peak   ");
  std::printf("t/t(1): best  paired median\n");
}

void measure(const Shape& shape, Precision precision, const Options& o, ThreadPool& pool) {
  Model model(shape, precision, o);
  Limits limits = {static_cast<double>(model.bytes()) / 1e9, model.multiply_adds(), 0.0, 0.0};
  const int repeat = model.bytes() < kShort ? 10 : 1;
  std::map<int, Samples> samples;
  Samples stream;
  timed(pool, o.rest, 1, [&] { model.forward(1, pool); });
  for (int round = 0; round < o.rounds; ++round) {
    stream.push_back(
        timed(pool, o.rest, repeat, [&] { read_stream(model.memory(), model.bytes(), pool); }));
    for (const int n : kTokens) {
      samples[n].push_back(timed(pool, o.rest, repeat, [&] { model.forward(n, pool); }));
    }
    timed(pool, o.rest, 1,
          [&] { limits.peak = std::max(limits.peak, peak_rate(precision, pool)); });
  }
  limits.stream_seconds = quantile(stream, 0.0);
  print_head(shape, precision, o, limits);
  print_row("stream", 0, limits, stream, samples[1]);
  for (const int n : kTokens) print_row(std::to_string(n), n, limits, samples[n], samples[1]);
}

Level level_named(const std::string& name) {
  for (const Level level : kLevels) {
    if (name == level_name(level)) return level;
  }
  std::fprintf(stderr, "no level %s\n", name.c_str());
  std::exit(2);
}

Options parse(int count, char** arguments) {
  Options o;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string key = arguments[i];
    const char* value = arguments[i + 1];
    if (key == "--shape") o.shape = value;
    else if (key == "--precision") o.precision = value;
    else if (key == "--group") o.group = std::atoi(value);
    else if (key == "--threads") o.threads = std::atoi(value);
    else if (key == "--level") o.level = level_named(value);
    else if (key == "--rounds") o.rounds = std::max(std::atoi(value), 1);
    else if (key == "--rest") o.rest = std::atof(value);
    else if (key == "--clock" && std::strcmp(value, "processor") == 0) use_processor_clock();
    else std::fprintf(stderr, "unknown option %s\n", key.c_str()), std::exit(2);
  }
  return o;
}

}  // namespace
}  // namespace forerun::cpu::bench

int main(int count, char** arguments) {
  using namespace forerun::cpu;
  using namespace forerun::cpu::bench;
  using namespace forerun::cpu::machine;
  const Options options = parse(count, arguments);
  ThreadPool pool(options.threads);
  pin_threads();
  for (const Shape& shape : kShapes) {
    if (!options.shape.empty() && options.shape != shape.name) continue;
    if (!options.precision.empty()) {
      measure(shape, precision_named(options.precision), options, pool);
      continue;
    }
    for (const Precision p : {Precision::bf16, Precision::int8, Precision::int4, Precision::fp32})
      measure(shape, p, options, pool);
  }
}
