#include "base/text.h"

#include <fmt/format.h>

#include <array>

namespace tutti {

std::string WithCommas(int64_t value) {
  const std::string digits = fmt::to_string(value);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    const size_t left = digits.size() - i;
    if (i > (digits[0] == '-' ? 1u : 0u) && left % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string MemoryText(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace tutti
