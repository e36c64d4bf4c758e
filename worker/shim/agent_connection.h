// The agent that is attached to a shim: replays the event file from its cursor, then follows it. Memory is bounded:
// kept events are read from the file when the socket has room.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/framing.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "tutti/v1/shim.pb.h"
#include "worker/shim/event_log.h"

namespace tutti::worker {

class AgentConnection {
 public:
  AgentConnection(UniqueFd socket, std::string events_path)
      : socket_(std::move(socket)), events_path_(std::move(events_path)) {}

  int fd() const { return socket_.get(); }
  bool wants_to_write() const { return !outbox_.empty(); }

  // What the agent asked. UNAVAILABLE: it left. DATA_LOSS: it does not speak the protocol.
  StatusOr<std::vector<v1::ShimRequest>> Read();

  // Answers Attach: `state`, then the events after the cursor.
  Status Attach(const v1::Attach& attach, const v1::ShimState& state, const EventLog& log);
  // An event that is not kept; dropped where the agent is behind.
  void Offer(const v1::ShimEvent& event);
  // Moves events from the file to the socket, as many as fit.
  Status Pump();
  void Close() { socket_.Reset(); }
  // Attached, and everything that is in the file was handed to the kernel.
  bool told_all() const { return reader_ && outbox_.empty() && at_end_; }

 private:
  Status Write();

  UniqueFd socket_;
  std::string events_path_;
  FrameParser parser_;
  std::string outbox_;
  std::optional<EventReader> reader_;
  int64_t after_ = 0;
  bool at_end_ = false;
};

}  // namespace tutti::worker
