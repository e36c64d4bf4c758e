#include "worker/shim/agent_connection.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace tutti::worker {
namespace {

constexpr size_t kOutboxBytes = 256 << 10;
constexpr size_t kOfferBytes = 64 << 10;

void AppendReply(const v1::ShimReply& reply, std::string* out) { AppendFrame(reply.SerializeAsString(), out); }

}  // namespace

StatusOr<std::vector<v1::ShimRequest>> AgentConnection::Read() {
  std::vector<v1::ShimRequest> requests;
  std::array<char, 65536> chunk;
  while (true) {
    const ssize_t n = ::recv(socket_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return requests;
    if (n <= 0) {
      if (requests.empty()) return Unavailable("the agent left");
      return requests;  // the next call finds the end again
    }
    parser_.Feed(std::string_view(chunk.data(), static_cast<size_t>(n)));
    while (true) {
      TUTTI_ASSIGN_OR_RETURN(const std::optional<std::string> frame, parser_.Next());
      if (!frame) break;
      v1::ShimRequest request;
      if (!request.ParseFromString(*frame)) return DataLoss("the agent sent a frame that is no ShimRequest");
      requests.push_back(std::move(request));
    }
  }
}

Status AgentConnection::Attach(const v1::Attach& attach, const v1::ShimState& state, const EventLog& log) {
  const bool only_new = attach.after_sequence() < 0;
  after_ = only_new ? log.last_sequence() : attach.after_sequence();
  TUTTI_ASSIGN_OR_RETURN(reader_, EventReader::Open(events_path_, only_new ? log.size_bytes() : 0));
  v1::ShimReply reply;
  *reply.mutable_state() = state;
  AppendReply(reply, &outbox_);
  return Pump();
}

void AgentConnection::Offer(const v1::ShimEvent& event) {
  if (!reader_ || outbox_.size() > kOfferBytes) return;
  v1::ShimReply reply;
  *reply.mutable_event() = event;
  AppendReply(reply, &outbox_);
}

Status AgentConnection::Pump() {
  while (reader_) {
    while (outbox_.size() < kOutboxBytes) {
      TUTTI_ASSIGN_OR_RETURN(std::optional<v1::ShimEvent> event, reader_->Next());
      at_end_ = !event;
      if (at_end_) break;
      if (event->sequence() <= after_) continue;
      v1::ShimReply reply;
      *reply.mutable_event() = *std::move(event);
      AppendReply(reply, &outbox_);
    }
    if (outbox_.empty()) return OkStatus();
    TUTTI_RETURN_IF_ERROR(Write());
    if (!outbox_.empty() || at_end_) return OkStatus();
  }
  return Write();
}

Status AgentConnection::Write() {
  size_t done = 0;
  while (done < outbox_.size()) {
    const ssize_t n = ::send(socket_.get(), outbox_.data() + done, outbox_.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) return Unavailable("the agent left");
    done += static_cast<size_t>(n);
  }
  outbox_.erase(0, done);
  return OkStatus();
}

}  // namespace tutti::worker
