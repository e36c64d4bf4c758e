#include "worker/rpc/shim_link.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "base/files.h"
#include "base/log.h"
#include "worker/launch/layout.h"
#include "worker/launch/local_socket.h"
#include "worker/shim/recover.h"

namespace tutti::worker {
namespace {

constexpr size_t kEventsPerRead = 256;

}  // namespace

StatusOr<ShimLink> ShimLink::Attach(const std::string& run_directory, const v1::StartJob& start,
                                    const std::string& node, const AttachShim& request) {
  ShimLink link;
  link.key_ = request.key;
  link.epoch_ = request.epoch;
  link.after_ = request.after_sequence;
  auto socket = ConnectLocal(run_directory, kShimSocketFile);
  if (socket.ok()) {
    link.socket_ = *std::move(socket);
    TUTTI_RETURN_IF_ERROR(SetNonBlocking(link.socket_.get()));
    v1::ShimRequest attach;
    attach.mutable_attach()->set_after_sequence(request.after_sequence);
    link.Send(attach);
    return link;
  }
  const auto lock = LockFile(JoinPath(run_directory, kShimLockFile));
  if (!lock.ok())
    return Unavailable("the shim of {} lives but cannot be reached: {}", ToString(request.key),
                       Message(socket.status()));
  TUTTI_RETURN_IF_ERROR(link.OpenFolder(run_directory, start, node));
  return link;
}

Status ShimLink::OpenFolder(const std::string& run_directory, const v1::StartJob& start, const std::string& node) {
  const Status recovered = RecoverRun(run_directory, start, node);
  if (!recovered.ok())
    LogError("{}: {}", ToString(key_), Message(recovered));  // a full disk, say: tried again at the next attachment
  TUTTI_ASSIGN_OR_RETURN(folder_state_, StateFromDisk(run_directory, start, node));
  TUTTI_ASSIGN_OR_RETURN(folder_, EventReader::Open(JoinPath(run_directory, kEventsFile)));
  return OkStatus();
}

void ShimLink::Send(const v1::ShimRequest& request) {
  if (!socket_.valid()) return;
  AppendFrame(request.SerializeAsString(), &outbox_);
  Flush();
}

void ShimLink::Flush() {
  while (!outbox_.empty() && socket_.valid()) {
    const ssize_t n = ::send(socket_.get(), outbox_.data(), outbox_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) {  // gone: Read finds out
      outbox_.clear();
      return;
    }
    outbox_.erase(0, static_cast<size_t>(n));
  }
}

std::vector<AgentEvent> ShimLink::Read() {
  std::vector<AgentEvent> events;
  if (ended_) return events;
  folder_ ? ReadFolder(&events) : ReadSocket(&events);
  return events;
}

void ShimLink::ReadSocket(std::vector<AgentEvent>* events) {
  std::array<char, 65536> chunk;
  while (events->size() < kEventsPerRead) {
    const ssize_t n = ::recv(socket_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return Close(events);
    parser_.Feed(std::string_view(chunk.data(), static_cast<size_t>(n)));
    while (true) {
      auto frame = parser_.Next();
      if (frame.ok() && !*frame) break;
      v1::ShimReply reply;
      if (!frame.ok() || !reply.ParseFromString(**frame)) {
        LogError("{}: its shim does not speak the protocol", ToString(key_));
        return Close(events);
      }
      if (reply.has_state()) events->push_back(ShimAttached{key_, epoch_, std::move(*reply.mutable_state())});
      if (reply.has_event()) events->push_back(ShimReported{key_, epoch_, std::move(*reply.mutable_event())});
    }
  }
}

void ShimLink::ReadFolder(std::vector<AgentEvent>* events) {
  if (folder_state_) {
    events->push_back(ShimAttached{key_, epoch_, *std::move(folder_state_)});
    folder_state_.reset();
    if (after_ < 0) return Close(events);  // nothing is replayed
  }
  while (events->size() < kEventsPerRead) {
    auto event = folder_->Next();
    if (!event.ok()) LogError("{}: {}", ToString(key_), Message(event.status()));
    if (!event.ok() || !*event) return Close(events);
    if ((*event)->sequence() > after_) events->push_back(ShimReported{key_, epoch_, **std::move(event)});
  }
}

void ShimLink::Close(std::vector<AgentEvent>* events) {
  ended_ = true;
  socket_.Reset();
  folder_.reset();
  events->push_back(ShimClosed{key_, epoch_});
}

}  // namespace tutti::worker
