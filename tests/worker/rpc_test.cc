// Real tutti-worker processes against a coordinator that is played by the test.
#include <grpcpp/grpcpp.h>
#include <sys/wait.h>

#include <condition_variable>
#include <mutex>
#include <optional>

#include "base/unique_fd.h"
#include "tests/worker/support.h"
#include "tutti/v1/agent.grpc.pb.h"
#include "worker/launch/layout.h"
#include "worker/shim/process_tree.h"

namespace tutti::worker {
namespace {

// Keeps what the agent says; answers each report with `welcome`.
class FakeCoordinator final : public v1::AgentService::Service {
 public:
  explicit FakeCoordinator(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeCoordinator() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Connect(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::ConnectResponse, v1::ConnectRequest>* stream) override {
    v1::ConnectRequest message;
    while (stream->Read(&message)) {
      const std::lock_guard lock(mutex_);
      if (message.has_report()) {
        stream_ = stream;
        const auto token = context->client_metadata().find("authorization");
        token_ =
            token == context->client_metadata().end() ? "" : std::string(token->second.data(), token->second.size());
        v1::ConnectResponse response;
        *response.mutable_welcome() = welcome_;
        stream->Write(response);
      }
      messages_.push_back(message);
      changed_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    if (stream_ == stream) stream_ = nullptr;
    return grpc::Status::OK;
  }

  void SetWelcome(int64_t term, const std::vector<v1::StartJob>& desired, const std::vector<v1::AckEvents>& acks = {}) {
    const std::lock_guard lock(mutex_);
    welcome_.Clear();
    welcome_.set_term(term);
    for (const auto& start : desired) *welcome_.add_desired() = start;
    for (const auto& ack : acks) *welcome_.add_acks() = ack;
  }
  void Send(const v1::ConnectResponse& message) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return stream_ != nullptr; });
    ASSERT_NE(stream_, nullptr);
    stream_->Write(message);
  }
  // The first message at or behind `*from` for which `wanted` holds; moves `*from` behind it.
  std::optional<v1::ConnectRequest> Wait(const std::function<bool(const v1::ConnectRequest&)>& wanted,
                                         size_t* from = nullptr) {
    std::unique_lock lock(mutex_);
    size_t at = from != nullptr ? *from : 0;
    std::optional<v1::ConnectRequest> found;
    changed_.wait_for(lock, kPatience, [&] {
      for (; at < messages_.size() && !found; ++at) {
        if (wanted(messages_[at])) found = messages_[at];
      }
      return found.has_value();
    });
    if (from != nullptr) *from = at;
    return found;
  }
  size_t count() {
    const std::lock_guard lock(mutex_);
    return messages_.size();
  }
  // Sequence numbers of kept events of a job among the messages from `from` on, in order of arrival.
  std::vector<int64_t> Sequences(const std::string& job, size_t from = 0) {
    const std::lock_guard lock(mutex_);
    std::vector<int64_t> sequences;
    for (size_t i = from; i < messages_.size(); ++i) {
      const auto& m = messages_[i];
      if (m.has_event() && m.event().job_id() == job && m.event().sequence() > 0)
        sequences.push_back(m.event().sequence());
      if (m.has_exited() && m.exited().job_id() == job) sequences.push_back(m.exited().sequence());
    }
    return sequences;
  }
  std::string token() {
    const std::lock_guard lock(mutex_);
    return token_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  v1::Welcome welcome_;
  std::string token_;
  std::vector<v1::ConnectRequest> messages_;
  grpc::ServerReaderWriter<v1::ConnectResponse, v1::ConnectRequest>* stream_ = nullptr;
  std::unique_ptr<grpc::Server> server_;
};

bool Ended(const v1::ConnectRequest& m) { return m.has_ended(); }
bool Report(const v1::ConnectRequest& m) { return m.has_report(); }

class Agent : public ::testing::Test {
 protected:
  Agent() : temp_(*TempDirectory::Create("tutti-agent")), coordinator_(Address()) {}
  ~Agent() override {
    for (const pid_t pid : pids_) {
      if (pid <= 0) continue;
      kill(pid, SIGTERM);
      kill(pid, SIGTERM);
      if (!Eventually([&] { return waitpid(pid, nullptr, WNOHANG) == pid; })) kill(pid, SIGKILL);
    }
    // A test that killed its agent may leave a shim.
    for (const pid_t pid : Descendants(getpid())) kill(pid, SIGKILL);
  }
  std::string Path(const std::string& name) const { return JoinPath(temp_.path(), name); }
  std::string Address() const { return "unix:" + Path("socket"); }
  std::string State(const std::string& name = "here") const { return Path("state-" + name); }

