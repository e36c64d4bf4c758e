// tutti-coordinator as a process: flags, ends, and what a kill leaves behind.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <set>

#include "base/process.h"
#include "tests/coordinator/rpc/fixture.h"

namespace tutti::coordinator {
namespace {

using ::testing::HasSubstr;

class Process {
 public:
  Process(std::vector<std::string> arguments, std::map<int, int> descriptors = {}) {
    int fds[2];
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    SpawnOptions options;
    options.argv = {std::string(TUTTI_BIN_DIR) + "/tutti-coordinator"};
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    options.environment = CurrentEnvironment();
    options.descriptors = std::move(descriptors);
    options.descriptors[1] = fds[1];
    options.descriptors[2] = fds[1];
    const StatusOr<pid_t> pid = Spawn(options);
    EXPECT_TRUE(pid.ok()) << pid.status();
    ::close(fds[1]);
    output_fd_.Reset(fds[0]);
    if (pid.ok()) pid_ = *pid;
  }
  ~Process() {
    if (pid_ <= 0) return;
    Kill(SIGKILL);
    Wait();
  }
  void Kill(int signal) { ::kill(pid_, signal); }
  // Exit code, or 128 + signal; everything it printed is in `output`.
  int Wait() {
    char buffer[4096];
    for (ssize_t n; (n = ::read(output_fd_.get(), buffer, sizeof buffer)) > 0;) output.append(buffer, n);
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // Until it says that it serves.
  void WaitUntilServing() {
    char letter;
    while (output.find("serving on") == output.npos && ::read(output_fd_.get(), &letter, 1) == 1) output += letter;
    EXPECT_THAT(output, HasSubstr("serving on"));
  }
  pid_t pid() const { return pid_; }
  std::string output;

 private:
  pid_t pid_ = -1;
  UniqueFd output_fd_;
};

TEST(Binary, HelpHasExamplesAndWrongFlagsAreSaid) {
  Process help({"--help"});
  EXPECT_EQ(help.Wait(), 0);
  EXPECT_THAT(help.output, HasSubstr("examples:"));
  EXPECT_THAT(help.output, HasSubstr("--state-dir DIR"));
  for (const auto& [arguments, says] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{}, "--state-dir DIR is missing"},
           {{"--state-dir"}, "--state-dir needs a value"},
           {{"--state-dir", "/tmp/x", "--lease", "soon"}, "expected a whole number"},
           {{"--state-dir", "/tmp/x", "--colour"}, "unknown argument '--colour'"},
           {{"--state-dir", "/tmp/x", "--listen", "0.0.0.0:0"}, "only loopback addresses"}}) {  // SEC-01
    Process process(arguments);
    EXPECT_EQ(process.Wait(), 2);
    EXPECT_THAT(process.output, HasSubstr(says));
  }
}

TEST(Binary, SecondOnOneStateDirectoryRefusesWithTheHoldersPid) {
  const TempDirectory directory = *TempDirectory::Create("binary");
  Process first({"--state-dir", directory.path()});
  first.WaitUntilServing();
  Process second({"--state-dir", directory.path()});
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_THAT(second.output, HasSubstr("process " + std::to_string(first.pid())));
  first.Kill(SIGTERM);
  EXPECT_EQ(first.Wait(), 0);
}

TEST(Binary, APortInUseIsRefused) {
  const TempDirectory one = *TempDirectory::Create("binary"), two = *TempDirectory::Create("binary");
  Process first({"--state-dir", one.path(), "--listen", "127.0.0.1:0"});
  first.WaitUntilServing();
  std::string address = *ReadFile(JoinPath(one.path(), "address"));
  address.pop_back();
  Process second({"--state-dir", two.path(), "--listen", address});
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_THAT(second.output, HasSubstr("cannot listen on " + address));
}

TEST(Binary, EndsWhenItsParentIsGone) {
  const TempDirectory directory = *TempDirectory::Create("binary");
  int life[2];
  ASSERT_EQ(::pipe2(life, O_CLOEXEC), 0);
  Process process({"--state-dir", directory.path(), "--life-fd", "7"}, {{7, life[0]}});
  ::close(life[0]);
  process.WaitUntilServing();
  ::close(life[1]);
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_THAT(process.output, HasSubstr("the parent is gone"));
}

// DEP-03, FLT-08: parallel submits while the coordinator is killed again and again; each job that was acknowledged
// exists, under its uid once, and no client ever hears of a locked database.
TEST(Binary, AcknowledgedJobsSurviveSigkillUnderParallelSubmits) {
  const TempDirectory directory = *TempDirectory::Create("binary");
  std::mutex mutex;
  std::map<std::string, std::string> acknowledged;  // uid -> id
  std::set<std::string> errors;
  for (int round = 0; round < 6; ++round) {
    Process process({"--state-dir", directory.path()});
    process.WaitUntilServing();
    const auto channel =
        grpc::CreateChannel("unix:" + directory.path() + "/socket", grpc::InsecureChannelCredentials());
    {
      v1::ListJobsRequest request;
      request.set_page_size(1000);
      v1::ListJobsResponse response;
      Call call;
      const grpc::Status status = v1::JobService::NewStub(channel)->ListJobs(&call, request, &response);
      ASSERT_TRUE(status.ok()) << status.error_message();
      std::map<std::string, std::string> listed;
      for (const v1::Job& job : response.jobs()) EXPECT_TRUE(listed.emplace(job.uid(), job.id()).second) << job.uid();
      for (const auto& [uid, id] : acknowledged) EXPECT_EQ(listed[uid], id) << uid;
    }
    std::vector<std::thread> clients;
    std::atomic<int> done{0};
    for (int client = 0; client < 10; ++client) {
      clients.emplace_back([&, client] {
        const auto stub = v1::JobService::NewStub(channel);
        for (int number = 0; number < 20; ++number) {
          v1::CreateJobRequest request;
          request.set_uid(fmt::format("u-{}-{}-{}", round, client, number));
          *request.mutable_spec() = ValidSpec();
          v1::CreateJobResponse response;
          Call call;
          const grpc::Status status = stub->CreateJob(&call, request, &response);
          const std::lock_guard lock(mutex);
          if (status.ok()) {
            acknowledged[request.uid()] = response.job().id();
          } else if (status.error_code() != grpc::StatusCode::UNAVAILABLE) {
            errors.insert(status.error_message());
          }
          if (++done == 20 + 10 * round) process.Kill(SIGKILL);
          if (!status.ok()) return;
        }
      });
    }
    for (std::thread& client : clients) client.join();
    process.Wait();
  }
  EXPECT_TRUE(errors.empty()) << *errors.begin();
  EXPECT_GT(acknowledged.size(), 100u);
}

}  // namespace
}  // namespace tutti::coordinator
