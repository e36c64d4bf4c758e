// Broken invariants of our own end the process with file, line, the condition and a message. For what the world may do,
// return a Status instead (base/status.h).
#pragma once

#include <fmt/core.h>

#include <string>

namespace tutti {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, const std::string& message);
}  // namespace tutti

#define TUTTI_CHECK(condition, ...)                                                        \
  do {                                                                                     \
    if (!(condition)) [[unlikely]]                                                         \
      ::tutti::CheckFailed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)

#define TUTTI_CHECK_OK(expr)                                                            \
  do {                                                                                  \
    if (const auto tutti_check_status = (expr); !tutti_check_status.ok()) [[unlikely]] \
      ::tutti::CheckFailed(__FILE__, __LINE__, #expr, tutti_check_status.ToString());   \
  } while (false)
