// The kernels in plain C++: the meaning of the others, and what serves where no level fits.
#include "../numbers.h"
#include "fill_set.h"

namespace forerun::cpu {
namespace {

float fused(float w, float x, float sum) { return __builtin_fmaf(w, x, sum); }

// Where the sums start.
template <int T>
void start(const TileArgs& a, float (&sum)[T][kBlockRows]) {
  for (int t = 0; t < T; ++t) {
    const float* out = a.out + t * a.out_stride;
    for (int r = 0; r < kBlockRows; ++r) sum[t][r] = a.resume && r < a.rows ? out[r] : 0.0f;
  }
}

template <int T>
void store(const TileArgs& a, const float (&sum)[T][kBlockRows]) {
  for (int t = 0; t < T; ++t) {
    float* out = a.out + t * a.out_stride;
    for (int r = 0; r < kBlockRows && r < a.rows; ++r) {
      float value = sum[t][r];
      if (a.bias != nullptr) value += a.bias[r];
      out[r] = a.accumulate ? out[r] + value : value;
    }
  }
}

struct Fp32 {
  static constexpr int kTileUnits = kTileSlots;
  static float step(std::uint32_t w, std::uint32_t x, float sum) {
    return fused(float_of(w), float_of(x), sum);
  }
};

struct Bf16 {
  static constexpr int kTileUnits = kTileSlots / 2;
  static float step(std::uint32_t w, std::uint32_t x, float sum) {
    const float odd = fused(float_of(w & 0xffff0000u), float_of(x & 0xffff0000u), sum);
    return fused(float_of(w << 16), float_of(x << 16), odd);
  }
};

template <class Format>
struct PortableFloat {
  static constexpr int kMaxTokens = 8;
  static constexpr int kTileUnits = Format::kTileUnits;

  template <int T>
  static void run(const TileArgs& a) {
    multiply<T, SideBySide<T>>(a);
  }

  template <int T, class Panel>
  static void multiply(const TileArgs& a) {
    float sum[T][kBlockRows];
    start<T>(a, sum);
    const auto* x = static_cast<const std::uint32_t*>(a.panel);
    const std::uint8_t* line = a.weights;
    for (std::int64_t i = 0; i < a.lines; ++i, line += kLineBytes, x += Panel::kLine) {
      std::uint32_t w[kBlockRows];
      std::memcpy(w, line, sizeof w);
      for (int t = 0; t < T; ++t) {
        for (int r = 0; r < kBlockRows; ++r)
          sum[t][r] = Format::step(w[r], x[t * Panel::kToken], sum[t][r]);
      }
    }
    store<T>(a, sum);
  }
};

std::int32_t dot(const std::uint8_t* w, std::uint32_t x, std::int32_t sum) {
  std::int8_t values[4];
  std::memcpy(values, &x, sizeof values);
  for (int i = 0; i < 4; ++i) sum += w[i] * values[i];
  return sum;
}

struct Bytes {
  static constexpr bool kOffset = false;
  static constexpr int kPanelRows = 1;
  static std::uint8_t part(std::uint8_t byte, int) { return byte; }
};

struct Nibbles {
  static constexpr bool kOffset = false;
  static constexpr int kPanelRows = 2;
  static std::uint8_t part(std::uint8_t byte, int high) {
    return static_cast<std::uint8_t>(high ? byte >> 4 : byte & 15);
  }
};

template <class Format>
struct PortableGrouped {
  static constexpr int kMaxTokens = 8;

  template <int T>
  static void line(const std::uint8_t* w, const std::uint32_t* x,
                   std::int32_t (&d)[T][kBlockRows]) {
    for (int p = 0; p < Format::kPanelRows; ++p) {
      std::uint8_t values[kLineBytes];
      for (std::size_t i = 0; i < kLineBytes; ++i) values[i] = Format::part(w[i], p);
      for (int t = 0; t < T; ++t) {
        for (int r = 0; r < kBlockRows; ++r) d[t][r] = dot(values + 4 * r, x[p * T + t], d[t][r]);
      }
    }
  }

  template <int T>
  static void add_group(const std::int32_t (&d)[T][kBlockRows], const std::uint32_t* x_head,
                        const std::uint8_t* scales, float (&part)[T][kBlockRows]) {
    std::uint16_t w_scale[kBlockRows];
    std::uint16_t w_offset[kBlockRows] = {};
    std::memcpy(w_scale, scales, sizeof w_scale);
    if (Format::kOffset) std::memcpy(w_offset, scales + sizeof w_scale, sizeof w_offset);
    for (int t = 0; t < T; ++t) {
      for (int r = 0; r < kBlockRows; ++r) {
        part[t][r] = fused(static_cast<float>(d[t][r]), half_to_float(w_scale[r]), part[t][r]);
        if (!Format::kOffset) continue;
        part[t][r] = fused(float_of(x_head[t]), half_to_float(w_offset[r]), part[t][r]);
      }
    }
  }

  template <int T>
  static void add_part(const std::uint32_t* x_head, float (&part)[T][kBlockRows],
                       float (&sum)[T][kBlockRows]) {
    for (int t = 0; t < T; ++t) {
      for (int r = 0; r < kBlockRows; ++r) {
        sum[t][r] = fused(part[t][r], float_of(x_head[T + t]), sum[t][r]);
        part[t][r] = 0.0f;
      }
    }
  }

  template <int T>
  static void run(const TileArgs& a) {
    float sum[T][kBlockRows] = {};
    float part[T][kBlockRows] = {};
    const auto* x = static_cast<const std::uint32_t*>(a.panel);
    const std::uint8_t* w = a.weights;
    const std::uint8_t* scales = nullptr;
    for (std::int64_t i = 0, group = 0; i < a.lines; ++group) {
      const bool second = !Format::kOffset && group % 2 == 1;
      if (!second) {
        scales = w;
        w += kLineBytes;
      }
      std::int32_t d[T][kBlockRows];
      for (int t = 0; t < T; ++t) {
        for (std::int32_t& v : d[t]) v = Format::kOffset ? 0 : static_cast<std::int32_t>(x[t]);
      }
      const std::uint32_t* x_head = x;
      x += 2 * T;
      for (const std::int64_t end = i + a.group_lines; i < end && i < a.lines; ++i) {
        line<T>(w, x, d);
        w += kLineBytes;
        x += Format::kPanelRows * T;
      }
      add_group<T>(d, x_head, scales + (second ? kLineBytes / 2 : 0), part);
      if (i == a.lines || a.ends_scale(group)) add_part<T>(x_head, part, sum);
    }
    store<T>(a, sum);
  }
};

}  // namespace

const KernelSet& portable_set(Precision precision) {
  static const KernelSet sets[] = {
      make_float_set<PortableFloat<Fp32>>(Level::portable, Precision::fp32),
      make_float_set<PortableFloat<Bf16>>(Level::portable, Precision::bf16),
      make_set<PortableGrouped<Bytes>>(Level::portable, Precision::int8),
      make_set<PortableGrouped<Nibbles>>(Level::portable, Precision::int4),
      make_set<PortableGrouped<WithOffset<Bytes>>>(Level::portable, Precision::int8_offset),
      make_set<PortableGrouped<WithOffset<Nibbles>>>(Level::portable, Precision::int4_offset)};
  return sets[static_cast<int>(precision)];
}

}  // namespace forerun::cpu
