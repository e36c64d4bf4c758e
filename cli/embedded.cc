#include "cli/embedded.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/digest.h"
#include "base/files.h"
#include "base/process.h"

namespace tutti::cli {
namespace {

constexpr size_t kMaxSocketPath = 107;
constexpr int kLifeFd = 3;
constexpr int kMaxQuickDeaths = 5;
constexpr int64_t kStaleSeconds = 60;  // a run locks its folder within milliseconds of making it
constexpr size_t kKeptRuns = 10;
constexpr Nanos kQuick = std::chrono::seconds(2);
constexpr Nanos kRestartDelay = std::chrono::milliseconds(100);
constexpr Nanos kOrderlyEnd = std::chrono::seconds(20);
constexpr Nanos kCoordinatorEnd = std::chrono::milliseconds(300);  // its journal survives a kill at any instant
constexpr Nanos kForcedEnd = std::chrono::seconds(8);

StatusOr<std::string> StateRoot() {
  if (const auto xdg = GetEnv("XDG_STATE_HOME"); xdg && xdg->starts_with('/')) return JoinPath(*xdg, "tutti");
  const auto home = GetEnv("HOME");
  if (!home || !home->starts_with('/'))
    return FailedPrecondition("neither XDG_STATE_HOME nor HOME names a folder for the run's state");
  return JoinPath(*home, ".local/state/tutti");
}

// A folder of ours that nobody else can enter; refuses one that another user made there first.
Status MakePrivate(const std::string& path) {
  TUTTI_RETURN_IF_ERROR(MakeDirectories(path, 0700));
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) {
    return PermissionDenied("{} is not a private folder of ours (owner, mode 0700)", path);
  }
  return OkStatus();
}

// The folder for sockets, short enough for a socket's address.
StatusOr<std::string> RuntimeFolder(const std::string& id) {
  std::vector<std::string> roots;
  if (const auto xdg = GetEnv("XDG_RUNTIME_DIR"); xdg && xdg->starts_with('/')) roots.push_back(*xdg);
  roots.push_back("/tmp");
  Status last = OkStatus();
  for (const std::string& root : roots) {
    const std::string user = JoinPath(root, fmt::format("tutti-{}", ::geteuid()));
    const std::string folder = JoinPath(user, id);
    if (folder.size() + std::string_view("/coordinator.sock").size() > kMaxSocketPath) continue;
    last = MakePrivate(user);
    if (last.ok()) last = MakePrivate(folder);
    if (last.ok()) return folder;
  }
  return last.ok() ? FailedPrecondition("no folder with a name short enough for a socket") : last;
}

// Runs whose process is gone (nobody holds their lock) and kept failures beyond the newest ten.
void Sweep(const std::string& root) {
  const auto names = ListDirectory(root);
  if (!names.ok()) return;  // the first run: there is nothing to sweep
  std::vector<std::string> failed;
  for (const std::string& name : *names) {
    const std::string path = JoinPath(root, name);
    if (name.starts_with("failed-")) failed.push_back(path);
    struct stat info {};
    if (name.starts_with("new-") && ::lstat(path.c_str(), &info) == 0 &&
        SystemClock().UnixMillis() / 1000 - info.st_mtime > kStaleSeconds) {
      if (const Status removed = RemoveTree(path); !removed.ok())
        fmt::print(stderr, "left behind: {}\n", Message(removed));
    }
    if (!name.starts_with("run-")) continue;
    const auto lock = LockFile(JoinPath(path, "lock"));
    if (!lock.ok()) continue;
    if (const auto runtime = ReadFile(JoinPath(path, "runtime"), 4096);
        runtime.ok() && Basename(*runtime) == name.substr(4)) {
      if (const Status removed = RemoveTree(*runtime); !removed.ok())
        fmt::print(stderr, "left behind: {}\n", Message(removed));
    }
    if (const Status removed = RemoveTree(path); !removed.ok())
      fmt::print(stderr, "left behind: {}\n", Message(removed));
  }
  for (size_t i = 0; i + kKeptRuns < failed.size(); ++i) {  // names sort by time
    if (const Status removed = RemoveTree(failed[i]); !removed.ok())
      fmt::print(stderr, "left behind: {}\n", Message(removed));
  }
}

std::string LastLines(const std::string& path) {
  constexpr size_t kBytes = 1000;
  const auto text = ReadFile(path);
  if (!text.ok()) return "";
  std::string tail = text->size() > kBytes ? text->substr(text->size() - kBytes) : *text;
  if (text->size() > kBytes) tail = tail.substr(std::min(tail.find('\n') + 1, tail.size()));
  return tail;
}

// What is kept for reading needs no sockets.
void RemoveSockets(const std::string& folder) {
  const auto names = ListDirectory(folder);
  if (!names.ok()) return;  // gone: so are its sockets
  for (const std::string& name : *names) {
    const std::string path = JoinPath(folder, name);
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0) continue;
    if (S_ISDIR(info.st_mode)) RemoveSockets(path);
    if (S_ISSOCK(info.st_mode)) ::unlink(path.c_str());
  }
}

}  // namespace