  // Returns the index of the process.
  size_t StartAgent(std::vector<std::string> extra = {}, const std::string& name = "here",
                    std::vector<std::string> prefix = {}, std::map<int, int> descriptors = {}) {
    SpawnOptions options;
    options.argv = std::move(prefix);
    for (const std::string& argument :
         {Program("tutti-worker"), std::string("--coordinator"), Address(), std::string("--state-dir"), State(name),
          std::string("--name"), name, std::string("--slots"), std::string("4"), std::string("--lock-dir"),
          Path("locks"), std::string("--rank-program"), Program("fake-rank")}) {
      options.argv.push_back(argument);
    }
    options.argv.insert(options.argv.end(), extra.begin(), extra.end());
    options.environment = CurrentEnvironment();
    options.descriptors = std::move(descriptors);
    const auto pid = Spawn(options);
    EXPECT_TRUE(pid.ok()) << pid.status();
    pids_.push_back(pid.ok() ? *pid : -1);
    return pids_.size() - 1;
  }
  int WaitFor(size_t index) {
    int status = 0;
    EXPECT_TRUE(Eventually([&] { return waitpid(pids_[index], &status, WNOHANG) == pids_[index]; }));
    pids_[index] = -1;
    return status;
  }
  void KillAgent(size_t index) {
    kill(pids_[index], SIGKILL);
    WaitFor(index);
  }
  void Revoke(const std::string& job, int64_t up_to, bool forget = false) {
    v1::ConnectResponse message;
    message.mutable_revoke()->set_job_id(job);
    message.mutable_revoke()->set_up_to_generation(up_to);
    message.mutable_revoke()->set_grace_ms(200);
    message.mutable_revoke()->set_forget(forget);
    coordinator_.Send(message);
  }
  std::string ReadLog(const std::string& job, int64_t generation) {
    v1::ConnectResponse message;
    message.mutable_read_log()->set_request_id(job + std::to_string(generation));
    message.mutable_read_log()->set_job_id(job);
    message.mutable_read_log()->set_generation(generation);
    message.mutable_read_log()->set_max_bytes(1000);
    coordinator_.Send(message);
    const auto reply =
        coordinator_.Wait([&](const auto& m) { return m.log().request_id() == message.read_log().request_id(); });
    return reply ? reply->log().error() + reply->log().data() : "no reply";
  }

  TempDirectory temp_;
  FakeCoordinator coordinator_;
  std::vector<pid_t> pids_;
};

TEST_F(Agent, RunsAJobAndTellsEachEventOnce) {
  std::ofstream(Path("token")) << "secret\n";
  coordinator_.SetWelcome(1, {MakeStart("A", 1, {"steps 50 0; print hello", "exit 3"})});
  StartAgent({"--token-file", Path("token")});
  const auto report = coordinator_.Wait(Report);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->report().node().name(), "here");
  EXPECT_EQ(report->report().node().slots_size(), 4);
  EXPECT_EQ(report->report().running_size(), 0);
  EXPECT_EQ(coordinator_.token(), "Bearer secret");
  ASSERT_TRUE(coordinator_.Wait(Ended).has_value());
  const auto failed =
      coordinator_.Wait([](const auto& m) { return m.has_exited() && m.exited().status().rank() == 1; });
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->exited().status().exit_code(), 3);
  EXPECT_EQ(failed->exited().status().node(), "here");
  const auto sequences = coordinator_.Sequences("A");
  ASSERT_GE(sequences.size(), 52u);  // and a notice, where an outer launcher's variables are set
  for (size_t i = 0; i < sequences.size(); ++i) EXPECT_EQ(sequences[i], static_cast<int64_t>(i) + 1);
}

// LOG-09, FLT-14: each attempt's log is kept and found by its generation.
TEST_F(Agent, LogsOfAttemptsStayApart) {
  coordinator_.SetWelcome(1, {MakeStart("A", 1, {"print A; exit 1"})});
  StartAgent();
  size_t at = 0;
  ASSERT_TRUE(coordinator_.Wait(Ended, &at).has_value());
  Revoke("A", 1, /*forget=*/true);
  v1::ConnectResponse next;
  *next.mutable_start() = MakeStart("A", 2, {"print B"});
  coordinator_.Send(next);
  ASSERT_TRUE(
      coordinator_.Wait([](const auto& m) { return m.has_ended() && m.ended().generation() == 2; }, &at).has_value());
  EXPECT_EQ(ReadLog("A", 1), "A\n");
  EXPECT_EQ(ReadLog("A", 2), "B\n");
  EXPECT_EQ(ReadLog("A", 3), "A generation 3 never ran on this node, or its logs were removed");
}

