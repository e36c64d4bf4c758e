#include "worker/rpc/agent_loop.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "worker/launch/launch.h"
#include "worker/launch/layout.h"
#include "worker/launch/local_socket.h"
#include "worker/rpc/log_reader.h"

namespace tutti::worker {
namespace {

constexpr size_t kMaxQueued =
    4096;  // messages for the coordinator; above it shims are not read, so that they wait on disk
constexpr size_t kKeepForgottenJobs = 100;
constexpr char kTermFile[] = "term";

int64_t ReadTerm(const std::string& state_directory) {
  const auto text = ReadFile(JoinPath(state_directory, kTermFile), 64);
  return text.ok() ? std::strtoll(text->c_str(), nullptr, 10) : 0;
}

}  // namespace

AgentLoop::AgentLoop(AgentLoopOptions options, SlotLocks locks, UniqueFd signals)
    : options_(std::move(options)),
      locks_(std::move(locks)),
      signals_(std::move(signals)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

AgentLoop::~AgentLoop() = default;

Status AgentLoop::Run() {
  TUTTI_RETURN_IF_ERROR(Restore());
  coordinator_ =
      std::make_unique<CoordinatorLink>(CoordinatorLinkOptions{options_.coordinator, options_.token, wake_.get()});
  while (!done_) Turn();
  return OkStatus();
}

Status AgentLoop::Restore() {
  TUTTI_RETURN_IF_ERROR(MakeDirectories(JobsDirectory(options_.state_directory), 0700));
  TUTTI_RETURN_IF_ERROR(SweepForgotten(options_.state_directory, kKeepForgottenJobs));
  std::vector<std::string> problems;
  TUTTI_ASSIGN_OR_RETURN(std::vector<v1::StartJob> runs, ListRuns(options_.state_directory, &problems));
  for (const std::string& problem : problems) LogError("a run on disk is left alone: {}", problem);
  if (!runs.empty()) LogInfo("{} runs found on disk", runs.size());
  std::vector<AgentAction> actions;
  state_ = MakeAgentState(options_.node, ReadTerm(options_.state_directory), std::move(runs), &actions);
  for (const AgentAction& action : actions) Perform(action);
  return OkStatus();
}

void AgentLoop::Turn() {
  const Nanos before = SystemClock().Monotonic();
  std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}, {options_.life.get(), POLLIN, 0}};
  const size_t first_shim = fds.size();
  const bool room = coordinator_->queued() < kMaxQueued;
  std::vector<RunKey> keys;
  std::set<RunKey> ready;
  for (const auto& [key, link] : shims_) {
    if (link.fd() < 0) {
      if (room) ready.insert(key);
      continue;
    }
    fds.push_back({link.fd(), static_cast<short>((room ? POLLIN : 0) | (link.wants_to_write() ? POLLOUT : 0)), 0});
    keys.push_back(key);
  }
  Nanos next = std::min(NextTick(state_, before), next_probe_);
  if (!room) next = std::min(next, before + Millis(20));
  if (!ready.empty()) next = before;
  const auto wait_ms = std::clamp<int64_t>((next - before + Nanos(999'999)) / Millis(1), 0, 60'000);
  if (::poll(fds.data(), fds.size(), static_cast<int>(wait_ms)) > 0) {
    for (size_t i = first_shim; i < fds.size(); ++i) {
      if (fds[i].revents != 0) ready.insert(keys[i - first_shim]);
    }
    if (fds[1].revents != 0) OnSignals();
    if (fds[2].revents != 0) OnLife();
    if (fds[0].revents != 0) OnCoordinator();
  }
  ReadShims(ready);
  ProbeSlots(SystemClock().Monotonic());
  Feed(Tick{});
}

void AgentLoop::Feed(const AgentEvent& event) {
  for (const AgentAction& action : Step(state_, event, SystemClock().Monotonic())) Perform(action);
}

void AgentLoop::ReadShims(const std::set<RunKey>& ready) {
  for (const RunKey& key : ready) {
    const auto it = shims_.find(key);
    if (it == shims_.end()) continue;
    it->second.Flush();
    const int64_t epoch = it->second.epoch();
    for (const AgentEvent& event : it->second.Read()) Feed(event);
    // An event may have replaced the link by a new attachment.
    const auto now = shims_.find(key);
    if (now != shims_.end() && now->second.epoch() == epoch && now->second.ended()) shims_.erase(now);
  }
}

void AgentLoop::OnCoordinator() {
  uint64_t count = 0;
  while (::read(wake_.get(), &count, sizeof count) < 0 && errno == EINTR) {
  }
  for (CoordinatorLink::Incoming& item : coordinator_->Take()) {
    using Kind = CoordinatorLink::Incoming::Kind;
    switch (item.kind) {
      case Kind::kOpened:
        stream_ = item.stream;
        Feed(StreamOpened{});
        break;
      case Kind::kMessage:
        if (item.message.has_welcome()) {
          LogInfo("connected to the coordinator at {}, term {}", options_.coordinator, item.message.welcome().term());
          last_close_reason_.clear();
        }
        Feed(FromCoordinator{std::move(item.message)});
        break;
      case Kind::kClosed:
        if (item.reason != last_close_reason_)
          LogWarning("no coordinator at {}: {}", options_.coordinator, item.reason);
        last_close_reason_ = item.reason;  // said once, not at each attempt
        Feed(StreamClosed{});
        break;
    }
  }
}

void AgentLoop::OnSignals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) continue;
    if (info.ssi_signo == SIGUSR1) {
      LogInfo("detaching: ranks go on, the next agent on {} adopts them", options_.state_directory);
      done_ = true;
      return;
    }
    LogInfo("signal {}: {}", info.ssi_signo, state_.leaving ? "ending all ranks now" : "leaving, ranks end first");
    Feed(LeaveNode{options_.leave_intent});
  }
  // Shims, and as process 1 whatever else lost its parent.
  while (true) {
    int wait_status = 0;
    const pid_t pid = ::waitpid(-1, &wait_status, WNOHANG);
    if (pid <= 0) return;
    const ExitStatus exit = ExitStatusFromWait(wait_status);
    if (exit.code != 0) LogWarning("child process {} ended with {}", pid, tutti::Describe(exit));
  }
}

