#include "worker/shim/rank_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/files.h"
#include "base/log.h"
#include "worker/launch/launch.h"
#include "worker/launch/layout.h"
#include "worker/launch/local_socket.h"

namespace tutti::worker {
namespace {

constexpr int kRankSocketDescriptor = 3;
constexpr int kRankMemoryDescriptor = 4;
constexpr int kRankFirstLock = 5;
constexpr int kExitCodeNotStarted = 127;  // as a shell says it

struct Pair {
  UniqueFd ours, theirs;
};

StatusOr<Pair> MakeSocketPair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) return ErrnoStatus(errno, "make a socket pair");
  Pair pair{UniqueFd(fds[0]), UniqueFd(fds[1])};
  TUTTI_RETURN_IF_ERROR(SetNonBlocking(pair.ours.get()));
  return pair;
}

StatusOr<Pair> MakeOutputPipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "make a pipe");
  Pair pair{UniqueFd(fds[0]), UniqueFd(fds[1])};
  TUTTI_RETURN_IF_ERROR(SetNonBlocking(pair.ours.get()));
  return pair;
}

}  // namespace

RankProcess::RankProcess(const v1::ShimConfig& config, int index) : config_(config), index_(index) {
  const v1::RankLaunch& launch = config.ranks(index);
  status_.set_rank(launch.rank());
  status_.set_node(config.node());
  status_.set_generation(config.assignment().generation());
  status_.set_state(v1::RANK_STATE_ASSIGNED);
  *status_.mutable_cores() = launch.cores();
}

Status RankProcess::Start(int memory_fd) {
  Status status = TryStart(memory_fd);
  if (!alive_) {
    status_.set_state(v1::RANK_STATE_EXITED);
    status_.set_exit_code(kExitCodeNotStarted);
    status_.set_message("was not started: " + ValidUtf8(Message(status)));
    status_.set_end_unix_ms(SystemClock().UnixMillis());
  }
  return status;
}

Status RankProcess::TryStart(int memory_fd) {
  const v1::RankLaunch& launch = config_.ranks(index_);
  const int64_t limit = config_.log_limit_bytes() > 0 ? config_.log_limit_bytes() : kDefaultLogLimitBytes;
  TUTTI_ASSIGN_OR_RETURN(log_, RankLog::Open(JoinPath(config_.directory(), RankLogFile(launch.rank())), limit));
  TUTTI_ASSIGN_OR_RETURN(Pair socket, MakeSocketPair());
  TUTTI_ASSIGN_OR_RETURN(Pair output, MakeOutputPipe());
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));

  SpawnOptions options;
  options.argv = {config_.rank_program()};
  options.environment = {launch.environment().begin(), launch.environment().end()};
  options.cores = {launch.cores().begin(), launch.cores().end()};
  options.new_process_group = true;
  options.descriptors = {{0, nothing.get()},
                         {1, output.theirs.get()},
                         {2, output.theirs.get()},
                         {kRankSocketDescriptor, socket.theirs.get()}};
  if (memory_fd >= 0) options.descriptors[kRankMemoryDescriptor] = memory_fd;
  for (int i = 0; i < launch.lock_descriptors_size(); ++i)
    options.descriptors[kRankFirstLock + i] = launch.lock_descriptors(i);

  cgroup_ = std::make_unique<RankCgroup>(RankCgroup::Name(config_.job_id(), status_.generation(), status_.rank()));
  TUTTI_ASSIGN_OR_RETURN(const pid_t pid, Spawn(options));
  alive_ = true;
  status_.set_pid(pid);
  status_.set_state(v1::RANK_STATE_RUNNING);
  socket_ = std::move(socket.ours);
  output_ = std::move(output.ours);
  AppendFrame(MakeRankConfig(config_, index_).SerializeAsString(), &outbox_);
  FlushOutbox();
  cgroup_->Add(pid);
  // The start time makes the pid safe to use after this shim: a later process of the same number has another.
  TUTTI_ASSIGN_OR_RETURN(const int64_t ticks, ProcessStartTicks(pid));
  const std::string path = JoinPath(config_.directory(), RankPidFile(launch.rank()));
  return ReplaceFile(path, fmt::format("{} {}\n", pid, ticks));
}

void RankProcess::Send(const v1::RankCommand& command) {
  if (!alive_ || !socket_.valid()) return;
  AppendFrame(command.SerializeAsString(), &outbox_);
  FlushOutbox();
}