StatusOr<std::unique_ptr<Embedded>> Embedded::Start(const Options& options) {
  TUTTI_ASSIGN_OR_RETURN(const std::string coordinator, SiblingProgram("tutti-coordinator"));
  TUTTI_ASSIGN_OR_RETURN(const std::string worker, SiblingProgram("tutti-worker"));
  std::unique_ptr<Embedded> run(new Embedded);
  TUTTI_ASSIGN_OR_RETURN(run->state_root_, StateRoot());
  Sweep(run->state_root_);
  TUTTI_RETURN_IF_ERROR(run->MakeFolders(NewUlid()));
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return ErrnoStatus(errno, "make a pipe");
  run->life_read_.Reset(pipe[0]);
  run->life_write_.Reset(pipe[1]);

  const std::string life = fmt::to_string(kLifeFd);
  run->coordinator_ = {.name = "coordinator",
                       .argv = {coordinator, "--state-dir", JoinPath(run->state_, "coordinator"), "--listen",
                                run->address(), "--life-fd", life},
                       .log = JoinPath(run->state_, "coordinator.log")};
  // One slot per rank, this machine's cores divided among them: more ranks than cores share.
  const int64_t per_rank = options.cores_per_rank;
  const int64_t slots = per_rank > 0 ? std::max<int64_t>(1, options.cores_available / per_rank) : options.ranks;
  run->agent_ = {.name = "agent",
                 .argv = {worker, "--coordinator", run->address(), "--state-dir", JoinPath(run->state_, "agent"),
                          "--embedded", "--life-fd", life, "--slots", fmt::to_string(slots)},
                 .log = JoinPath(run->state_, "agent.log")};
  if (per_rank > 0) run->agent_.argv.insert(run->agent_.argv.end(), {"--cores-per-slot", fmt::to_string(per_rank)});
  const Nanos now = SystemClock().Monotonic();
  TUTTI_RETURN_IF_ERROR(run->StartChild(&run->coordinator_, now));
  TUTTI_RETURN_IF_ERROR(run->StartChild(&run->agent_, now));
  return run;
}

Embedded::~Embedded() { Stop(true); }

Status Embedded::MakeFolders(const std::string& id) {
  TUTTI_RETURN_IF_ERROR(MakeDirectories(state_root_, 0700));
  // Locked before it has the name that sweeps look for.
  const std::string fresh = JoinPath(state_root_, "new-" + id);
  TUTTI_RETURN_IF_ERROR(MakePrivate(fresh));
  TUTTI_ASSIGN_OR_RETURN(lock_, LockFile(JoinPath(fresh, "lock")));
  state_ = JoinPath(state_root_, "run-" + id);
  if (::rename(fresh.c_str(), state_.c_str()) != 0) return ErrnoStatus(errno, state_);
  TUTTI_ASSIGN_OR_RETURN(runtime_, RuntimeFolder(id));
  TUTTI_RETURN_IF_ERROR(WriteFileAtomic(JoinPath(state_, "runtime"), runtime_));
  socket_path_ = JoinPath(runtime_, "coordinator.sock");
  return OkStatus();
}

