#include "cli/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <string_view>

#include "base/files.h"
#include "base/process.h"

namespace tutti::cli {
namespace {

constexpr size_t kUsualWidth = 120;

std::string_view ColourOf(std::string_view line) {
  const std::string_view word = line.substr(0, line.find(' '));
  if (word == "FAILED" || word == "cause") return "\x1b[31m";
  if (word == "RECOVERING" || word == "warn") return "\x1b[33m";
  if (word == "done") return "\x1b[32m";
  if (word == "plan" || word == "run" || word == "eval" || word == "saved") return "\x1b[36m";
  return "";
}

// The leading word of each line in its colour.
std::string Colourise(const std::string& text) {
  std::string out;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size() - 1) + 1;
    const std::string_view line = std::string_view(text).substr(start, end - start);
    const std::string_view colour = ColourOf(line);
    const size_t word = std::min(line.find(' '), line.size());
    out += colour.empty() ? std::string(line)
                          : fmt::format("{}{}\x1b[0m{}", colour, line.substr(0, word), line.substr(word));
    start = end;
  }
  return out;
}

}  // namespace

Terminal::Terminal(bool quiet) : quiet_(quiet), interactive_(!quiet && ::isatty(STDOUT_FILENO) == 1) {
  const auto no_colour = GetEnv("NO_COLOR");
  colour_ = interactive_ && (!no_colour || no_colour->empty()) && GetEnv("TERM").value_or("") != "dumb";
}

size_t Terminal::width() const {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsualWidth;
}

void Terminal::Write(const std::string& text) {
  if (quiet_ || gone_ || text.empty()) return;
  gone_ = !WriteAll(STDOUT_FILENO, text).ok();
}

void Terminal::Print(const std::string& text) {
  ClearStatus();
  Write(colour_ ? Colourise(text) : text);
}

void Terminal::ShowStatus(std::vector<std::string> lines) {
  if (!interactive_ || lines == status_) return;
  std::string text = status_.empty() ? "" : fmt::format("\x1b[{}A\r\x1b[J", status_.size());
  for (const std::string& line : lines) text += line + "\n";
  status_ = std::move(lines);
  Write(text);
}

}  // namespace tutti::cli
