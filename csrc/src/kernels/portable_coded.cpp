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

struct PortableCoded {
  static constexpr int kMaxColumns = 8;

  // The sums of one group of a block from line `at` on.
  template <int kPlanes, int T>
  static void sum_up(const CodedTile& c, const std::uint8_t* at, std::int64_t first,
                     std::int32_t (&sum)[T][kBlockRows]) {
    for (int t = 0; t < T; ++t) {
      for (std::int32_t& s : sum[t]) s = c.terms[first + t].start;
    }
    for (std::int64_t i = 0; i < c.lines; ++i, at += kLine) {
      for (int half = 0; half < 2; ++half) {
        for (int byte = 0; byte < 4; ++byte) {
          for (int r = 0; r < kBlockRows; ++r) {
            const std::int32_t w = code<kPlanes>(c, at + 4 * r + byte, half);
            const std::int64_t number = i * kCodesOfLine + 4 * half + byte;
            for (int t = 0; t < T; ++t)
              sum[t][r] +=
                  w * (c.digits[first + t].high[number] * 128 + c.digits[first + t].low[number]);
          }
        }
      }
    }
  }

  template <int kPlanes, int T>
  static void scores(const CodedTile& c) {
    for (std::int64_t b = 0; b < c.blocks; ++b) {
      float score[T][kBlockRows] = {};
      for (std::int64_t g = 0; g < c.groups; ++g) {
        std::int32_t sum[T][kBlockRows];
        sum_up<kPlanes, T>(c, c.upper + b * c.block_bytes + g * c.lines * kLine, g * T, sum);
        for (int t = 0; t < T; ++t) {
          for (int r = 0; r < kBlockRows; ++r) {
            const float scale = bf16_to_float(c.scales[g * kTileSlots + b * kBlockRows + r]);
            const float product = static_cast<float>(sum[t][r]) * c.terms[g * T + t].scale;
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
      sum_up<kPlanes, T>(c, c.upper + b * c.block_bytes, 0, sum);
      for (int t = 0; t < T; ++t) {
        const std::int64_t at = t * c.out_stride + b * kBlockRows;
        for (int r = 0; r < kBlockRows; ++r) {
          if (c.resume) sum[t][r] += c.sums[at + r];
          if (c.keep) {
            c.sums[at + r] = sum[t][r];
            continue;
          }
          float& out = c.out[at + r];
          out = __builtin_fmaf(static_cast<float>(sum[t][r]), c.terms[t].scale, out);
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
