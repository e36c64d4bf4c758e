// The one stream to the coordinator: connects, and connects again for ever (50 ms to 1 s, with jitter). gRPC stays
// behind this header.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/v1/agent.pb.h"

namespace tutti::worker {

struct CoordinatorLinkOptions {
  std::string address;  // "unix:PATH" or "HOST:PORT"
  std::string token;    // sent as metadata "authorization: Bearer ..."; empty: none
  int wake_fd = -1;     // eventfd that is written when Take has something
};

class CoordinatorLink {
 public:
  struct Incoming {
    enum class Kind { kOpened, kMessage, kClosed } kind;
    int64_t stream;  // 1, 2, ...
    v1::ConnectResponse message;
    std::string reason;  // kClosed: why
  };

  explicit CoordinatorLink(CoordinatorLinkOptions options);
  ~CoordinatorLink();  // sends what is queued, for at most a second

  // Queued for that stream; dropped where it is over.
  void Send(int64_t stream, v1::ConnectRequest message);
  size_t queued() const;  // messages that are not handed to gRPC yet
  void CloseStream();     // then connects again
  std::vector<Incoming> Take();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::worker
