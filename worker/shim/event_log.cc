#include "worker/shim/event_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/files.h"
#include "base/log.h"

namespace tutti::worker {

StatusOr<EventReader> EventReader::Open(const std::string& path, int64_t offset) {
  EventReader reader;
  reader.fd_.Reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!reader.fd_.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  reader.path_ = path;
  reader.offset_ = reader.read_offset_ = offset;
  return reader;
}

StatusOr<std::optional<v1::ShimEvent>> EventReader::Next() {
  while (true) {
    const auto before = parser_.buffered_bytes();
    TUTTI_ASSIGN_OR_RETURN(std::optional<std::string> frame, parser_.Next());
    if (frame) {
      v1::ShimEvent event;
      if (!event.ParseFromString(*frame)) return DataLoss("{} at byte {}: no ShimEvent", path_, offset_);
      offset_ += static_cast<int64_t>(before - parser_.buffered_bytes());
      return std::optional<v1::ShimEvent>(std::move(event));
    }
    std::array<char, 65536> chunk;
    const ssize_t n = ::pread(fd_.get(), chunk.data(), chunk.size(), read_offset_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, fmt::format("read {}", path_));
    if (n == 0) return std::optional<v1::ShimEvent>();
    parser_.Feed(std::string_view(chunk.data(), static_cast<size_t>(n)));
    read_offset_ += n;
  }
}

StatusOr<EventLog> EventLog::Open(const std::string& path) {
  EventLog log;
  log.path_ = path;
  log.fd_.Reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!log.fd_.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  TUTTI_ASSIGN_OR_RETURN(EventReader reader, EventReader::Open(path));
  while (true) {
    auto event = reader.Next();
    if (!event.ok()) LogWarning("{}: cut at byte {}: {}", path, reader.offset(), Message(event.status()));
    if (!event.ok() || !*event) break;
    log.last_sequence_ = (*event)->sequence();
  }
  log.size_bytes_ = reader.offset();
  if (::ftruncate(log.fd_.get(), log.size_bytes_) != 0) return ErrnoStatus(errno, fmt::format("cut {}", path));
  return log;
}

void EventLog::Append(v1::ShimEvent event) {
  event.set_sequence(++last_sequence_);
  std::string frame;
  AppendFrame(event.SerializeAsString(), &frame);
  waiting_.push_back(std::move(frame));
  const Status status = Flush();
  if (!status.ok() && waiting_.size() <= 1) LogError("event {} waits in memory: {}", last_sequence_, Message(status));
}

Status EventLog::Sync() { return Fsync(fd_.get(), path_); }

Status EventLog::Flush() {
  while (!waiting_.empty()) {
    const std::string& frame = waiting_.front();
    const ssize_t n = ::pwrite(fd_.get(), frame.data(), frame.size(), size_bytes_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, fmt::format("write {}", path_));
    if (static_cast<size_t>(n) < frame.size()) {  // a half frame would look like a torn tail to readers: take it back
      if (::ftruncate(fd_.get(), size_bytes_) != 0) return ErrnoStatus(errno, fmt::format("cut {}", path_));
      return ResourceExhausted("write {}: only {} of {} bytes fit", path_, n, frame.size());
    }
    size_bytes_ += n;
    waiting_.pop_front();
  }
  return OkStatus();
}

}  // namespace tutti::worker
