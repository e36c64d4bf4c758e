#include "worker/shim/rank_log.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "base/files.h"
#include "base/log.h"

namespace tutti::worker {
namespace {

constexpr size_t kTailBytes = 64 << 10;
constexpr size_t kMaxLineBytes = 64 << 10;
constexpr size_t kMaxShownLineBytes = 2000;

void AppendTail(std::string_view text, std::string* tail) {
  tail->append(text);
  if (tail->size() > 2 * kTailBytes) tail->erase(0, tail->size() - kTailBytes);
}

// Length of the valid UTF-8 sequence at the start of `s`, 0 when there is none (RFC 3629: no overlong forms, no
// surrogates).
size_t SequenceLength(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const auto tail = [&](size_t i) { return i < s.size() && (byte(i) & 0xC0) == 0x80; };
  if (byte(0) < 0x80) return 1;
  if (byte(0) >= 0xC2 && byte(0) <= 0xDF) return tail(1) ? 2 : 0;
  if (byte(0) >= 0xE0 && byte(0) <= 0xEF) {
    if (!tail(1) || !tail(2) || (byte(0) == 0xE0 && byte(1) < 0xA0) || (byte(0) == 0xED && byte(1) > 0x9F)) return 0;
    return 3;
  }
  if (byte(0) >= 0xF0 && byte(0) <= 0xF4) {
    if (!tail(1) || !tail(2) || !tail(3) || (byte(0) == 0xF0 && byte(1) < 0x90) || (byte(0) == 0xF4 && byte(1) > 0x8F))
      return 0;
    return 4;
  }
  return 0;
}

}  // namespace

std::string ValidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    if (length == 0) out.push_back('?');
    out.append(text.substr(0, length));
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

StatusOr<RankLog> RankLog::Open(const std::string& path, int64_t limit_bytes) {
  RankLog log;
  log.fd_.Reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.fd_.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  log.path_ = path;
  log.limit_bytes_ = limit_bytes;
  return log;
}

void RankLog::Feed(std::string_view bytes, Nanos now) {
  while (!bytes.empty()) {
    const size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    if (end > 0) {
      swallow_newline_ = false;
      line_.append(bytes.substr(0, end));
      if (line_.size() > kMaxLineBytes) FlushAll(/*end_line=*/false);
    }
    if (end < bytes.size()) bytes[end] == '\n' ? OnNewline() : OnCarriageReturn();
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
  }
  if (line_.empty() && !update_) {
    dirty_since_.reset();
  } else if (!dirty_since_) {
    dirty_since_ = now;
  }
}

void RankLog::OnNewline() {
  if (swallow_newline_) {
    swallow_newline_ = false;
    return;
  }
  if (line_.empty() && update_) line_ = *std::move(update_);
  update_.reset();
  line_.push_back('\n');
  Emit(line_);
  line_.clear();
  part_written_ = false;
}

void RankLog::OnCarriageReturn() {
  swallow_newline_ = false;
  if (part_written_) {
    OnNewline();
    swallow_newline_ = true;
  } else if (!line_.empty()) {
    update_ = std::move(line_);
    line_.clear();
  }
}

std::optional<Nanos> RankLog::NextFlush() const {
  if (!dirty_since_) return std::nullopt;
  return *dirty_since_ + kLogFlushEvery;
}

void RankLog::FlushDue(Nanos now) {
  if (dirty_since_ && now >= *dirty_since_ + kLogFlushEvery) FlushAll(/*end_line=*/false);
}

// Text after an update overwrites it, as on a terminal.
void RankLog::FlushAll(bool end_line) {
  dirty_since_.reset();
  if (!line_.empty()) {
    update_.reset();
    Emit(line_);
    line_.clear();
    part_written_ = true;
  } else if (update_) {
    Emit(*update_ + "\n");
    update_.reset();
    swallow_newline_ = true;
  }
  if (end_line && part_written_) {
    Emit("\n");
    part_written_ = false;
  }
}

void RankLog::Emit(std::string_view text) {
  AppendTail(text, &tail_);
  const auto room = static_cast<size_t>(std::max<int64_t>(0, limit_bytes_ - written_bytes_));
  Write(text.substr(0, room));
  if (text.size() > room) {
    over_bytes_ += static_cast<int64_t>(text.size() - room);
    AppendTail(text.substr(room), &over_tail_);
  }
}

void RankLog::Write(std::string_view text) {
  if (text.empty()) return;
  written_bytes_ += static_cast<int64_t>(text.size());
  const Status status = WriteAll(fd_.get(), text);
  if (!status.ok() && !write_failed_) LogError("output of a rank is lost: {}", Message(status));
  write_failed_ = !status.ok();
}

void RankLog::Close() {
  FlushAll(/*end_line=*/true);
  if (over_bytes_ > 0) {
    const std::string_view end =
        std::string_view(over_tail_).substr(over_tail_.size() - std::min(over_tail_.size(), kTailBytes));
    Write(fmt::format("\n[tutti] the log's limit of {} bytes was reached: {} bytes are left out here\n", limit_bytes_,
                      over_bytes_ - static_cast<int64_t>(end.size())));
    Write(end);
  }
  fd_.Reset();
}

std::vector<std::string> RankLog::LastLines(size_t count) const {
  std::vector<std::string> lines;
  const std::string text = tail_ + (update_ && line_.empty() ? *update_ : line_);
  size_t end = text.size();
  while (lines.size() < count && end > 0) {
    const size_t newline = text.rfind('\n', end - 1);
    const size_t begin = newline == std::string::npos ? 0 : newline + 1;
    if (end > begin)
      lines.push_back(ValidUtf8(std::string_view(text).substr(begin, std::min(end - begin, kMaxShownLineBytes))));
    end = newline == std::string::npos ? 0 : newline;
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace tutti::worker
