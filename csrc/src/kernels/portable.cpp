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

template <class Format>
struct PortableBlocks {
  static constexpr int kMaxTokens = 8;

  // Four codes of a row.
  static void quad(const std::uint8_t* upper, const std::uint8_t* lines, int index,
                   std::uint8_t (&codes)[4]) {
    const std::uint8_t* line = lines + index / 2 * kLine;
    for (int i = 0; i < 4; ++i) {
      int code = line[i] >> (index % 2 * 4) & 15;
      const int left = Format::to_left(index);
      if (Format::kUpper > 0)
        code |= (left > 0 ? upper[i] << left : upper[i] >> -left) & Format::kMask;
      codes[i] = static_cast<std::uint8_t>(Format::kIsListed ? kListed[code] + kListedZero : code);
    }
  }

  static float scale(const std::uint8_t* head, const std::uint8_t* scales, int group, int index) {
    std::uint16_t factor;
    if (!Format::kFactors) {
      std::memcpy(&factor, scales + 2 * group, sizeof factor);
      return half_to_float(factor);
    }
    std::memcpy(&factor, head + 2 * index, sizeof factor);
    const std::uint8_t byte = scales[Format::kOffset ? 2 * group + index : group];
    const int step = Format::kOffset ? byte : static_cast<std::int8_t>(byte);
    return static_cast<float>(step) * half_to_float(factor);
  }

  template <int T>
  static void group(const std::uint8_t* head, const std::uint8_t* scales, int index,
                    const std::uint8_t* w, const std::uint32_t* x, float (&sum)[T][kBlockRows]) {
    const std::uint8_t* lines = w + (Format::kUpper > 0 ? kLine : 0);
    for (int r = 0; r < kBlockRows; ++r, head += 4, scales += 4, w += 4, lines += 4) {
      std::int32_t d[T];
      for (int t = 0; t < T; ++t) d[t] = Format::kOffset ? 0 : static_cast<std::int32_t>(x[t]);
      for (int q = 0; q < Format::kQuads; ++q) {
        std::uint8_t codes[4];
        quad(w, lines, q, codes);
        for (int t = 0; t < T; ++t) d[t] = dot(codes, x[(2 + q) * T + t], d[t]);
      }
      for (int t = 0; t < T; ++t) {
        float part = static_cast<float>(d[t]) * scale(head, scales, index, 0);
        if (Format::kOffset) part = fused(float_of(x[t]), scale(head, scales, index, 1), part);
        sum[t][r] = fused(part, float_of(x[T + t]), sum[t][r]);
      }
    }
  }

  template <int T>
  static void run(const TileArgs& a) {
    float sum[T][kBlockRows] = {};
    const auto* x = static_cast<const std::uint32_t*>(a.panel);
    const std::uint8_t* w = a.weights;
    for (std::int64_t left = a.lines; left > 0; left -= Format::kValueLines) {
      const std::uint8_t* head = w;
      if (Format::kFactors) w += kLine;
      for (int part = 0; part < Format::kParts; ++part) {
        const std::uint8_t* scales = w;
        w += kLine;
        for (int g = 0; g < Format::kGroups; ++g) {
          group<T>(head, scales, g, w, x, sum);
          w += (Format::kLines + (Format::kUpper > 0 ? 1 : 0)) * kLine;
          x += (2 + Format::kQuads) * T;
        }
      }
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
      make_set<PortableGrouped<WithOffset<Nibbles>>>(Level::portable, Precision::int4_offset),
      make_set<PortableBlocks<Q4K>>(Level::portable, Precision::q4_k),
      make_set<PortableBlocks<Q5K>>(Level::portable, Precision::q5_k),
      make_set<PortableBlocks<Q6K>>(Level::portable, Precision::q6_k),
      make_set<PortableBlocks<Q50>>(Level::portable, Precision::q5_0),
      make_set<PortableBlocks<Iq4Nl>>(Level::portable, Precision::iq4_nl),
      make_set<PortableBlocks<Iq4Xs>>(Level::portable, Precision::iq4_xs)};
  return sets[static_cast<int>(precision)];
}

}  // namespace forerun::cpu
