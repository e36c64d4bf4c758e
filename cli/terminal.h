// Standard output: plain lines, or on a terminal also status lines that are drawn anew at its bottom.
#pragma once

#include <string>
#include <vector>

namespace tutti::cli {

class Terminal {
 public:
  // `quiet`: writes nothing at all (scripts get one object in the end).
  explicit Terminal(bool quiet);

  bool interactive() const { return interactive_; }
  size_t width() const;  // columns, asked anew each time
  // Text that stays. On a terminal the status lines go first; colours by leading word unless NO_COLOR is set.
  void Print(const std::string& text);
  void ShowStatus(std::vector<std::string> lines);
  void ClearStatus() { ShowStatus({}); }

 private:
  void Write(const std::string& text);
  bool quiet_, interactive_, colour_;
  bool gone_ = false;                // nobody reads any more: the terminal hung up, the pipe's reader left
  std::vector<std::string> status_;  // as drawn
};

}  // namespace tutti::cli
