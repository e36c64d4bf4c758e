#include "engine/comm/gloo_link.h"

#include <gloo/transport/pair.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tutti {
namespace {

constexpr uint64_t kControlSlot = ~uint64_t{0};
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);
constexpr Millis kWatchPeriod(20);
constexpr Millis kGrace(150);  // for a peer's report that says more than what we saw

}  // namespace

BlockSigpipe::BlockSigpipe() {
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe, &before_);
}

BlockSigpipe::~BlockSigpipe() {
  if (sigismember(&before_, SIGPIPE) == 0) {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    const timespec now{0, 0};
    while (::sigtimedwait(&pipe, nullptr, &now) == SIGPIPE) {
    }
  }
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

GlooLink::GlooLink(std::shared_ptr<gloo::transport::Context> context, std::shared_ptr<void> keep_alive, Millis timeout)
    : keep_alive_(std::move(keep_alive)),
      context_(std::move(context)),
      rank_(context_->rank),
      world_(context_->size),
      timeout_(timeout),
      waiting_for_(world_, -1) {
  if (world_ == 1) return;
  incoming_.resize(world_);
  for (int32_t peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    Incoming& incoming = incoming_[peer];
    incoming.buffer = context_->createUnboundBuffer(&incoming.report, sizeof(Report));
    incoming.listener = std::thread([this, peer] { Listen(peer); });
  }
  watchdog_ = std::thread([this] { Watch(); });
}

GlooLink::~GlooLink() {
  Flush();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (Incoming& incoming : incoming_) {
    if (incoming.buffer != nullptr) incoming.buffer->abortWaitRecv();
    if (incoming.listener.joinable()) incoming.listener.join();
  }
  if (watchdog_.joinable()) watchdog_.join();
}

Status GlooLink::Health() {
  const std::lock_guard lock(mutex_);
  if (poison_.ok() && peer_timed_out_) {
    const auto reporter = std::find_if(waiting_for_.begin(), waiting_for_.end(), [](int32_t w) { return w >= 0; });
    return ResolveTimeoutLocked(*reporter);
  }
  return poison_;
}

Status GlooLink::Send(int32_t peer, uint64_t slot, const void* data, int64_t bytes) {
  return Post(peer, slot, const_cast<void*>(data), bytes, true);
}

Status GlooLink::Receive(int32_t peer, uint64_t slot, void* data, int64_t bytes) {
  return Post(peer, slot, data, bytes, false);
}

Status GlooLink::Post(int32_t peer, uint64_t slot, void* data, int64_t bytes, bool is_send) {
  Transfer& transfer = pending_.emplace_back(Transfer{context_->createUnboundBuffer(data, bytes), peer, is_send});
  ++posted_;
  const BlockSigpipe block;
  try {
    if (is_send) {
      transfer.buffer->send(peer, slot, 0, bytes);
    } else {
      transfer.buffer->recv(peer, slot, 0, bytes);
    }
  } catch (const std::exception& e) {
    return Fail(Broken(peer, e.what()));
  }
  return OkStatus();
}

Status GlooLink::WaitThrough(int64_t posted) {
  while (completed_ < posted) {
    const Status status = Wait(pending_.front());
    if (!status.ok()) return Fail(status);
    pending_.pop_front();
    ++completed_;
  }
  return OkStatus();
}

// Destroying a buffer waits for the device thread to let go of it: afterwards nobody writes to the caller's memory.
Status GlooLink::Fail(Status status) {
  pending_.clear();
  completed_ = posted_;
  return status;
}

Status GlooLink::Wait(Transfer& transfer) {
  {
    const std::lock_guard lock(mutex_);
    if (!poison_.ok()) return poison_;
    running_ = peer_timed_out_ ? nullptr : &transfer;
    deadline_ = SystemClock().Monotonic() + timeout_;
  }
  if (running_ == nullptr) return TimedOut(transfer.peer);
  bool completed = false;
  std::string broken;
  try {
    completed =
        transfer.is_send ? transfer.buffer->waitSend(nullptr, kForever) : transfer.buffer->waitRecv(nullptr, kForever);
  } catch (const std::exception& e) {
    broken = e.what();
  }
  {
    const std::lock_guard lock(mutex_);
    running_ = nullptr;
    if (completed) return OkStatus();
    if (broken.empty() && !poison_.ok()) return poison_;
  }
  return broken.empty() ? TimedOut(transfer.peer) : Broken(transfer.peer, broken);
}

// A connection breaks when its peer dies, and when the peer leaves because of another's death: then its report is here
// soon.
Status GlooLink::Broken(int32_t peer, const std::string& how) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kGrace, [&] { return !poison_.ok(); });
    if (!poison_.ok()) return poison_;
  }
  return Poison(absl::StatusCode::kUnavailable, peer,
                fmt::format("{}: connection to rank {} is lost ({})", TitleOfCall(), peer, how.substr(0, 160)), true);
}

