// The agent's end of one run: a connection to its shim, or, when that is gone, the run's folder.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/framing.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "tutti/v1/shim.pb.h"
#include "worker/agent/agent.h"
#include "worker/shim/event_log.h"

namespace tutti::worker {

class ShimLink {
 public:
  // Connects and asks for the events after the cursor; where no shim lives (its lock is free) the folder is made to say
  // how the run ended and is replayed instead. UNAVAILABLE: a shim lives but does not answer; try again.
  static StatusOr<ShimLink> Attach(const std::string& run_directory, const v1::StartJob& start, const std::string& node,
                                   const AttachShim& request);

  const RunKey& key() const { return key_; }
  int64_t epoch() const { return epoch_; }
  int fd() const { return socket_.get(); }  // -1: nothing to wait for, Read gives the next part
  bool wants_to_write() const { return !outbox_.empty(); }
  bool ended() const { return ended_; }

  void Send(const v1::ShimRequest& request);  // dropped where no shim lives
  void Flush();
  // A bounded number of events for Step; the last one is ShimClosed.
  std::vector<AgentEvent> Read();

 private:
  Status OpenFolder(const std::string& run_directory, const v1::StartJob& start, const std::string& node);
  void ReadSocket(std::vector<AgentEvent>* events);
  void ReadFolder(std::vector<AgentEvent>* events);
  void Close(std::vector<AgentEvent>* events);

  RunKey key_;
  int64_t epoch_ = 0;
  int64_t after_ = 0;
  UniqueFd socket_;
  FrameParser parser_;
  std::string outbox_;
  std::optional<v1::ShimState> folder_state_;
  std::optional<EventReader> folder_;
  bool ended_ = false;
};

}  // namespace tutti::worker
