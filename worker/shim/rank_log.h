// One rank's output, made readable and bounded.
//
// A progress bar (updates that end in, or begin with, a carriage return) becomes lines: what a terminal would show each
// half second. Text without an end of line is visible after half a second as well. The file keeps the first
// `limit_bytes`; what comes later is counted, and the last 64 KiB of it are added at the end, so that the reason of a
// failure is always there.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti::worker {

inline constexpr int64_t kDefaultLogLimitBytes = int64_t{256} << 20;
inline constexpr Nanos kLogFlushEvery = std::chrono::milliseconds(500);

class RankLog {
 public:
  static StatusOr<RankLog> Open(const std::string& path, int64_t limit_bytes = kDefaultLogLimitBytes);

  void Feed(std::string_view bytes, Nanos now);
  std::optional<Nanos> NextFlush() const;  // when FlushDue has something to do
  void FlushDue(Nanos now);
  void Close();  // all that is left, and the end of what was over the limit

  // The last `count` lines that are not empty, oldest first, valid UTF-8, each cut to 2,000 bytes.
  std::vector<std::string> LastLines(size_t count) const;

 private:
  void OnNewline();
  void OnCarriageReturn();
  void FlushAll(bool end_line);
  void Emit(std::string_view text);
  void Write(std::string_view text);

  UniqueFd fd_;
  std::string path_;
  int64_t limit_bytes_ = 0;
  int64_t written_bytes_ = 0;
  int64_t over_bytes_ = 0;
  std::string line_;                   // since the last end of line, not written yet
  std::optional<std::string> update_;  // the last text that a carriage return ended
  bool part_written_ = false;          // the file's last line is open
  bool swallow_newline_ = false;       // the carriage return before it has ended the line already
  std::optional<Nanos> dirty_since_;
  std::string tail_;       // last bytes, also those over the limit
  std::string over_tail_;  // last bytes over the limit
  bool write_failed_ = false;
};

// `text` with every byte that is not part of valid UTF-8 replaced by '?'.
std::string ValidUtf8(std::string_view text);

}  // namespace tutti::worker
