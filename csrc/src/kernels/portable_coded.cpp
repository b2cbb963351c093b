// The kernels of a cache of codes in plain C++: the meaning of the others.
#include "../numbers.h"
#include "fill_set.h"

namespace forerun::cpu {
namespace {

// The codes of four slots or dimensions, of one of the 16 in a line.
template <int kPlanes>
std::int32_t code(const CodedTile& c, const std::uint8_t* at, int upper_half) {
  const auto nibble = [&](std::uint8_t byte) { return upper_half != 0 ? byte >> 4 : byte & 15; };
  return kPlanes == 1 ? nibble(*at) : nibble(*at) << 4 | nibble(at[c.lower]);
}

std::int32_t digit(const std::uint32_t* x, int byte) {
  return static_cast<std::int8_t>(*x >> 8 * byte);
}

struct PortableCoded {
  static constexpr int kMaxTokens = 8;

  // The sums of one group of a block from line `at` on.
  template <int kPlanes, int T>
  static void sum_up(const CodedTile& c, const std::uint8_t* at, const std::uint32_t* x,
                     std::int32_t (&sum)[T][kBlockRows]) {
    for (int t = 0; t < T; ++t) {
      for (std::int32_t& s : sum[t])
        s = static_cast<std::int32_t>(x[t]) * 128 + static_cast<std::int32_t>(x[T + t]);
    }
    x += kPanelHeads * T;
    for (std::int64_t i = 0; i < c.lines; ++i, at += kLine, x += kPanelRowsOfLine * T) {
      for (int half = 0; half < 2; ++half) {
        for (int byte = 0; byte < 4; ++byte) {
          for (int r = 0; r < kBlockRows; ++r) {
            const std::int32_t w = code<kPlanes>(c, at + 4 * r + byte, half);
            for (int t = 0; t < T; ++t) {
              const std::uint32_t* high = x + half * T + t;
              sum[t][r] += w * (digit(high, byte) * 128 + digit(high + 2 * T, byte));
            }
          }
        }
      }
    }
  }

  template <int kPlanes, int T>
  static void scores(const CodedTile& c) {
    const std::int64_t panel_units = (kPanelHeads + kPanelRowsOfLine * c.lines) * T;
    for (std::int64_t b = 0; b < c.blocks; ++b) {
      float score[T][kBlockRows] = {};
      for (std::int64_t g = 0; g < c.groups; ++g) {
        const std::uint32_t* x = c.panel + g * panel_units;
        std::int32_t sum[T][kBlockRows];
        sum_up<kPlanes, T>(c, c.upper + b * c.block_bytes + g * c.lines * kLine, x, sum);
        for (int t = 0; t < T; ++t) {
          for (int r = 0; r < kBlockRows; ++r) {
            const float scale = bf16_to_float(c.scales[g * kTileSlots + b * kBlockRows + r]);
            const float product = static_cast<float>(sum[t][r]) * float_of(x[2 * T + t]);
            score[t][r] = __builtin_fmaf(product, scale, score[t][r]);
          }
        }
      }
      for (int t = 0; t < T; ++t) {
        for (int r = 0; r < kBlockRows; ++r)
          c.out[t * c.out_stride + b * kBlockRows + r] = score[t][r];
      }
    }
  }

  template <int kPlanes, int T>
  static void values(const CodedTile& c) {
    for (std::int64_t b = 0; b < c.blocks; ++b) {
      std::int32_t sum[T][kBlockRows];
      sum_up<kPlanes, T>(c, c.upper + b * c.block_bytes, c.panel, sum);
      for (int t = 0; t < T; ++t) {
        const std::int64_t at = t * c.out_stride + b * kBlockRows;
        for (int r = 0; r < kBlockRows; ++r) {
          if (c.resume) sum[t][r] += c.sums[at + r];
          if (c.keep) {
            c.sums[at + r] = sum[t][r];
            continue;
          }
          float& out = c.out[at + r];
          out = __builtin_fmaf(static_cast<float>(sum[t][r]), float_of(c.panel[2 * T + t]), out);
        }
      }
    }
  }
};

}  // namespace

const CodedSet& portable_coded_set() {
  static const CodedSet set = make_coded_set<PortableCoded>();
  return set;
}

}  // namespace forerun::cpu
