#include "worker/shim/shim.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/files.h"
#include "base/log.h"
#include "worker/launch/launch.h"
#include "worker/launch/layout.h"
#include "worker/shim/process_tree.h"

namespace tutti::worker {
namespace {

constexpr Nanos kLookForDescendantsEvery = std::chrono::milliseconds(10);
constexpr Nanos kGiveUpAfter = std::chrono::seconds(10);
constexpr Nanos kRetryDiskEvery = std::chrono::milliseconds(200);
constexpr int64_t kDefaultGraceMs = 30'000;
constexpr size_t kMaxWaitingEvents = 1024;  // behind a full disk: then ranks are not listened to until there is room

int64_t GraceOf(const v1::ShimConfig& config) {
  const int64_t grace = config.spec().restart().grace_ms();
  return grace > 0 ? grace : kDefaultGraceMs;
}

StatusOr<UniqueFd> MakeMemory(int64_t bytes) {
  UniqueFd fd(::memfd_create("tutti-shm", MFD_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "make shared memory");
  if (::ftruncate(fd.get(), bytes) != 0)
    return ErrnoStatus(errno, fmt::format("make {} bytes of shared memory", bytes));
  return fd;
}

}  // namespace

// Who is waited for, by index into `fds`.
struct Shim::Poll {
  std::vector<pollfd> fds;
  int Add(int fd, short events) {
    if (fd < 0 || events == 0) return -1;
    fds.push_back({fd, events, 0});
    return static_cast<int>(fds.size()) - 1;
  }
  bool Ready(int index) const { return index >= 0 && fds[static_cast<size_t>(index)].revents != 0; }
};

Shim::Shim(v1::ShimConfig config, UniqueFd listener, UniqueFd signals)
    : config_(std::move(config)), listener_(std::move(listener)), signals_(std::move(signals)) {}

Status Shim::Run() {
  TUTTI_RETURN_IF_ERROR(Open());
  StartRanks();
  while (!Done()) Turn();
  if (agent_) agent_->Close();  // it need not wait for the disk
  const Status synced = events_->Sync();
  ::unlink(JoinPath(config_.directory(), kShimSocketFile).c_str());  // no socket outlives its listener
  return synced;
}

Status Shim::Open() {
  TUTTI_ASSIGN_OR_RETURN(events_, EventLog::Open(JoinPath(config_.directory(), kEventsFile)));
  if (config_.shared_memory_bytes() > 0) {
    TUTTI_ASSIGN_OR_RETURN(memory_, MakeMemory(config_.shared_memory_bytes()));
  }
  return OkStatus();
}

void Shim::StartRanks() {
  for (int i = 0; i < config_.ranks_size(); ++i) ranks_.push_back(std::make_unique<RankProcess>(config_, i));
  if (config_.overridden_variables_size() > 0) {
    std::string names;
    for (const std::string& name : config_.overridden_variables()) names += (names.empty() ? "" : ", ") + name;
    NoteToAll(v1::NOTICE_LEVEL_WARNING, "variables of an outer launcher are not passed on to ranks: " + names);
  }
  for (auto& rank : ranks_) {
    const Status status = rank->Start(memory_.get());
    if (status.ok()) continue;
    LogError("rank {}: {}", rank->status().rank(), Message(status));
    if (rank->alive()) continue;
    v1::ShimEvent event;
    *event.mutable_exited() = rank->status();
    events_->Append(std::move(event));
  }
  memory_.Reset();  // the ranks hold it
  orphan_at_ = SystemClock().Monotonic() + Millis(config_.orphan_grace_ms());
}

void Shim::Turn() {
  Poll poll;
  const int signals = poll.Add(signals_.get(), POLLIN);
  const int listener = poll.Add(listener_.get(), POLLIN);
  const int agent =
      agent_ ? poll.Add(agent_->fd(), static_cast<short>(POLLIN | (agent_->wants_to_write() ? POLLOUT : 0))) : -1;
  std::vector<std::pair<int, int>> of_rank;  // socket, output
  const bool listen = events_->waiting() < kMaxWaitingEvents;
  for (const auto& rank : ranks_) {
    const int socket = rank->socket_fd();
    of_rank.emplace_back(
        poll.Add(socket, static_cast<short>((listen ? POLLIN : 0) | (rank->wants_to_write() ? POLLOUT : 0))),
        poll.Add(rank->output_fd(), POLLIN));
  }
  const int ready = ::poll(poll.fds.data(), poll.fds.size(), TimeoutMs(SystemClock().Monotonic()));
  const Nanos now = SystemClock().Monotonic();
  if (ready > 0) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (poll.Ready(of_rank[i].first)) {
        ranks_[i]->FlushOutbox();
        if (listen) OnRankEvents(ranks_[i]->ReadEvents());
      }
      if (poll.Ready(of_rank[i].second)) ranks_[i]->ReadOutput(now);
    }
    if (poll.Ready(signals)) OnSignals(now);
    if (poll.Ready(agent)) OnAgent(now);
    if (poll.Ready(listener)) Accept(now);
  }
  OnTime(now);
  if (agent_ && !agent_->Pump().ok()) DropAgent(now);
}

