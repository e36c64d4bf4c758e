// Distinct things have distinct types: a byte size is not an element count, a rank is not a generation. A StrongInt
// only compares with, adds to and subtracts from its own kind; `.value()` is the explicit way out.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace tutti {

template <typename Tag, typename Int = int64_t>
class StrongInt {
 public:
  using value_type = Int;
  constexpr StrongInt() = default;
  constexpr explicit StrongInt(Int value) : value_(value) {}
  constexpr Int value() const { return value_; }
  constexpr auto operator<=>(const StrongInt&) const = default;
  constexpr StrongInt& operator++() {
    ++value_;
    return *this;
  }
  constexpr StrongInt& operator+=(StrongInt other) {
    value_ += other.value_;
    return *this;
  }
  constexpr StrongInt& operator-=(StrongInt other) {
    value_ -= other.value_;
    return *this;
  }
  friend constexpr StrongInt operator+(StrongInt a, StrongInt b) { return StrongInt(a.value_ + b.value_); }
  friend constexpr StrongInt operator-(StrongInt a, StrongInt b) { return StrongInt(a.value_ - b.value_); }
  struct Hash {
    size_t operator()(StrongInt v) const { return std::hash<Int>{}(v.value_); }
  };

 private:
  Int value_ = 0;
};

using Rank = StrongInt<struct RankTag, int32_t>;             // 0 .. world size - 1, in one generation
using Generation = StrongInt<struct GenerationTag>;          // fencing number of a job's assignments; first is 1
using Bytes = StrongInt<struct BytesTag>;                    // a size in bytes
using ElementCount = StrongInt<struct ElementCountTag>;      // a number of tensor elements
using Step = StrongInt<struct StepTag>;                      // batch index: always advances; completed steps 1, 2, ...
using SampleIndex = StrongInt<struct SampleIndexTag>;        // row in the data set, 0 .. N - 1
using SamplePosition = StrongInt<struct SamplePositionTag>;  // position in the endless stream of epochs

}  // namespace tutti
