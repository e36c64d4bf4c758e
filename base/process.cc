#include "base/process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/files.h"

namespace tutti {
namespace {

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

// posix_spawn's file actions, freed when dropped. Descriptors are first moved out of the way of all target numbers, so
// that a map such as {3: 4, 4: 3} works; close-on-exec does the rest, and what was opened without it is closed from
// `lowest free` upwards.
class FileActions {
 public:
  FileActions() { posix_spawn_file_actions_init(&actions_); }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  FileActions& operator=(const FileActions&) = delete;

  Status Map(const std::map<int, int>& descriptors) {
    int next = 3;
    for (const auto& [target, source] : descriptors) next = std::max({next, target + 1});
    for (const auto& [target, source] : descriptors) {
      UniqueFd copy(::fcntl(source, F_DUPFD_CLOEXEC, next));
      if (!copy.valid()) return ErrnoStatus(errno, fmt::format("duplicate descriptor {}", source));
      posix_spawn_file_actions_adddup2(&actions_, copy.get(), target);
      copies_.push_back(std::move(copy));
    }
    int closed_from = 3;
    for (const auto& [target, source] : descriptors) {
      for (int fd = closed_from; fd < target; ++fd) {
        if (!descriptors.contains(fd)) posix_spawn_file_actions_addclose(&actions_, fd);
      }
      closed_from = std::max(closed_from, target + 1);
    }
    posix_spawn_file_actions_addclosefrom_np(&actions_, closed_from);
    return OkStatus();
  }
  void ChangeDirectory(const std::string& path) { posix_spawn_file_actions_addchdir_np(&actions_, path.c_str()); }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
  std::vector<UniqueFd> copies_;
};

class SpawnAttributes {
 public:
  explicit SpawnAttributes(const SpawnOptions& options) {
    posix_spawnattr_init(&attributes_);
    short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    if (options.new_session) flags |= POSIX_SPAWN_SETSID;
    if (options.new_process_group) {
      flags |= POSIX_SPAWN_SETPGROUP;
      posix_spawnattr_setpgroup(&attributes_, 0);
    }
    posix_spawnattr_setflags(&attributes_, flags);
  }
  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes_); }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_{};
};

// The calling thread's affinity, set for the time of a spawn (the child inherits it) and put back.
class ScopedAffinity {
 public:
  static StatusOr<std::unique_ptr<ScopedAffinity>> Set(const std::vector<int>& cores) {
    std::unique_ptr<ScopedAffinity> scoped(new ScopedAffinity);
    if (sched_getaffinity(0, sizeof scoped->before_, &scoped->before_) != 0) return ErrnoStatus(errno, "read affinity");
    if (cores.empty()) return scoped;
    cpu_set_t wanted;
    CPU_ZERO(&wanted);
    for (const int core : cores) {
      if (core < 0 || core >= CPU_SETSIZE) return InvalidArgument("core {} does not exist", core);
      CPU_SET(core, &wanted);
    }
    if (sched_setaffinity(0, sizeof wanted, &wanted) != 0) {
      return ErrnoStatus(errno, fmt::format("use core {}", cores.front()));
    }
    scoped->changed_ = true;
    return scoped;
  }
  ~ScopedAffinity() {
    if (changed_) sched_setaffinity(0, sizeof before_, &before_);
  }
  ScopedAffinity(const ScopedAffinity&) = delete;
  ScopedAffinity& operator=(const ScopedAffinity&) = delete;

 private:
  ScopedAffinity() = default;
  cpu_set_t before_{};
  bool changed_ = false;
};

}  // namespace

StatusOr<pid_t> Spawn(const SpawnOptions& options) {
  if (options.argv.empty()) return InvalidArgument("spawn: no program was given");
  FileActions actions;
  std::map<int, int> descriptors = options.descriptors;
  for (int fd = 0; fd <= 2; ++fd) descriptors.try_emplace(fd, fd);
  TUTTI_RETURN_IF_ERROR(actions.Map(descriptors));
  if (!options.working_directory.empty()) actions.ChangeDirectory(options.working_directory);
  const SpawnAttributes attributes(options);

  std::vector<std::string> argv = options.argv;
  std::vector<std::string> environment;
  for (const auto& [name, value] : options.environment) environment.push_back(name + "=" + value);
  TUTTI_ASSIGN_OR_RETURN(const auto affinity, ScopedAffinity::Set(options.cores));
  pid_t pid = -1;
  const int error = posix_spawn(&pid, argv[0].c_str(), actions.get(), attributes.get(), Pointers(argv).data(),
                                Pointers(environment).data());
  if (error != 0) return ErrnoStatus(error, fmt::format("start {}", argv[0]));
  return pid;
}

ExitStatus ExitStatusFromWait(int wait_status) {
  ExitStatus status;
  if (WIFEXITED(wait_status)) status.code = WEXITSTATUS(wait_status);
  if (WIFSIGNALED(wait_status)) status.signal = WTERMSIG(wait_status);
  return status;
}

std::string Describe(const ExitStatus& status) {
  if (status.code) return fmt::format("exit code {}", *status.code);
  if (!status.signal) return "still running";
  const char* name = sigabbrev_np(*status.signal);
  return name != nullptr ? fmt::format("signal {} (SIG{})", *status.signal, name)
                         : fmt::format("signal {}", *status.signal);
}

StatusOr<UniqueFd> OpenPidFd(pid_t pid) {
  const long fd = ::syscall(SYS_pidfd_open, pid, 0);
  if (fd < 0) return ErrnoStatus(errno, fmt::format("watch process {}", pid));
  ::fcntl(static_cast<int>(fd), F_SETFD, FD_CLOEXEC);
  return UniqueFd(static_cast<int>(fd));
}

StatusOr<int64_t> ProcessStartTicks(pid_t pid) {
  TUTTI_ASSIGN_OR_RETURN(const std::string stat, ReadFile(fmt::format("/proc/{}/stat", pid), 1 << 16));
  size_t at = stat.rfind(')');  // the command in parentheses may hold anything
  for (int field = 2; at != std::string::npos && field < 22; ++field) at = stat.find(' ', at + 1);
  if (at == std::string::npos) return DataLoss("/proc/{}/stat has fewer than 22 fields", pid);
  return std::strtoll(stat.c_str() + at, nullptr, 10);
}

std::map<std::string, std::string> CurrentEnvironment() {
  std::map<std::string, std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos) result.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

std::optional<std::string> GetEnv(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

StatusOr<std::string> SiblingProgram(const std::string& name) {
  char self[4096];
  const ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
  if (n <= 0) return ErrnoStatus(errno, "read /proc/self/exe");
  const std::string folder = Dirname(std::string_view(self, static_cast<size_t>(n)));
  const std::string path = JoinPath(folder, name);
  if (::access(path.c_str(), X_OK) != 0) return NotFound("program {} is not in {}", name, folder);
  return path;
}

std::vector<int> AllowedCores() {
  cpu_set_t set;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

int64_t PeakResidentBytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;  // Linux counts KiB
}

int64_t ResidentBytes() {
  const StatusOr<std::string> statm = ReadFile("/proc/self/statm");
  long long total = 0, resident = 0;  // pages
  if (!statm.ok() || std::sscanf(statm->c_str(), "%lld %lld", &total, &resident) != 2) return 0;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace tutti
