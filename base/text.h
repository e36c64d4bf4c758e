// Numbers as messages and tables show them. Pure.
#pragma once

#include <cstdint>
#include <string>

namespace tutti {

std::string WithCommas(int64_t value);  // 421,642
std::string MemoryText(int64_t bytes);  // "29.3 MiB", "512 B"

}  // namespace tutti
