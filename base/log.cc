#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace tutti {
namespace {

constexpr size_t kMaxLineBytes = 8192;

spdlog::level::level_enum LevelOf(Severity severity) {
  switch (severity) {
    case Severity::kDebug:
      return spdlog::level::debug;
    case Severity::kInfo:
      return spdlog::level::info;
    case Severity::kWarning:
      return spdlog::level::warn;
    case Severity::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

void InitLogging(std::string_view component, Severity minimum) {
  auto logger =
      std::make_shared<spdlog::logger>(std::string(component), std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %n: %v");
  logger->set_level(LevelOf(minimum));
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
}

void LogLine(Severity severity, std::string_view message) {
  std::string line(message.substr(0, kMaxLineBytes));
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';  // one event, one line
  }
  spdlog::default_logger_raw()->log(LevelOf(severity), "{}", line);
}

}  // namespace tutti
