// Numbers and lists as people read them. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"

namespace tutti::cli {

std::string DurationText(double seconds);              // "0.2 s", "47.9 s", "2m03s", "3h07m"
std::string CountText(double value);                   // with a unit of thousand: "3.1 G"
std::string RankList(std::span<const int32_t> ranks);  // "ranks 0-2, 4"; "rank 3"; ascending input
std::string Significant(double value);                 // three significant digits at least: 0.287, 33.8, 1,234
// Columns with two spaces between; no trailing blanks. The first row is the heading.
std::string Table(const std::vector<std::vector<std::string>>& rows);
// `text` without control characters, so that a log line cannot steer the terminal.
std::string Printable(std::string_view text);
// Columns that UTF-8 text takes, one per code point.
size_t DisplayWidth(std::string_view text);
// `text` cut to `width` columns.
std::string Clip(const std::string& text, size_t width);

}  // namespace tutti::cli