int Shim::TimeoutMs(Nanos now) const {
  Nanos next = now + std::chrono::seconds(60);
  for (const auto& rank : ranks_) {
    if (rank->log() == nullptr) continue;
    if (const auto at = rank->log()->NextFlush()) next = std::min(next, *at);
  }
  for (const auto& at : {orphan_at_, kill_at_}) {
    if (at) next = std::min(next, *at);
  }
  if (events_->waiting() > 0) next = std::min(next, now + kRetryDiskEvery);
  if (!AnyAlive() && !all_exited_) next = std::min(next, now + kLookForDescendantsEvery);
  return static_cast<int>(std::max<int64_t>(0, (next - now + Nanos(999'999)) / Millis(1)));
}

void Shim::OnSignals(Nanos now) {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo != SIGCHLD) BeginStop(GraceOf(config_), now);
  }
  Reap(now);
}

void Shim::Reap(Nanos now) {
  while (true) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    const auto rank = std::find_if(ranks_.begin(), ranks_.end(),
                                   [&](const auto& r) { return r->alive() && r->pid() == info.si_pid; });
    // While the rank is not reaped its group's number cannot be given to anyone else.
    if (rank != ranks_.end()) ::kill(-info.si_pid, SIGKILL);
    int wait_status = 0;
    if (::waitpid(info.si_pid, &wait_status, 0) != info.si_pid) return;
    if (rank != ranks_.end()) FinishRank(**rank, ExitStatusFromWait(wait_status), now);
  }
}

void Shim::FinishRank(RankProcess& rank, const ExitStatus& exit, Nanos now) {
  std::vector<v1::RankEvent> last;
  rank.Finish(exit, now, &last);
  OnRankEvents(std::move(last));
  v1::ShimEvent event;
  *event.mutable_exited() = rank.status();
  events_->Append(std::move(event));
}

void Shim::OnRankEvents(std::vector<v1::RankEvent> events) {
  for (v1::RankEvent& rank_event : events) {
    if (rank_event.has_ready()) {
      v1::RankReadyReport report;
      report.set_rank(rank_event.rank());
      report.set_blob(rank_event.ready().peer_blob());
      ready_.push_back(std::move(report));
    }
    v1::ShimEvent event;
    const bool kept = !rank_event.has_heartbeat();
    *event.mutable_rank_event() = std::move(rank_event);
    if (kept) {
      events_->Append(std::move(event));
    } else if (agent_) {
      agent_->Offer(event);
    }
  }
}

void Shim::Accept(Nanos now) {
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) return;  // it left again
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
      (peer.uid != ::getuid() && peer.uid != 0)) {
    LogWarning("a connection of user {} was refused", peer.uid);
    return;
  }
  agent_.emplace(std::move(socket), JoinPath(config_.directory(), kEventsFile));
  orphan_at_.reset();
  OnAgent(now);
}

void Shim::OnAgent(Nanos now) {
  const auto requests = agent_->Read();
  if (!requests.ok()) {
    if (requests.status().code() != absl::StatusCode::kUnavailable) LogWarning("{}", Message(requests.status()));
    DropAgent(now);
    return;
  }
  for (const v1::ShimRequest& request : *requests) {
    if (agent_) OnRequest(request, now);
  }
}

void Shim::OnRequest(const v1::ShimRequest& request, Nanos now) {
  v1::RankCommand command;
  switch (request.request_case()) {
    case v1::ShimRequest::kAttach:
      if (const Status status = agent_->Attach(request.attach(), State(), *events_); !status.ok()) {
        LogError("attach: {}", Message(status));
        DropAgent(now);
      }
      break;
    case v1::ShimRequest::kStop:
      BeginStop(request.stop().grace_ms(), now);
      break;
    case v1::ShimRequest::kControl:
      *command.mutable_control() = request.control();
      if (request.control().intent() > intent_) intent_ = request.control().intent();
      Command(command);
      break;
    case v1::ShimRequest::kPeers:
      *command.mutable_peers() = request.peers();
      Command(command);
      break;
    case v1::ShimRequest::kRelease:
      released_ = true;
      break;
    case v1::ShimRequest::kAcknowledge:  // all events are kept
      break;
    case v1::ShimRequest::REQUEST_NOT_SET:
      LogWarning("the agent sent an empty request");
      break;
  }
}

