#include "base/framing.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/digest.h"
#include "base/files.h"

namespace tutti {
namespace {

constexpr size_t kHeaderBytes = 8;

struct Header {
  uint32_t length;
  uint32_t digest;
};
static_assert(sizeof(Header) == kHeaderBytes);

Status CheckLength(uint32_t length) {
  if (length <= kMaxFrameBytes) return OkStatus();
  return DataLoss("frame of {} bytes, at most {} are allowed", length, kMaxFrameBytes);
}

Status CheckDigest(std::string_view payload, uint32_t digest) {
  if (static_cast<uint32_t>(Xxh3(payload)) == digest) return OkStatus();
  return DataLoss("frame of {} bytes has another digest than its header says", payload.size());
}

// Number of bytes read before the end of stream, at most `size`.
StatusOr<size_t> ReadUpTo(int fd, char* out, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(fd, out + done, size - done);
    if (n == 0) break;
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == ECONNRESET) break;  // the peer was killed with unread data: an end like any other
      return ErrnoStatus(errno, "read a frame");
    }
    done += static_cast<size_t>(n);
  }
  return done;
}

}  // namespace

void AppendFrame(std::string_view payload, std::string* out) {
  TUTTI_CHECK(payload.size() <= static_cast<size_t>(kMaxFrameBytes), "{} bytes", payload.size());
  const Header header{static_cast<uint32_t>(payload.size()), static_cast<uint32_t>(Xxh3(payload))};
  out->append(reinterpret_cast<const char*>(&header), kHeaderBytes);
  out->append(payload);
}

Status SendFrame(int fd, std::string_view payload) {
  std::string bytes;
  bytes.reserve(payload.size() + kHeaderBytes);
  AppendFrame(payload, &bytes);
  size_t done = 0;
  while (done < bytes.size()) {
    ssize_t n = ::send(fd, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (n < 0 && errno == ENOTSOCK) n = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, "send a frame");
    }
    done += static_cast<size_t>(n);
  }
  return OkStatus();
}

StatusOr<std::optional<std::string>> ReceiveFrame(int fd) {
  Header header;
  TUTTI_ASSIGN_OR_RETURN(const size_t got, ReadUpTo(fd, reinterpret_cast<char*>(&header), kHeaderBytes));
  if (got == 0) return std::optional<std::string>();
  if (got < kHeaderBytes) return DataLoss("stream ended inside a frame's header");
  TUTTI_RETURN_IF_ERROR(CheckLength(header.length));
  std::string payload(header.length, '\0');
  TUTTI_ASSIGN_OR_RETURN(const size_t body, ReadUpTo(fd, payload.data(), payload.size()));
  if (body < payload.size()) return DataLoss("stream ended after {} of a frame's {} bytes", body, payload.size());
  TUTTI_RETURN_IF_ERROR(CheckDigest(payload, header.digest));
  return std::optional<std::string>(std::move(payload));
}

StatusOr<std::optional<std::string>> FrameParser::Next() {
  if (buffered_bytes() < kHeaderBytes) return std::optional<std::string>();
  Header header;
  std::memcpy(&header, buffer_.data() + offset_, kHeaderBytes);
  TUTTI_RETURN_IF_ERROR(CheckLength(header.length));
  if (buffered_bytes() < kHeaderBytes + header.length) return std::optional<std::string>();
  std::string payload = buffer_.substr(offset_ + kHeaderBytes, header.length);
  TUTTI_RETURN_IF_ERROR(CheckDigest(payload, header.digest));
  offset_ += kHeaderBytes + header.length;
  if (offset_ == buffer_.size() || offset_ > (size_t{1} << 20)) {
    buffer_.erase(0, offset_);
    offset_ = 0;
  }
  return std::optional<std::string>(std::move(payload));
}

}  // namespace tutti