// Everybody who waits says for whom; following that from one to the next ends at a rank that waits for nobody: the
// cause.
Status GlooLink::TimedOut(int32_t peer) {
  {
    const std::lock_guard lock(mutex_);
    waiting_for_[rank_] = peer;
  }
  Tell({.code = static_cast<int32_t>(absl::StatusCode::kDeadlineExceeded), .from = rank_, .waiting_for = peer});
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kGrace, [&] { return !poison_.ok(); });
  return ResolveTimeoutLocked(peer);
}

Status GlooLink::ResolveTimeoutLocked(int32_t waiting_for) {
  int32_t cause = waiting_for;
  for (int32_t hops = 0; hops < world_ && waiting_for_[cause] >= 0; ++hops) cause = waiting_for_[cause];
  SetPoisonLocked(
      absl::StatusCode::kDeadlineExceeded, cause,
      fmt::format("{}: no progress for {} ms, waiting for rank {}", TitleOfCall(), timeout_.count(), cause));
  return poison_;
}

void GlooLink::SetPoisonLocked(absl::StatusCode code, int32_t blamed, const std::string& text) {
  if (poison_.ok()) poison_ = WithBlame(Status(code, text), blamed);
  changed_.notify_all();
}

Status GlooLink::Poison(absl::StatusCode code, int32_t blamed, const std::string& text, bool tell) {
  bool first = false;
  Status status;
  {
    const std::lock_guard lock(mutex_);
    first = poison_.ok();
    SetPoisonLocked(code, blamed, text);
    status = poison_;
    InterruptLocked();
  }
  if (first && tell) {
    Report report{.code = static_cast<int32_t>(code), .from = rank_, .blamed = blamed};
    std::memcpy(report.text, text.data(), std::min(text.size(), sizeof(report.text)));
    Tell(report);
  }
  return status;
}

void GlooLink::InterruptLocked() {
  if (running_ == nullptr) return;
  if (running_->is_send) {
    running_->buffer->abortWaitSend();
  } else {
    running_->buffer->abortWaitRecv();
  }
}

void GlooLink::Tell(const Report& report) {
  const BlockSigpipe block;
  const std::lock_guard lock(mutex_);
  Outgoing& outgoing = told_.emplace_back(Outgoing{report, {}});
  for (int32_t peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    outgoing.buffers.push_back(context_->createUnboundBuffer(&outgoing.report, sizeof(Report)));
    try {
      outgoing.buffers.back()->send(peer, kControlSlot, 0, sizeof(Report));
    } catch (const std::exception&) {
      continue;  // it cannot be reached, and its own connections tell it that something is wrong
    }
  }
}

// If the connections closed under a report, its receiver would take this rank for the cause.
void GlooLink::Flush() {
  const Nanos deadline = SystemClock().Monotonic() + kGrace;
  for (const Outgoing& outgoing : told_) {
    for (const auto& buffer : outgoing.buffers) {
      const Nanos left = std::max(deadline - SystemClock().Monotonic(), Nanos(0));
      try {
        buffer->waitSend(nullptr, std::chrono::duration_cast<std::chrono::milliseconds>(left));
      } catch (const std::exception&) {
        continue;  // that peer is gone or does not answer
      }
    }
  }
}

void GlooLink::Listen(int32_t peer) {
  const BlockSigpipe block;
  Incoming& incoming = incoming_[peer];
  for (;;) {
    try {
      incoming.buffer->recv(peer, kControlSlot, 0, sizeof(Report));
      if (!incoming.buffer->waitRecv(nullptr, kForever)) return;
    } catch (const std::exception&) {
      return;  // the connection broke: who needs that peer finds out, for who does not it is no error
    }
    HandleReport(incoming.report);
  }
}

void GlooLink::HandleReport(const Report& report) {
  const std::lock_guard lock(mutex_);
  if (report.waiting_for >= 0 && report.waiting_for < world_ && report.from >= 0 && report.from < world_) {
    waiting_for_[report.from] = report.waiting_for;
    peer_timed_out_ = true;
  } else {
    SetPoisonLocked(static_cast<absl::StatusCode>(report.code), report.blamed,
                    std::string(report.text, strnlen(report.text, sizeof(report.text))));
  }
  InterruptLocked();
}

void GlooLink::Watch() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kWatchPeriod, [&] { return stopping_; })) {
    if (running_ != nullptr && SystemClock().Monotonic() >= deadline_) InterruptLocked();
  }
}

std::string GlooLink::TitleOfCall() const { return call_ == nullptr ? "start" : Title(*call_); }

}  // namespace tutti