// FLT-03, promise 5: the ranks of a killed agent go on; the next agent adopts them and no event is lost or told twice.
TEST_F(Agent, KilledAgentsRanksAreAdopted) {
  const auto start = MakeStart("A", 1, {"steps 20 0; until " + Path("go") + "; steps 20 0"});
  coordinator_.SetWelcome(1, {start});
  const size_t first = StartAgent();
  ASSERT_TRUE(coordinator_.Wait([](const auto& m) { return m.event().sequence() == 20; }).has_value());
  KillAgent(first);
  // The coordinator kept up to event 12 only.
  v1::AckEvents ack;
  ack.set_job_id("A");
  ack.set_generation(1);
  ack.set_sequence(12);
  coordinator_.SetWelcome(2, {start}, {ack});
  size_t at = coordinator_.count();
  const size_t from = at;
  StartAgent();
  const auto report = coordinator_.Wait(Report, &at);
  ASSERT_TRUE(report.has_value());
  ASSERT_EQ(report->report().running_size(), 1);
  EXPECT_EQ(report->report().running(0).job_id(), "A");
  EXPECT_FALSE(report->report().running(0).ended());
  EXPECT_EQ(report->report().running(0).ranks(0).state(), v1::RANK_STATE_RUNNING);
  EXPECT_EQ(report->report().seen_term(), 1);
  std::ofstream(Path("go")).put('\n');
  ASSERT_TRUE(coordinator_.Wait(Ended, &at).has_value());
  const auto sequences = coordinator_.Sequences("A", from);
  ASSERT_EQ(sequences.size(), 29u);  // 13 .. 40, and the exit
  for (size_t i = 0; i < sequences.size(); ++i) EXPECT_EQ(sequences[i], static_cast<int64_t>(i) + 13);
}

TEST_F(Agent, RunThatEndedWithoutAnAgentIsToldLater) {
  const auto start = MakeStart("A", 1, {"until " + Path("go") + "; steps 3 0; exit 4"});
  coordinator_.SetWelcome(1, {start});
  const size_t first = StartAgent();
  ASSERT_TRUE(
      coordinator_.Wait([](const auto& m) { return m.has_heartbeat() && m.heartbeat().slots(0).job_id() == "A"; })
          .has_value());
  KillAgent(first);
  std::ofstream(Path("go")).put('\n');
  ASSERT_TRUE(Eventually([&] { return LockFile(JoinPath(RunDirectory(State(), {"A", 1}), kShimLockFile)).ok(); }));
  size_t at = coordinator_.count();
  StartAgent();
  const auto report = coordinator_.Wait(Report, &at);
  ASSERT_TRUE(report.has_value());
  ASSERT_EQ(report->report().running_size(), 1);
  EXPECT_TRUE(report->report().running(0).ended());
  EXPECT_EQ(report->report().running(0).ranks(0).exit_code(), 4);
  const auto exited = coordinator_.Wait([](const auto& m) { return m.has_exited(); }, &at);
  ASSERT_TRUE(exited.has_value());
  EXPECT_EQ(exited->exited().sequence(), 4);
  Revoke("A", 1, /*forget=*/true);
  EXPECT_TRUE(Eventually([&] { return FileExists(JoinPath(RunDirectory(State(), {"A", 1}), kForgottenFile)); }));
}

TEST_F(Agent, SigtermEndsRanksFirstThenTheAgent) {
  coordinator_.SetWelcome(1, {MakeStart("A", 1, {"touch " + Path("up") + "; wait; touch " + Path("saved")})});
  const size_t agent = StartAgent();
  ASSERT_TRUE(Eventually([&] { return FileExists(Path("up")); }));
  kill(pids_[agent], SIGTERM);
  const int status = WaitFor(agent);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(Content(Path("saved")), "complete");
  EXPECT_TRUE(coordinator_.Wait(Ended).has_value());
}

// A rank that does not listen is killed when its grace (500 ms) is over.
TEST_F(Agent, EndOfTheLifePipeEndsAllInOrder) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  UniqueFd theirs(fds[0]), ours(fds[1]);
  coordinator_.SetWelcome(
      1, {MakeStart("A", 1, {"ignore-term; escape " + Path("child") + "; touch " + Path("up") + "; sleep 60000"})});
  const size_t agent = StartAgent({"--embedded", "--life-fd", "7"}, "here", {}, {{7, theirs.get()}});
  theirs.Reset();
  ASSERT_TRUE(Eventually([&] { return FileExists(Path("up")) && FileExists(Path("child")); }));
  const pid_t child = std::stoi(Content(Path("child")));
  EXPECT_TRUE(Alive(child));
  ours.Reset();
  EXPECT_EQ(WEXITSTATUS(WaitFor(agent)), 0);
  EXPECT_FALSE(Alive(child));
}

