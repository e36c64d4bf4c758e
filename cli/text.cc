#include "cli/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace tutti::cli {

std::string DurationText(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "unknown";
  if (seconds < 99.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

std::string CountText(double value) {
  constexpr std::array<const char*, 5> kUnits = {"", " k", " M", " G", " T"};
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) value /= 1000, ++unit;
  return fmt::format("{:.1f}{}", value, kUnits[unit]);
}

std::string RankList(std::span<const int32_t> ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[i]);
    if (end > i) text += fmt::format("{}{}", end == i + 1 ? ", " : "-", ranks[end]);
    i = end + 1;
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", text);
}

std::string Significant(double value) {
  const double size = std::abs(value);
  if (!std::isfinite(value)) return fmt::format("{}", value);
  if (size >= 1000) return WithCommas(std::llround(value));
  if (size >= 100) return fmt::format("{:.0f}", value);
  if (size >= 10) return fmt::format("{:.1f}", value);
  if (size >= 1) return fmt::format("{:.2f}", value);
  return size > 0 && size < 0.0005 ? fmt::format("{:.1e}", value) : fmt::format("{:.3f}", value);
}

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) {
      if (i == widths.size()) widths.push_back(0);
      widths[i] = std::max(widths[i], DisplayWidth(row[i]));
    }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line += std::string(widths[i] - DisplayWidth(row[i]) + 2, ' ');
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string Printable(std::string_view text) {
  std::string out;
  for (char c : text)
    if (const auto byte = static_cast<unsigned char>(c); byte >= 0x20 && byte != 0x7F) {
      out += c;
    } else if (c == '\t') {
      out += "  ";
    }
  return out;
}

size_t DisplayWidth(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string Clip(const std::string& text, size_t width) {
  size_t columns = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) continue;
    if (columns++ == width) return text.substr(0, i);
  }
  return text;
}

}  // namespace tutti::cli