void Shim::DropAgent(Nanos now) {
  agent_.reset();
  orphan_at_ = now + Millis(config_.orphan_grace_ms());
}

void Shim::Command(const v1::RankCommand& command) {
  for (auto& rank : ranks_) rank->Send(command);
}

// A later stop may only shorten the time that is left.
void Shim::BeginStop(int64_t grace_ms, Nanos now) {
  const Nanos deadline = now + Millis(std::max<int64_t>(0, grace_ms));
  if (stopping_) {
    if (kill_at_) kill_at_ = std::min(*kill_at_, deadline);
    return;
  }
  stopping_ = true;
  grace_ms_ = grace_ms;
  kill_at_ = deadline;
  if (grace_ms <= 0) return;  // OnTime kills
  for (auto& rank : ranks_) rank->Signal(SIGTERM, grace_ms);
}

void Shim::OnTime(Nanos now) {
  for (auto& rank : ranks_) {
    if (rank->alive()) rank->log()->FlushDue(now);
  }
  if (events_->waiting() > 0 && events_->Flush().ok()) LogInfo("the disk has room again: waiting events were written");
  if (orphan_at_ && now >= *orphan_at_) {
    orphan_at_.reset();
    if (AnyAlive()) {
      NoteToAll(v1::NOTICE_LEVEL_WARNING,
                fmt::format("no agent came for {} ms: the ranks are ended", config_.orphan_grace_ms()));
      v1::RankCommand command;
      command.mutable_control()->set_intent(v1::INTENT_YIELD);
      Command(command);
      BeginStop(GraceOf(config_), now);
    }
  }
  if (kill_at_ && now >= *kill_at_) {
    kill_at_.reset();
    for (auto& rank : ranks_) rank->Signal(SIGKILL, grace_ms_);
  }
  if (!AnyAlive() && !all_exited_) EndDescendants(now);
}

// Whoever left a rank's group or session is our child by now, or below one.
void Shim::EndDescendants(Nanos now) {
  const std::vector<pid_t> left = Descendants(::getpid());
  if (!give_up_at_) give_up_at_ = now + kGiveUpAfter;
  for (const pid_t pid : left) ::kill(pid, SIGKILL);
  if (!left.empty() && now < *give_up_at_) return;
  if (!left.empty()) {
    NoteToAll(v1::NOTICE_LEVEL_WARNING,
              fmt::format("process {} of a rank does not end, even by SIGKILL", left.front()));
  }
  all_exited_ = true;
  for (auto& rank : ranks_) rank->Dissolve();
  for (const v1::RankLaunch& launch : config_.ranks()) {
    for (const int32_t fd : launch.lock_descriptors()) ::close(fd);  // before anyone hears that the slots are free
  }
  v1::ShimEvent event;
  event.set_all_exited(true);
  events_->Append(std::move(event));
}

// Said once for the run, in the name of its first rank here.
void Shim::NoteToAll(v1::NoticeLevel level, const std::string& message) {
  v1::ShimEvent event;
  v1::RankEvent* rank_event = event.mutable_rank_event();
  rank_event->set_generation(config_.assignment().generation());
  rank_event->set_rank(config_.ranks(0).rank());
  rank_event->set_unix_ms(SystemClock().UnixMillis());
  rank_event->mutable_notice()->set_level(level);
  rank_event->mutable_notice()->set_message(message);
  events_->Append(std::move(event));
}

v1::ShimState Shim::State() const {
  v1::ShimState state;
  for (const auto& rank : ranks_) *state.add_ranks() = rank->status();
  for (const v1::RankReadyReport& report : ready_) *state.add_ready() = report;
  state.set_last_sequence(events_->last_sequence());
  state.set_pid(::getpid());
  state.set_intent(intent_);
  state.set_all_exited(all_exited_);
  return state;
}

bool Shim::AnyAlive() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->alive(); });
}

bool Shim::Done() const { return all_exited_ && (released_ || !agent_ || agent_->told_all()); }

}  // namespace tutti::worker
