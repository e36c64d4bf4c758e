// Starting and ending processes: posix_spawn only (never fork without exec: gRPC and OpenMP threads do not survive it).
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti {

struct SpawnOptions {
  std::vector<std::string> argv;                   // argv[0] is the path of the program
  std::map<std::string, std::string> environment;  // the whole environment of the child
  std::map<int, int> descriptors;                  // child's number -> our descriptor; all others are closed
  std::vector<int> cores;                          // CPU affinity of the child, applied before exec; empty: ours
  bool new_session = false;                        // setsid
  bool new_process_group = false;
  std::string working_directory;  // empty: ours
};

// NOT_FOUND when the program is absent, RESOURCE_EXHAUSTED when the system has no room. On success the caller must wait
// for the pid.
StatusOr<pid_t> Spawn(const SpawnOptions& options);

// How a process ended: exactly one of code and signal is set.
struct ExitStatus {
  std::optional<int> code;
  std::optional<int> signal;
};
ExitStatus ExitStatusFromWait(int wait_status);
std::string Describe(const ExitStatus& status);  // "exit code 7", "signal 9 (SIGKILL)"

// A descriptor that becomes readable when `pid` (need not be a child) ends; with the start time it survives pid reuse.
StatusOr<UniqueFd> OpenPidFd(pid_t pid);
StatusOr<int64_t> ProcessStartTicks(pid_t pid);  // field 22 of /proc/PID/stat; NOT_FOUND when it is gone

std::map<std::string, std::string> CurrentEnvironment();
std::optional<std::string> GetEnv(const std::string& name);

// Path of a program that is installed beside the running one ("tutti-rank"). NOT_FOUND names the folder that was
// searched.
StatusOr<std::string> SiblingProgram(const std::string& name);

// CPU numbers that this process may use (sched_getaffinity), ascending.
std::vector<int> AllowedCores();

// Greatest resident set of this process so far.
int64_t PeakResidentBytes();
// Resident bytes of this process now; 0 where /proc does not tell.
int64_t ResidentBytes();

}  // namespace tutti
