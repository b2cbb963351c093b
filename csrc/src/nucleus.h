// Where the most likely tokens reach a given mass, without sorting them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace forerun::cpu {

// Of values in descending order: all above `value` lie before the limit, and of those equal to it
// as many as begin before it.
template <class T>
struct MassCut {
  T value;
  double before;  // the mass of all above `value`
  double limit;
  std::int64_t ties;  // how many equal `value`

  // Whether a value equal to `value` is kept that comes after `index` others.
  bool keeps_tie(std::int64_t index) const {
    return before + static_cast<double>(index) * value < limit;
  }
};

template <class T>
struct KeyOf;
template <>
struct KeyOf<float> {
  using type = std::uint32_t;
  static constexpr int first_shift = 20;
};
template <>
struct KeyOf<double> {
  using type = std::uint64_t;
  static constexpr int first_shift = 52;
};

// The same for a few values, all below a mass that is known.
template <class T>
MassCut<T> cut_among_few(T* values, std::int64_t count, double before, double limit) {
  T* const end = values + count;
  std::sort(values, end, std::greater<T>());
  for (T* first = values;;) {
    T* const last = std::find_if(first, end, [&](T value) { return value < *first; });
    const std::int64_t ties = last - first;
    const double mass = static_cast<double>(ties) * static_cast<double>(*first);
    if (before + mass >= limit || last == end) return {*first, before, limit, ties};
    before += mass;
    first = last;
  }
}

// Values lie in [0, 1], where their bits are ordered as they are. Ten bits at a time, the mass of
// each digit is added up in the order given, and only the digit in which the limit falls is looked
// at further.
template <class T>
MassCut<T> cut_at_mass(const T* values, std::int64_t count, double limit, std::vector<T>& rest) {
  using Key = typename KeyOf<T>::type;
  constexpr int kDigits = 1024;
  constexpr int kTables = 4;
  constexpr std::int64_t kFew = 64;
  const auto key_of = [](T value) {
    Key key;
    std::memcpy(&key, &value, sizeof key);
    return key;
  };
  Key prefix = 0;
  double before = 0.0;
  for (int shift = KeyOf<T>::first_shift;; shift = shift > 10 ? shift - 10 : 0) {
    // By turns into several tables: additions to one place wait for each other.
    double mass[kDigits][kTables] = {};
    for (std::int64_t i = 0; i < count; ++i) {
      mass[key_of(values[i]) >> shift & (kDigits - 1)][i % kTables] +=
          static_cast<double>(values[i]);
    }
    const auto mass_of = [&](int digit) {
      return (mass[digit][0] + mass[digit][1]) + (mass[digit][2] + mass[digit][3]);
    };
    int digit = kDigits - 1;
    while (digit > 0 && before + mass_of(digit) < limit) before += mass_of(digit--);
    prefix |= static_cast<Key>(digit) << shift;
    rest.resize(std::max(rest.size(), static_cast<std::size_t>(count)));
    std::int64_t left = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const T value = values[i];
      rest[static_cast<std::size_t>(left)] = value;
      left += (key_of(value) >> shift & (kDigits - 1)) == static_cast<Key>(digit);
    }
    values = rest.data();
    count = left;
    if (shift == 0) break;
    if (0 < count && count <= kFew) return cut_among_few(rest.data(), count, before, limit);
  }
  T value;
  std::memcpy(&value, &prefix, sizeof value);
  return {value, before, limit, count};
}

}  // namespace forerun::cpu
