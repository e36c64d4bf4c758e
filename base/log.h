// One line per event on standard error: time, severity, component, message. Set up once by main; thread-safe. Lines are
// bounded. People read these lines: say what happened and to whom. Never log a secret or a whole job file.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace tutti {

enum class Severity { kDebug, kInfo, kWarning, kError };

// `component` ("coordinator", "agent", ...) stands in each line. Lines below `minimum` are dropped.
void InitLogging(std::string_view component, Severity minimum = Severity::kInfo);
void LogLine(Severity severity, std::string_view message);

template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(Severity::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(Severity::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(Severity::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tutti