Status Embedded::StartChild(Child* child, Nanos now) {
  UniqueFd log(::open(child->log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return ErrnoStatus(errno, child->log);
  UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null.valid()) return ErrnoStatus(errno, "/dev/null");
  SpawnOptions options{.argv = child->argv,
                       .environment = CurrentEnvironment(),
                       .descriptors = {{0, null.get()}, {1, log.get()}, {2, log.get()}, {kLifeFd, life_read_.get()}},
                       .cores = {},
                       .new_session = true,
                       .new_process_group = false,
                       .working_directory = ""};
  options.environment.erase("TUTTI_COORDINATOR");  // of the user's cluster: not for this run
  options.environment.erase("TUTTI_TOKEN_FILE");
  TUTTI_ASSIGN_OR_RETURN(child->pid, Spawn(options));
  child->started = now;
  return OkStatus();
}

bool Embedded::Reap(Child* child) {
  if (child->pid <= 0) return true;
  int status = 0;
  if (::waitpid(child->pid, &status, WNOHANG) != child->pid) return false;
  child->pid = -1;
  return true;
}

Status Embedded::Supervise(Nanos now) {
  for (Child* child : {&coordinator_, &agent_}) {
    if (child->pid > 0) {
      if (!Reap(child)) continue;
      child->quick_deaths = now - child->started < kQuick ? child->quick_deaths + 1 : 0;
      child->not_before = now + kRestartDelay * child->quick_deaths;
    }
    if (child->quick_deaths > kMaxQuickDeaths) {
      return Internal("the {} of this run ends each time it is started; its last lines:\n{}", child->name,
                      LastLines(child->log));
    }
    if (now >= child->not_before) TUTTI_RETURN_IF_ERROR(StartChild(child, now));
  }
  return OkStatus();
}

void Embedded::AwaitChildren(std::initializer_list<Child*> children, Nanos limit) {
  const Nanos deadline = SystemClock().Monotonic() + limit;
  for (;;) {
    std::vector<UniqueFd> ends;
    std::vector<pollfd> fds;
    bool all_gone = true;
    for (Child* child : children) {
      if (Reap(child)) continue;
      all_gone = false;
      auto end = OpenPidFd(child->pid);
      if (!end.ok()) continue;  // gone between the two calls: reaped in the next turn
      fds.push_back({end->get(), POLLIN, 0});
      ends.push_back(*std::move(end));
    }
    const Nanos left = deadline - SystemClock().Monotonic();
    if (all_gone || left.count() <= 0) return;
    ::poll(fds.data(), fds.size(), static_cast<int>(std::min<int64_t>(1000, left.count() / 1'000'000 + 1)));
  }
}

void Embedded::Stop(bool kill) {
  if (std::exchange(stopped_, true)) return;
  if (kill && agent_.pid > 0) {
    // Two different signals: the second tells the agent not to wait for its ranks.
    ::kill(agent_.pid, SIGTERM);
    ::kill(agent_.pid, SIGINT);
  }
  life_write_.Reset();
  AwaitChildren({&agent_}, kill ? kForcedEnd : kOrderlyEnd);
  AwaitChildren({&coordinator_}, kCoordinatorEnd);
  for (Child* child : {&coordinator_, &agent_})
    if (child->pid > 0) ::kill(child->pid, SIGKILL);
  AwaitChildren({&coordinator_, &agent_}, kForcedEnd);
  for (const std::string& path : {runtime_, kept_.empty() ? state_ : std::string()}) {
    if (path.empty()) continue;
    if (const Status removed = RemoveTree(path); !removed.ok())
      fmt::print(stderr, "left behind: {}\n", Message(removed));
  }
  if (!kept_.empty()) RemoveSockets(state_);
  if (!kept_.empty() && ::rename(state_.c_str(), kept_.c_str()) != 0) {
    fmt::print(stderr, "{}\n", Message(ErrnoStatus(errno, fmt::format("rename {} to {}", state_, kept_))));
  }
}

std::string Embedded::KeepAfterStop() {
  kept_ = JoinPath(state_root_, "failed-" + Basename(state_).substr(std::string_view("run-").size()));
  return kept_;
}

}  // namespace tutti::cli