void RankProcess::FlushOutbox() {
  while (!outbox_.empty() && socket_.valid()) {
    const ssize_t n = ::send(socket_.get(), outbox_.data(), outbox_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) {  // the rank closed its end: its exit tells more
      outbox_.clear();
      return;
    }
    outbox_.erase(0, static_cast<size_t>(n));
  }
}

std::vector<v1::RankEvent> RankProcess::ReadEvents() {
  std::vector<v1::RankEvent> events;
  std::array<char, 65536> chunk;
  while (socket_.valid() && events.size() < 1024) {  // bounded: other ranks want a turn
    const ssize_t n = ::recv(socket_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      socket_.Reset();
      break;
    }
    parser_.Feed(std::string_view(chunk.data(), static_cast<size_t>(n)));
    while (true) {
      auto frame = parser_.Next();
      v1::RankEvent event;
      if (frame.ok() && !*frame) break;
      if (!frame.ok() || !event.ParseFromString(**frame)) {
        events.push_back(
            MakeNotice(v1::NOTICE_LEVEL_WARNING, "the rank sent bytes that are no event: it is no longer listened to"));
        socket_.Reset();
        break;
      }
      event.set_rank(status_.rank());
      event.set_generation(status_.generation());
      if (event.has_failure()) failure_ = event.failure();
      events.push_back(std::move(event));
    }
  }
  return events;
}

void RankProcess::ReadOutput(Nanos now) {
  std::array<char, 65536> chunk;
  for (int turns = 0; turns < 16 && output_.valid(); ++turns) {
    const ssize_t n = ::read(output_.get(), chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      output_.Reset();
      return;
    }
    log_->Feed(std::string_view(chunk.data(), static_cast<size_t>(n)), now);
  }
}

void RankProcess::Signal(int signal, int64_t grace_ms) {
  if (!alive_) return;
  (signal == SIGKILL ? killed_ : terminated_) = true;
  grace_ms_ = grace_ms;
  ::kill(-pid(), signal);
  if (signal == SIGTERM) ::kill(-pid(), SIGCONT);  // a stopped process hears nothing before
}

void RankProcess::Finish(const ExitStatus& exit, Nanos now, std::vector<v1::RankEvent>* events) {
  alive_ = false;
  // A process that ended wrote at most a pipe's and a socket's content before; a child that lives on must not keep us
  // here.
  for (auto last = ReadEvents(); !last.empty(); last = ReadEvents())
    events->insert(events->end(), last.begin(), last.end());
  ReadOutput(now);
  socket_.Reset();
  output_.Reset();
  Describe(exit);
  log_->Close();
  const std::string path = JoinPath(config_.directory(), RankExitFile(status_.rank()));
  if (const Status written = ReplaceFile(path, status_.SerializeAsString()); !written.ok()) {
    LogError("{}", Message(written));
  }
  ::unlink(JoinPath(config_.directory(), RankPidFile(status_.rank())).c_str());
}

void RankProcess::Describe(const ExitStatus& exit) {
  status_.set_state(v1::RANK_STATE_EXITED);
  status_.set_exit_code(exit.code.value_or(0));
  status_.set_signal(exit.signal.value_or(0));
  status_.set_end_unix_ms(SystemClock().UnixMillis());
  status_.set_stopped_by_us((terminated_ || killed_) && !failure_);
  if (failure_) {
    status_.set_message(failure_->message());
    status_.set_victim(failure_->victim());
    status_.set_where(failure_->where());
    status_.set_retryable(failure_->retryable());
  } else if (killed_) {
    status_.set_message(terminated_ ? fmt::format("did not end within {} ms of SIGTERM: killed by us", grace_ms_)
                                    : "killed by us");
  } else if (terminated_) {
    status_.set_message(fmt::format("{} after our SIGTERM", tutti::Describe(exit)));
  } else if (exit.signal == SIGKILL) {
    status_.set_message(cgroup_->DescribeOutOfMemory());
  }
  if (exit.signal || exit.code != 0) {
    for (std::string& line : log_->LastLines(20)) status_.add_last_lines(std::move(line));
  }
}

v1::RankEvent RankProcess::MakeNotice(v1::NoticeLevel level, const std::string& message) const {
  v1::RankEvent event;
  event.set_generation(status_.generation());
  event.set_rank(status_.rank());
  event.set_unix_ms(SystemClock().UnixMillis());
  event.mutable_notice()->set_level(level);
  event.mutable_notice()->set_message(message);
  return event;
}

}  // namespace tutti::worker
