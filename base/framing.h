// Length-prefixed frames over a stream socket or in an append-only file: 4 bytes little-endian length, 4 bytes low half
// of the payload's XXH3, payload. A torn tail of a file is found and cut; a frame over the limit is refused, never
// allocated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tutti {

inline constexpr int64_t kMaxFrameBytes = 16 << 20;

void AppendFrame(std::string_view payload, std::string* out);

// Blocking send and receive on a descriptor. Receive returns nullopt at a clean end of stream; DATA_LOSS on a damaged
// frame.
Status SendFrame(int fd, std::string_view payload);
StatusOr<std::optional<std::string>> ReceiveFrame(int fd);

// Incremental parser for non-blocking readers: Feed bytes, then take frames until nullopt.
class FrameParser {
 public:
  void Feed(std::string_view bytes) { buffer_.append(bytes); }
  StatusOr<std::optional<std::string>> Next();  // DATA_LOSS: the stream cannot be trusted any more
  size_t buffered_bytes() const { return buffer_.size() - offset_; }

 private:
  std::string buffer_;
  size_t offset_ = 0;
};

}  // namespace tutti