TEST_F(Agent, SecondAgentOnOneStateDirectoryIsRefused) {
  StartAgent();
  ASSERT_TRUE(coordinator_.Wait(Report).has_value());
  const int status = WaitFor(StartAgent());
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

TEST_F(Agent, SlotThatAnotherAgentUsesIsSaidAndRefused) {
  coordinator_.SetWelcome(1, {MakeStart("A", 1, {"touch " + Path("up") + "; sleep 60000"}, "here")});
  StartAgent();
  ASSERT_TRUE(Eventually([&] { return FileExists(Path("up")); }));
  coordinator_.SetWelcome(1, {MakeStart("B", 1, {"exit 0"}, "there")});
  size_t at = coordinator_.count();
  StartAgent({}, "there");
  const auto failed = coordinator_.Wait([](const auto& m) { return m.has_start_failed(); }, &at);
  ASSERT_TRUE(failed.has_value());
  EXPECT_NE(failed->start_failed().message().find("slot cpu0 is in use on this host"), std::string::npos);
  const auto locked = [](const auto& m) { return m.has_heartbeat() && m.heartbeat().slots(0).locked_elsewhere(); };
  const auto heartbeat = coordinator_.Wait(locked, &at);
  ASSERT_TRUE(heartbeat.has_value());
  EXPECT_FALSE(heartbeat->heartbeat().slots(1).locked_elsewhere());
}

TEST_F(Agent, OlderCoordinatorIsRefused) {
  coordinator_.SetWelcome(5, {});
  StartAgent();
  ASSERT_TRUE(coordinator_.Wait([](const auto& m) { return m.has_heartbeat(); }).has_value());
  coordinator_.SetWelcome(4, {MakeStart("A", 1, {"touch " + Path("ran")})});
  kill(pids_[0], SIGUSR1);
  EXPECT_EQ(WEXITSTATUS(WaitFor(0)), 0);
  size_t at = coordinator_.count();
  StartAgent();
  // It reports, hears the older term, leaves, and tries again; it never starts anything.
  for (int i = 0; i < 3; ++i) {
    const auto report = coordinator_.Wait([](const auto& m) { return !m.has_heartbeat(); }, &at);
    ASSERT_TRUE(report.has_value() && report->has_report());
    EXPECT_EQ(report->report().seen_term(), 5);
  }
  EXPECT_FALSE(FileExists(Path("ran")));
}

// DEP-02
TEST_F(Agent, AsProcessOneItReapsOrphansAndEndsInOrder) {
  const std::string unshare = "/usr/bin/unshare";
  SpawnOptions probe;
  probe.argv = {unshare, "--pid", "--fork", "--mount-proc", "/bin/true"};
  const auto tried = Spawn(probe);
  int status = 0;
  if (!tried.ok() || waitpid(*tried, &status, 0) != *tried || status != 0)
    GTEST_SKIP() << "no right to make a PID namespace here";
  ASSERT_EQ(symlink("/bin/sleep", Path("tutti-orphan").c_str()), 0);  // a name of its own in /proc
  coordinator_.SetWelcome(1, {MakeStart("A", 1,
                                        {"orphans 100 " + Path("tutti-orphan") + "; touch " + Path("up") +
                                         "; wait; touch " + Path("saved")})});
  const size_t index = StartAgent({}, "here", {unshare, "--pid", "--fork", "--mount-proc"});
  ASSERT_TRUE(Eventually([&] { return FileExists(Path("up")); }));
  const auto children = Descendants(pids_[index]);
  ASSERT_FALSE(children.empty());
  const auto orphans = [&] {  // running or defunct
    int count = 0;
    const std::vector<std::string> names = *ListDirectory("/proc");
    for (const std::string& name : names) {
      const std::string stat = Content("/proc/" + name + "/stat");
      if (stat.find("(tutti-orphan)") != std::string::npos) ++count;
    }
    return count;
  };
  EXPECT_TRUE(Eventually([&] { return orphans() == 0; }));
  kill(children.front(), SIGTERM);  // the agent: process 1 of its namespace
  EXPECT_EQ(WEXITSTATUS(WaitFor(index)), 0);
  EXPECT_EQ(Content(Path("saved")), "complete");
}

}  // namespace
}  // namespace tutti::worker
