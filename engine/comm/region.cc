#include "engine/comm/region.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/process.h"

namespace tutti {
namespace {

constexpr Nanos kLookAround = Millis(50);  // a sleeping rank checks this often whether its peers live
constexpr int64_t kMaxSpinNs = 60'000, kMinSpinNs = 4'000;

void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, Nanos at_most) {
  const int64_t ns = std::max<int64_t>(at_most.count(), 0);
  const timespec timeout{ns / 1'000'000'000, ns % 1'000'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr,
            0);  // woken, changed, signalled or late: the caller looks
}

void FutexWakeAll(const std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

RegionPeer::RegionPeer(const RegionOptions& o)
    : memory_(o.memory),
      view_(o.memory.get(), o.world_size, o.window_bytes),
      rank_(o.rank.value()),
      world_size_(o.world_size),
      window_bytes_(o.window_bytes),
      timeout_(o.timeout),
      processes_(o.processes) {
  // Where ranks outnumber the processors a spinning rank only keeps the awaited one from running.
  if (world_size_ <= ::sysconf(_SC_NPROCESSORS_ONLN)) spin_ns_ = max_spin_ns_ = kMaxSpinNs;
}

RegionPeer::~RegionPeer() {
  if (view_.slot(rank_).attached.load() != 2) return;
  view_.slot(rank_).left.store(1);
  FutexWakeAll(view_.slot(rank_).tick);
}

Status RegionPeer::ClaimHeader(Generation generation) {
  RegionHeader& header = view_.header();
  int64_t found = 0;
  header.generation.compare_exchange_strong(found, generation.value());
  if (found != 0 && found != generation.value()) {
    return FailedPrecondition("shared memory belongs to generation {}, this is rank {} of generation {}", found, rank_,
                              generation.value());
  }
  int32_t world = 0;
  if (!header.world_size.compare_exchange_strong(world, world_size_) && world != world_size_) {
    return FailedPrecondition("shared memory belongs to {} ranks, rank {} expects {}", world, rank_, world_size_);
  }
  int64_t window = 0;
  if (!header.window_bytes.compare_exchange_strong(window, window_bytes_ + 1) && window != window_bytes_ + 1) {
    return FailedPrecondition("shared memory has windows of {} bytes, rank {} expects {}", window - 1, rank_,
                              window_bytes_);
  }
  uint32_t free = 0;
  if (!view_.slot(rank_).attached.compare_exchange_strong(free, 1)) {
    return FailedPrecondition("rank {} of generation {} is attached already (pid {})", rank_, generation.value(),
                              view_.slot(rank_).pid.load());
  }
  return OkStatus();
}

Status RegionPeer::Claim(Generation generation) {
  TUTTI_RETURN_IF_ERROR(ClaimHeader(generation));
  RankSlot& slot = view_.slot(rank_);
  if (processes_) {
    TUTTI_ASSIGN_OR_RETURN(const int64_t start, ProcessStartTicks(::getpid()));
    slot.start_ticks.store(start);
    slot.pid.store(::getpid());
  }
  slot.attached.store(2);
  view_.header().attached.fetch_add(1);
  FutexWakeAll(view_.header().attached);
  return OkStatus();
}

Status RegionPeer::Attach(Generation generation, Millis timeout) {
  const Nanos deadline = SystemClock().Monotonic() + timeout;
  TUTTI_RETURN_IF_ERROR(Claim(generation));
  TUTTI_RETURN_IF_ERROR(WaitAttached(deadline));
  OpenPeers();
  return OkStatus();
}

Status RegionPeer::WaitAttached(Nanos deadline) {
  std::atomic<uint32_t>& attached = view_.header().attached;
  for (;;) {
    const uint32_t seen = attached.load();
    if (seen == static_cast<uint32_t>(world_size_)) return OkStatus();
    TUTTI_RETURN_IF_ERROR(PoisonStatus());
    const Nanos now = SystemClock().Monotonic();
    if (now >= deadline) break;
    FutexWait(attached, seen, std::min(deadline - now, kLookAround));
  }
  std::vector<int32_t> missing;
  for (int32_t r = 0; r < world_size_; ++r) {
    if (view_.slot(r).attached.load() != 2) missing.push_back(r);
  }
  return Poison(absl::StatusCode::kDeadlineExceeded, missing.empty() ? -1 : missing[0],
                fmt::format("{} did not attach to the shared memory in time (expected {} ranks, arrived {})",
                            RankList(missing), world_size_, world_size_ - std::ssize(missing)));
}

void RegionPeer::OpenPeers() {
  pidfds_.resize(world_size_);
  for (int32_t r = 0; r < world_size_ && processes_; ++r) {
    const pid_t pid = view_.slot(r).pid.load();
    StatusOr<UniqueFd> fd = OpenPidFd(pid);
    const StatusOr<int64_t> start = ProcessStartTicks(pid);
    const bool same = start.ok() && *start == view_.slot(r).start_ticks.load();
    if (fd.ok() && same) pidfds_[r] = *std::move(fd);  // else Gone asks /proc and finds that it ended
  }
}

void RegionPeer::Tick() {
  RankSlot& slot = view_.slot(rank_);
  slot.tick.store(++ticks_);  // sequentially consistent with the waiter's counter: one of us sees the other
  if (slot.waiters.load() != 0) FutexWakeAll(slot.tick);
}

bool RegionPeer::Reached(int32_t peer, uint32_t tick) const {
  return static_cast<int32_t>(view_.slot(peer).tick.load() - tick) >= 0;
}

Status RegionPeer::WaitAll(uint32_t tick) {
  for (int32_t peer = 0; peer < world_size_; ++peer) {
    if (Reached(peer, tick) || Spin(peer, tick)) continue;
    TUTTI_RETURN_IF_ERROR(WaitFor(peer, tick));
  }
  return OkStatus();
}

// A rank whose peers are usually late (they compute) soon spins for a few microseconds only; one that is answered fast
// keeps spinning.
bool RegionPeer::Spin(int32_t peer, uint32_t tick) {
  if (max_spin_ns_ == 0) return false;
  const Nanos end = SystemClock().Monotonic() + Nanos(spin_ns_);
  do {
    for (int i = 0; i < 32; ++i) {
      if (Reached(peer, tick)) {
        spin_ns_ = std::min(max_spin_ns_, spin_ns_ * 2);
        return true;
      }
      Pause();
    }
  } while (SystemClock().Monotonic() < end);
  spin_ns_ = std::max(kMinSpinNs, spin_ns_ / 2);
  return false;
}

Status RegionPeer::WaitFor(int32_t peer, uint32_t tick) {
  RankSlot& slot = view_.slot(peer);
  const Nanos deadline = SystemClock().Monotonic() + timeout_;
  Nanos next_look = SystemClock().Monotonic() + kLookAround;
  for (;;) {
    slot.waiters.fetch_add(1);
    const uint32_t seen = slot.tick.load();
    if (static_cast<int32_t>(seen - tick) < 0 && view_.header().poison.load() == 0 && slot.left.load() == 0) {
      FutexWait(slot.tick, seen, kLookAround);
    }
    slot.waiters.fetch_sub(1);
    if (Reached(peer, tick)) return OkStatus();
    const Status poison = PoisonStatus();
    if (!poison.ok()) return Reached(peer, tick) ? OkStatus() : poison;  // what a peer finished before it failed counts
    const Nanos now = SystemClock().Monotonic();
    if (slot.left.load() != 0 || now >= next_look) {
      TUTTI_RETURN_IF_ERROR(CheckPeers(tick));
      next_look = now + kLookAround;
    }
    if (now >= deadline) return TimedOut(tick);
  }
}

bool RegionPeer::Gone(int32_t peer) {
  const RankSlot& slot = view_.slot(peer);
  if (!processes_ || slot.left.load() != 0) return slot.left.load() != 0;
  if (pidfds_[peer].valid()) {
    pollfd poll_fd{pidfds_[peer].get(), POLLIN, 0};
    return ::poll(&poll_fd, 1, 0) == 1;
  }
  const StatusOr<int64_t> start = ProcessStartTicks(slot.pid.load());
  return !start.ok() || *start != slot.start_ticks.load();
}

Status RegionPeer::CheckPeers(uint32_t tick) {
  for (int32_t peer = 0; peer < world_size_; ++peer) {
    if (peer == rank_ || Reached(peer, tick) || !Gone(peer)) continue;
    if (Reached(peer, tick)) continue;  // it made the tick, then left
    const RankSlot& slot = view_.slot(peer);
    const std::string how =
        slot.left.load() != 0 ? "left its communicator" : fmt::format("ended (pid {})", slot.pid.load());
    return Poison(absl::StatusCode::kUnavailable, peer,
                  fmt::format("{}: rank {} {}", call_ ? Title(*call_) : "attach", peer, how));
  }
  return OkStatus();
}

// Whoever made the fewest ticks waits for nobody: ranks only wait for ticks that they made themselves.
Status RegionPeer::TimedOut(uint32_t tick) {
  int32_t least = 0;
  for (int32_t r = 0; r < world_size_; ++r)
    least = std::min(least, static_cast<int32_t>(view_.slot(r).tick.load() - tick));
  std::vector<int32_t> behind;
  for (int32_t r = 0; r < world_size_; ++r) {
    if (static_cast<int32_t>(view_.slot(r).tick.load() - tick) == least) behind.push_back(r);
  }
  return Poison(absl::StatusCode::kDeadlineExceeded, behind.empty() ? -1 : behind[0],
                fmt::format("{}: no progress for {} ms, waiting for {}", call_ ? Title(*call_) : "attach",
                            timeout_.count(), RankList(behind)));
}

Status RegionPeer::PoisonStatus() const {
  RegionHeader& header = view_.header();
  if (header.poison.load() == 0) return OkStatus();
  const Nanos give_up = SystemClock().Monotonic() + Millis(500);
  while (header.poison.load() != 2) {  // its writer needs a moment, unless it was killed right there
    if (SystemClock().Monotonic() > give_up) return Aborted("a rank ended while it reported an error");
    FutexWait(header.poison, 1, Millis(10));
  }
  const std::string text(header.poison_text, strnlen(header.poison_text, sizeof(header.poison_text)));
  return WithBlame(Status(static_cast<absl::StatusCode>(header.poison_code), text), header.poison_blamed);
}

Status RegionPeer::Poison(absl::StatusCode code, int32_t blamed, const std::string& text) {
  RegionHeader& header = view_.header();
  uint32_t healthy = 0;
  if (header.poison.compare_exchange_strong(healthy, 1)) {
    header.poison_code = static_cast<int32_t>(code);
    header.poison_blamed = blamed;
    std::memcpy(header.poison_text, text.data(), std::min(text.size(), sizeof(header.poison_text)));
    header.poison.store(2);
    FutexWakeAll(header.poison);
    FutexWakeAll(header.attached);
    for (int32_t r = 0; r < world_size_; ++r) FutexWakeAll(view_.slot(r).tick);
  }
  return PoisonStatus();
}

}  // namespace tutti