void AgentLoop::OnLife() {
  char byte = 0;
  const ssize_t n = ::read(options_.life.get(), &byte, 1);
  if (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN))) return;
  LogInfo("who started this agent is gone: leaving, ranks end first");
  options_.life.Reset();
  Feed(LeaveNode{options_.leave_intent});
}

void AgentLoop::ProbeSlots(Nanos now) {
  if (now < next_probe_) return;
  next_probe_ = now + state_.options.heartbeat_every;
  SlotsProbed probed;
  for (const v1::Slot& slot : CurrentSlots(state_)) {
    if (slot.job_id().empty() && locks_.IsLocked(slot.id())) probed.locked_elsewhere.insert(slot.id());
  }
  Feed(probed);
}

void AgentLoop::Perform(const AgentAction& action) {
  if (const auto* send = std::get_if<SendToCoordinator>(&action)) {
    coordinator_->Send(stream_, send->message);
  } else if (const auto* close = std::get_if<CloseStream>(&action)) {
    LogError("{}", close->reason);
    coordinator_->CloseStream();
  } else if (const auto* term = std::get_if<PersistTerm>(&action)) {
    const Status written = ReplaceFile(JoinPath(options_.state_directory, kTermFile), fmt::format("{}\n", term->term));
    if (!written.ok()) LogError("{}", Message(written));
  } else if (const auto* launch = std::get_if<LaunchRun>(&action)) {
    const RunKey key = KeyOf(launch->start.assignment());
    if (const Status status = Launch(launch->start); !status.ok()) {
      LogError("{}: {}", ToString(key), Message(status));
      Feed(LaunchFailed{key, Message(status)});
    }
  } else if (const auto* attach = std::get_if<AttachShim>(&action)) {
    Attach(*attach);
  } else if (const auto* request = std::get_if<SendToShim>(&action)) {
    if (const auto link = shims_.find(request->key); link != shims_.end()) link->second.Send(request->request);
  } else if (const auto* forget = std::get_if<ForgetRun>(&action)) {
    shims_.erase(forget->key);
    const std::string directory = RunDirectory(options_.state_directory, forget->key);
    const Status marked = FileExists(JoinPath(directory, kRecordFile)) ? MarkForgotten(directory) : OkStatus();
    if (!marked.ok()) LogError("{}", Message(marked));
    const Status swept = SweepForgotten(options_.state_directory, kKeepForgottenJobs);
    if (!swept.ok()) LogError("{}", Message(swept));
  } else if (const auto* read = std::get_if<ReadRankLog>(&action)) {
    v1::ConnectRequest message;
    *message.mutable_log() = ReadRankLogChunk(options_.state_directory, read->request);
    coordinator_->Send(stream_, std::move(message));
  } else if (std::get_if<Exit>(&action) != nullptr) {
    done_ = true;
  }
}

Status AgentLoop::Launch(const v1::StartJob& start) {
  const RunKey key = KeyOf(start.assignment());
  LaunchInputs inputs;
  inputs.start = start;
  inputs.node = options_.node.name();
  inputs.run_directory = RunDirectory(options_.state_directory, key);
  inputs.slots.assign(options_.node.slots().begin(), options_.node.slots().end());
  inputs.environment = CurrentEnvironment();
  inputs.rank_program = options_.rank_program;
  inputs.advertise_address = options_.node.address();
  inputs.orphan_grace_ms = options_.orphan_grace_ms;
  TUTTI_ASSIGN_OR_RETURN(v1::ShimConfig config, MakeShimConfig(inputs));
  std::vector<std::vector<UniqueFd>> slot_locks;
  for (const v1::NodeShare& share : start.assignment().nodes()) {
    if (share.node() != inputs.node) continue;
    for (const std::string& slot : share.slots()) {
      TUTTI_ASSIGN_OR_RETURN(std::vector<UniqueFd> locks, locks_.Lock(slot));
      slot_locks.push_back(std::move(locks));
    }
  }
  TUTTI_RETURN_IF_ERROR(WriteRecord(inputs.run_directory, start));
  TUTTI_ASSIGN_OR_RETURN(const UniqueFd run_lock, LockFile(JoinPath(inputs.run_directory, kShimLockFile)));
  TUTTI_ASSIGN_OR_RETURN(const UniqueFd listener, ListenLocal(inputs.run_directory, kShimSocketFile));
  TUTTI_ASSIGN_OR_RETURN(const pid_t pid,
                         StartShim(options_.shim_program, std::move(config), run_lock, listener, slot_locks));
  LogInfo("{}: {} ranks started, shim {}", ToString(key), slot_locks.size(), pid);
  return OkStatus();
}

void AgentLoop::Attach(const AttachShim& action) {
  const auto run = state_.runs.find(action.key);
  if (run == state_.runs.end() || run->second.epoch != action.epoch) return;  // its launch failed meanwhile
  shims_.erase(action.key);
  auto link = ShimLink::Attach(RunDirectory(options_.state_directory, action.key), run->second.start,
                               options_.node.name(), action);
  if (link.ok()) {
    shims_.emplace(action.key, *std::move(link));
  } else {
    LogWarning("{}", Message(link.status()));
    Feed(ShimClosed{action.key, action.epoch});
  }
}

}  // namespace tutti::worker
