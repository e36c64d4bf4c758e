#include "base/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/files.h"

namespace tutti {
namespace {

// Runs a shell line and returns what it wrote to descriptor 5, with its exit status.
std::pair<std::string, ExitStatus> RunShell(const std::string& line, SpawnOptions options = {}) {
  int fds[2];
  EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
  UniqueFd read_end(fds[0]), write_end(fds[1]);
  options.argv = {"/bin/sh", "-c", line};
  options.descriptors[5] = write_end.get();
  const auto pid = Spawn(options);
  EXPECT_TRUE(pid.ok()) << pid.status();
  write_end.Reset();
  std::string output;
  char buffer[256];
  for (ssize_t n; (n = read(read_end.get(), buffer, sizeof buffer)) > 0;) output.append(buffer, static_cast<size_t>(n));
  int status = 0;
  EXPECT_EQ(waitpid(*pid, &status, 0), *pid);
  return {output, ExitStatusFromWait(status)};
}

TEST(Spawn, ChildSeesOnlyTheGivenEnvironmentAndArguments) {
  SpawnOptions options;
  options.environment = {{"ONLY", "a b;c"}};
  const auto [output, status] = RunShell("echo \"$ONLY|$HOME\" >&5", options);
  EXPECT_EQ(output, "a b;c|\n");
  EXPECT_EQ(status.code, 0);
}

TEST(Spawn, DescriptorsAreMappedAndAllOthersClosed) {
  UniqueFd leak(fcntl(STDIN_FILENO, F_DUPFD, 20));  // not close-on-exec
  ASSERT_TRUE(leak.valid());
  const auto [output, status] =
      RunShell(fmt::format("for fd in 5 {}; do [ -e /proc/$$/fd/$fd ] && echo $fd >&5; done; exit 0", leak.get()));
  EXPECT_EQ(output, "5\n");
}

TEST(Spawn, CoresApplyToTheChildOnly) {
  const std::vector<int> before = AllowedCores();
  ASSERT_FALSE(before.empty());
  SpawnOptions options;
  options.cores = {before.back()};
  const auto [output, status] = RunShell("grep Cpus_allowed_list /proc/self/status >&5", options);
  EXPECT_NE(output.find("\t" + std::to_string(before.back()) + "\n"), std::string::npos) << output;
  EXPECT_EQ(AllowedCores(), before);
}

TEST(Spawn, MissingProgramIsNotFoundAndNamed) {
  SpawnOptions options;
  options.argv = {"/no/such/program"};
  const auto pid = Spawn(options);
  EXPECT_EQ(pid.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(Message(pid.status()).find("/no/such/program"), std::string::npos);
}

TEST(ExitStatus, CodeAndSignalAreToldApart) {  // FLT-07
  EXPECT_EQ(Describe(RunShell("exit 137").second), "exit code 137");
  EXPECT_EQ(Describe(RunShell("kill -9 $$").second), "signal 9 (SIGKILL)");
}

TEST(PidFd, BecomesReadableWhenTheProcessEnds) {
  SpawnOptions options;
  options.argv = {"/bin/cat"};
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  UniqueFd read_end(fds[0]), write_end(fds[1]);
  options.descriptors[0] = read_end.get();
  const auto pid = Spawn(options);
  ASSERT_TRUE(pid.ok());
  EXPECT_GT(*ProcessStartTicks(*pid), 0);
  const auto watch = OpenPidFd(*pid);
  ASSERT_TRUE(watch.ok());
  pollfd poller{watch->get(), POLLIN, 0};
  EXPECT_EQ(poll(&poller, 1, 0), 0);
  write_end.Reset();  // cat ends at the end of its input
  EXPECT_EQ(poll(&poller, 1, 10000), 1);
  EXPECT_EQ(waitpid(*pid, nullptr, 0), *pid);
  EXPECT_EQ(ProcessStartTicks(*pid).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tutti
