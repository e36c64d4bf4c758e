// Real tutti-shim processes with real ranks (tests/worker/fake_rank.cc).
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <optional>

#include "base/framing.h"
#include "tests/worker/support.h"
#include "worker/launch/launch.h"
#include "worker/launch/layout.h"
#include "worker/launch/local_socket.h"
#include "worker/probe/slot_lock.h"
#include "worker/shim/cgroup.h"
#include "worker/shim/event_log.h"
#include "worker/shim/recover.h"

namespace tutti::worker {
namespace {

using std::chrono::milliseconds;

std::vector<v1::Slot> OneCoreSlots(size_t count) {
  const int core = AllowedCores().front();
  std::vector<v1::Slot> slots(count);
  for (size_t i = 0; i < count; ++i) {
    slots[i].set_id("cpu" + std::to_string(i));
    slots[i].add_cores(core);
  }
  return slots;
}

// An agent's side of the socket, blocking with a deadline.
class Client {
 public:
  explicit Client(const std::string& directory, int64_t after) {
    auto socket = ConnectLocal(directory, kShimSocketFile);
    if (!socket.ok()) return;
    socket_ = *std::move(socket);
    v1::ShimRequest request;
    request.mutable_attach()->set_after_sequence(after);
    Send(request);
  }
  bool connected() const { return socket_.valid(); }
  void Send(const v1::ShimRequest& request) { EXPECT_TRUE(SendFrame(socket_.get(), request.SerializeAsString()).ok()); }
  void Stop(int64_t grace_ms) {
    v1::ShimRequest request;
    request.mutable_stop()->set_grace_ms(grace_ms);
    Send(request);
  }
  // nullopt: the shim closed the connection, or the deadline passed.
  std::optional<v1::ShimReply> Next() {
    pollfd fd{socket_.get(), POLLIN, 0};
    if (poll(&fd, 1, static_cast<int>(kPatience / milliseconds(1))) <= 0) return std::nullopt;
    auto frame = ReceiveFrame(socket_.get());
    v1::ShimReply reply;
    if (!frame.ok() || !*frame || !reply.ParseFromString(**frame)) return std::nullopt;
    return reply;
  }
  // The next event for which `wanted` holds.
  std::optional<v1::ShimEvent> Until(const std::function<bool(const v1::ShimEvent&)>& wanted) {
    while (auto reply = Next()) {
      if (reply->has_event() && wanted(reply->event())) return reply->event();
    }
    return std::nullopt;
  }
  std::map<int32_t, v1::RankStatus> UntilAllExited() {
    std::map<int32_t, v1::RankStatus> ranks;
    const auto end = Until([&](const v1::ShimEvent& event) {
      if (event.has_exited()) ranks[event.exited().rank()] = event.exited();
      return event.all_exited();
    });
    EXPECT_TRUE(end.has_value()) << "no all_exited";
    return ranks;
  }
  void Close() { socket_.Reset(); }

 private:
  UniqueFd socket_;
};

class ShimProcess : public ::testing::Test {
 protected:
  ShimProcess() : temp_(*TempDirectory::Create("tutti-shim-test")) {}
  ~ShimProcess() override {
    if (pid_ > 0) {
      if (Alive(pid_)) kill(pid_, SIGTERM);
      if (!Eventually([&] { return Reaped(); })) kill(pid_, SIGKILL);
    }
  }

  std::string Path(const std::string& name) const { return JoinPath(temp_.path(), name); }
  std::string Directory() const { return RunDirectory(temp_.path(), {"JOB", 1}); }

  void Start(const std::vector<std::string>& scripts,
             std::map<std::string, std::string> environment = CurrentEnvironment()) {
    start_ = MakeStart("JOB", 1, scripts);
    LaunchInputs inputs;
    inputs.start = start_;
    inputs.node = "here";
    inputs.run_directory = Directory();
    inputs.slots = OneCoreSlots(scripts.size());
    inputs.environment = std::move(environment);
    inputs.rank_program = Program("fake-rank");
    inputs.orphan_grace_ms = orphan_grace_ms_;
    auto config = MakeShimConfig(inputs);
    ASSERT_TRUE(config.ok()) << config.status();
    config->set_log_limit_bytes(log_limit_bytes_);
    config_ = *config;
    ASSERT_TRUE(WriteRecord(Directory(), start_).ok());
    const auto locks = SlotLocks::Create(Path("locks"), inputs.slots);
    std::vector<std::vector<UniqueFd>> slot_locks;
    for (const v1::Slot& slot : inputs.slots) {
      auto lock = locks->Lock(slot.id());
      ASSERT_TRUE(lock.ok()) << lock.status();
      slot_locks.push_back(*std::move(lock));
    }
    const auto run_lock = LockFile(JoinPath(Directory(), kShimLockFile));
    const auto listener = ListenLocal(Directory(), kShimSocketFile);
    ASSERT_TRUE(run_lock.ok() && listener.ok());
    const auto pid = StartShim(shim_program_, *config, *run_lock, *listener, slot_locks);
    ASSERT_TRUE(pid.ok()) << pid.status();
    pid_ = *pid;
  }
  Client Attach(int64_t after = 0) { return Client(Directory(), after); }

  bool Reaped() {
    if (pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = -1;
    return pid_ < 0;
  }
  bool SlotIsFree(const std::string& slot) {
    return !SlotLocks::Create(Path("locks"), OneCoreSlots(8))->IsLocked(slot);
  }
  std::vector<v1::ShimEvent> EventsOnDisk() {
    std::vector<v1::ShimEvent> events;
    auto reader = EventReader::Open(JoinPath(Directory(), kEventsFile));
    if (!reader.ok()) return events;
    while (true) {
      auto event = reader->Next();
      if (!event.ok() || !*event) return events;
      events.push_back(**std::move(event));
    }
  }
  std::string LogOf(int rank) { return Content(JoinPath(Directory(), RankLogFile(rank))); }

  TempDirectory temp_;
  std::string shim_program_ = Program("tutti-shim");
  v1::StartJob start_;
  v1::ShimConfig config_;
  int64_t orphan_grace_ms_ = 600'000;
  int64_t log_limit_bytes_ = 0;
  pid_t pid_ = -1;
};

// FLT-02
TEST_F(ShimProcess, FirstFailureIsKeptApartFromItsConsequences) {
  Start({"until " + Path("go") + "; victim rank 1 closed the connection; exit 4", "print begin; err boom; exit 7",
         "sleep 60000"});
  Client client = Attach();
  const auto first = client.Until([](const v1::ShimEvent& e) { return e.has_exited(); });
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->exited().rank(), 1);
  EXPECT_EQ(first->exited().exit_code(), 7);
  EXPECT_EQ(first->exited().signal(), 0);
  EXPECT_EQ(first->exited().message(), "");  // the code says it
  EXPECT_FALSE(first->exited().victim());
  EXPECT_FALSE(first->exited().stopped_by_us());
  EXPECT_EQ(std::vector<std::string>(first->exited().last_lines().begin(), first->exited().last_lines().end()),
            (std::vector<std::string>{"begin", "boom"}));
  std::ofstream(Path("go")).put('\n');
  const auto second = client.Until([](const v1::ShimEvent& e) { return e.has_exited(); });
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->exited().rank(), 0);
  EXPECT_TRUE(second->exited().victim());
  EXPECT_EQ(second->exited().message(), "rank 1 closed the connection");
  client.Stop(5000);
  const auto third = client.Until([](const v1::ShimEvent& e) { return e.has_exited(); });
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(third->exited().rank(), 2);
  EXPECT_TRUE(third->exited().stopped_by_us());
  EXPECT_EQ(third->exited().signal(), SIGTERM);
}

// FLT-05: a rank that uses its grace ends well, one that ignores SIGTERM is killed at the grace's end and not before.
TEST_F(ShimProcess, GraceIsGivenInFullAndNotMore) {
  const int64_t grace_ms = 1000;
  Start({"trap-term 500 " + Path("saved") + "; touch " + Path("up0") + "; sleep 60000",
         "ignore-term; touch " + Path("up1") + "; sleep 60000"});
  Client client = Attach();
  ASSERT_TRUE(Eventually([&] { return FileExists(Path("up0")) && FileExists(Path("up1")); }));
  const int64_t begin_ms = SystemClock().UnixMillis();
  client.Stop(grace_ms);
  const auto ranks = client.UntilAllExited();
  EXPECT_EQ(Content(Path("saved")), "complete");
  EXPECT_EQ(ranks.at(0).exit_code(), 0);
  EXPECT_EQ(ranks.at(0).message(), "exit code 0 after our SIGTERM");
  EXPECT_EQ(ranks.at(1).signal(), SIGKILL);
  EXPECT_TRUE(ranks.at(1).stopped_by_us());
  EXPECT_EQ(ranks.at(1).message(), "did not end within 1000 ms of SIGTERM: killed by us");
  EXPECT_GE(ranks.at(1).end_unix_ms() - begin_ms, grace_ms - 1);
  EXPECT_LE(ranks.at(1).end_unix_ms() - begin_ms, grace_ms + 1000);
}

// FLT-12: a stopped process hears SIGTERM at once, not SIGKILL after the grace.
TEST_F(ShimProcess, StoppedRankIsWokenToEnd) {
  Start({"trap-term 0 " + Path("saved") + "; touch " + Path("up") + "; signal 19; sleep 60000"});
  Client client = Attach();
  ASSERT_TRUE(Eventually([&] { return FileExists(Path("up")); }));
  client.Stop(60'000);
  EXPECT_EQ(client.UntilAllExited().at(0).exit_code(), 0);
  EXPECT_EQ(Content(Path("saved")), "complete");
}

// FLT-03: the agent is gone for good; nothing outlives the orphan grace, not even a process that left group and
// session.
TEST_F(ShimProcess, WithoutAnAgentNothingSurvives) {
  orphan_grace_ms_ = 300;
  Start({"escape " + Path("child") + "; ignore-term; steps 3 0; sleep 60000", "sleep 60000"});
  Client client = Attach();
  ASSERT_TRUE(client.Until([](const v1::ShimEvent& e) { return e.rank_event().step().step() == 3; }));
  ASSERT_TRUE(Eventually([&] { return FileExists(Path("child")); }));
  const pid_t child = std::stoi(Content(Path("child")));
  EXPECT_TRUE(Alive(child));
  EXPECT_FALSE(SlotIsFree("cpu0"));
  client.Close();
  ASSERT_TRUE(Eventually([&] { return Reaped(); }));
  EXPECT_FALSE(Alive(child));
  EXPECT_TRUE(SlotIsFree("cpu0"));
  EXPECT_TRUE(SlotIsFree("cpu1"));
  const auto events = EventsOnDisk();
  ASSERT_FALSE(events.empty());
  EXPECT_TRUE(events.back().all_exited());
  v1::RankStatus outcome;
  ASSERT_TRUE(outcome.ParseFromString(Content(JoinPath(Directory(), RankExitFile(0)))));
  EXPECT_EQ(outcome.signal(), SIGKILL);
  EXPECT_TRUE(outcome.stopped_by_us());
}

// FLT-07 (b), (c)
TEST_F(ShimProcess, SignalAndExitCode137AreToldApart) {
  Start({"signal 9", "exit 137", "signal 11"});
  const auto ranks = Attach().UntilAllExited();
  EXPECT_EQ(ranks.at(0).signal(), 9);
  EXPECT_EQ(ranks.at(0).message(), "");  // no evidence: the coordinator says "cause unknown, possibly memory"
  EXPECT_EQ(ranks.at(1).signal(), 0);
  EXPECT_EQ(ranks.at(1).exit_code(), 137);
  EXPECT_EQ(ranks.at(1).message(), "");
  EXPECT_EQ(ranks.at(2).signal(), 11);
  EXPECT_FALSE(ranks.at(0).stopped_by_us());
}

// A memory control group of 64 MiB below our own, for the shim and its ranks; removed when dropped.
class SmallGroup {
 public:
  SmallGroup() {
    const auto own = OwnMemoryGroup();
    if (!own) return;
    directory_ = JoinPath(own->directory, "tutti-test-" + std::to_string(getpid()));
    if (mkdir(directory_.c_str(), 0755) != 0) return;
    made_ = true;
    for (const char* file : {"memory.max", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"})
      Put(file, "67108864");
    Put("memory.swap.max", "0");
    usable_ = ReadMemoryEvidence(directory_, own->root).limit_bytes == 64 << 20;
  }
  ~SmallGroup() {
    EXPECT_TRUE(!made_ || Eventually([&] { return rmdir(directory_.c_str()) == 0; }));
  }
  bool usable() const { return usable_; }
  const std::string& directory() const { return directory_; }

 private:
  void Put(const std::string& file, const std::string& text) const {
    const std::string path = JoinPath(directory_, file);
    if (FileExists(path)) std::ofstream(path) << text;
  }
  std::string directory_;
  bool made_ = false, usable_ = false;
};

// FLT-07 (a): by the kernel itself, where a group can be made.
TEST_F(ShimProcess, RankKilledForWantOfMemorySaysSoWithEvidence) {
  const SmallGroup group;
  if (!group.usable()) GTEST_SKIP() << "no right to make a memory control group here";
  shim_program_ = Path("shim-in-group");
  std::ofstream(shim_program_) << "#!/bin/sh\necho $$ > " << group.directory() << "/cgroup.procs\nexec "
                               << Program("tutti-shim") << " \"$@\"\n";
  chmod(shim_program_.c_str(), 0700);
  Start({"allocate 256"});
  const auto ranks = Attach().UntilAllExited();
  EXPECT_EQ(ranks.at(0).signal(), SIGKILL);
  EXPECT_TRUE(ranks.at(0).message().starts_with("out of memory (cgroup limit 64.0 MiB, peak "))
      << ranks.at(0).message();
  EXPECT_FALSE(ranks.at(0).stopped_by_us());
  EXPECT_TRUE(Eventually([&] { return Reaped(); }));
}

// LOG-03
TEST_F(ShimProcess, ProgressBarsBecomeBoundedLinesInTime) {
  Start({"progress 1000 5; print done"});
  Client client = Attach();
  const Nanos begin = SystemClock().Monotonic();
  ASSERT_TRUE(Eventually([&] { return LogOf(0).find("step") != std::string::npos; }));
  EXPECT_LT(SystemClock().Monotonic() - begin, std::chrono::seconds(2));
  client.UntilAllExited();
  const std::string log = LogOf(0);
  EXPECT_EQ(log.find('\r'), std::string::npos);
  EXPECT_TRUE(log.ends_with("done\n")) << log;
  // One line of 60 bytes per half second of at least 5 s of output, and room for a machine that is ten times slower.
  EXPECT_LT(log.size(), 6000u);
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) EXPECT_LT(line.size(), 200u);
}

// LOG-03
TEST_F(ShimProcess, LogIsBoundedAndKeepsItsBeginAndEnd) {
  log_limit_bytes_ = 10'000;
  Start({"flood 100000; err the reason; exit 5"});
  const auto ranks = Attach().UntilAllExited();
  const std::string log = LogOf(0);
  EXPECT_LT(log.size(), 10'000u + (64u << 10) + 300u);
  EXPECT_TRUE(log.starts_with("line 0\nline 1\n"));
  EXPECT_NE(log.find("[tutti] the log's limit of 10000 bytes was reached"), std::string::npos);
  EXPECT_TRUE(log.ends_with("line 99999\nthe reason\n"));
  ASSERT_EQ(ranks.at(0).last_lines_size(), 20);
  EXPECT_EQ(ranks.at(0).last_lines(18), "line 99999");
  EXPECT_EQ(ranks.at(0).last_lines(19), "the reason");
}

// ENV-08, ENV-05
TEST_F(ShimProcess, OuterLaunchersVariablesDoNotReachRanks) {
  auto environment = CurrentEnvironment();
  environment["RANK"] = "7";
  environment["WORLD_SIZE"] = "99";
  environment["SLURM_NTASKS"] = "1";
  environment["MASTER_ADDR"] = "10.0.0.1";
  environment["OMP_NUM_THREADS"] = "2";
  Start({"env " + Path("env0"), "env " + Path("env1")}, environment);
  Client client = Attach();
  const auto notice = client.Until([](const v1::ShimEvent& e) { return e.rank_event().has_notice(); });
  ASSERT_TRUE(notice.has_value());
  EXPECT_EQ(notice->rank_event().notice().level(), v1::NOTICE_LEVEL_WARNING);
  EXPECT_NE(notice->rank_event().notice().message().find("MASTER_ADDR, RANK, SLURM_NTASKS, WORLD_SIZE"),
            std::string::npos);
  client.UntilAllExited();
  const std::string seen = "\n" + Content(Path("env1"));
  EXPECT_NE(seen.find("\nRANK=1\n"), std::string::npos);
  EXPECT_NE(seen.find("\nWORLD_SIZE=2\n"), std::string::npos);
  EXPECT_EQ(seen.find("\nSLURM_NTASKS="), std::string::npos);
  EXPECT_EQ(seen.find("\nMASTER_ADDR="), std::string::npos);
  EXPECT_NE(seen.find("\nOMP_NUM_THREADS=2\n"), std::string::npos);
}

TEST_F(ShimProcess, RankInheritsSharedMemoryLockCoresAndOwnGroup) {
  Start({"descriptors " + Path("fds")});
  Attach().UntilAllExited();
  const std::string size = std::to_string(config_.shared_memory_bytes());
  EXPECT_GT(config_.shared_memory_bytes(), 0);
  EXPECT_EQ(Content(Path("fds")), "memory=" + size + " expected=" + size +
                                      " lock=1 cores=" + std::to_string(AllowedCores().front()) + ", group=1");
}

// Every event once, in order, whatever the cursor, though agents come and go.
TEST_F(ShimProcess, ReplayHasNoGapAndNoDuplicate) {
  Start({"ready; steps 2000 0; beat; touch " + Path("sent") + "; wait; steps 5 0"});
  std::vector<int64_t> seen;
  const auto collect = [&](const v1::ShimEvent& event) {
    if (event.sequence() > 0) seen.push_back(event.sequence());
    return false;
  };
  {
    Client client = Attach();
    for (int i = 0; i < 700; ++i) {
      const auto reply = client.Next();
      ASSERT_TRUE(reply.has_value());
      if (reply->has_event()) collect(reply->event());
    }
  }
  ASSERT_TRUE(Eventually([&] { return FileExists(Path("sent")); }));
  Client older = Attach(0);
  ASSERT_TRUE(older.Next().has_value());
  Client newest = Attach(seen.back());
  const auto state = newest.Next();
  ASSERT_TRUE(state.has_value() && state->has_state());
  EXPECT_EQ(state->state().ready(0).blob(), "blob of 0");
  EXPECT_EQ(state->state().ranks(0).state(), v1::RANK_STATE_RUNNING);
  v1::ShimRequest yield;
  yield.mutable_control()->set_intent(v1::INTENT_YIELD);
  newest.Send(yield);
  newest.Until(collect);  // until the shim closes: all told
  // 1 ready + 2000 + 5 steps + exited + all_exited
  ASSERT_EQ(seen.size(), 2008u);
  for (size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], static_cast<int64_t>(i) + 1);
  ASSERT_TRUE(Eventually([&] { return Reaped(); }));
  const auto disk = EventsOnDisk();
  ASSERT_EQ(disk.size(), 2008u);
  EXPECT_TRUE(disk.back().all_exited());
  EXPECT_EQ(disk[2006].exited().exit_code(), 0);
}

TEST_F(ShimProcess, BytesThatAreNoEventEndTheConversationNotTheRank) {
  Start({"steps 1 0; garbage; touch " + Path("after") + "; exit 0"});
  Client client = Attach();
  const auto notice = client.Until([](const v1::ShimEvent& e) { return e.rank_event().has_notice(); });
  ASSERT_TRUE(notice.has_value());
  EXPECT_NE(notice->rank_event().notice().message().find("no longer listened to"), std::string::npos);
  EXPECT_EQ(client.UntilAllExited().at(0).exit_code(), 0);
}

TEST_F(ShimProcess, MissingRankProgramIsAnExitWithTheReason) {
  const std::string none = Path("no-such-program");
  start_ = MakeStart("JOB", 1, {"exit 0"});
  LaunchInputs inputs;
  inputs.start = start_;
  inputs.node = "here";
  inputs.run_directory = Directory();
  inputs.slots = OneCoreSlots(1);
  inputs.rank_program = none;
  ASSERT_TRUE(WriteRecord(Directory(), start_).ok());
  const auto run_lock = LockFile(JoinPath(Directory(), kShimLockFile));
  const auto listener = ListenLocal(Directory(), kShimSocketFile);
  const auto pid = StartShim(Program("tutti-shim"), *MakeShimConfig(inputs), *run_lock, *listener, {});
  ASSERT_TRUE(pid.ok());
  pid_ = *pid;
  const auto ranks = Attach().UntilAllExited();
  EXPECT_EQ(ranks.at(0).exit_code(), 127);
  EXPECT_NE(ranks.at(0).message().find(none), std::string::npos);
}

TEST_F(ShimProcess, DeadShimsFolderIsMadeToSayHowItEnded) {
  Start({"steps 3 0; sleep 60000", "exit 0"});
  Client client = Attach();
  pid_t rank_pid = 0;
  const auto state = client.Next();
  ASSERT_TRUE(state.has_value() && state->has_state());
  rank_pid = state->state().ranks(0).pid();
  bool exited = false, stepped = false;
  client.Until([&](const v1::ShimEvent& e) {
    exited |= e.has_exited();
    stepped |= e.rank_event().step().step() == 3;
    return exited && stepped;
  });
  EXPECT_FALSE(LockFile(JoinPath(Directory(), kShimLockFile)).ok());
  kill(pid_, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return Reaped(); }));
  // Its rank may live on (it is not waited for by anyone); the recovery ends it.
  const auto lock = LockFile(JoinPath(Directory(), kShimLockFile));
  ASSERT_TRUE(lock.ok()) << lock.status();
  ASSERT_TRUE(RecoverRun(Directory(), start_, "here").ok());
  EXPECT_TRUE(Eventually([&] { return !Alive(rank_pid); }));
  const auto disk = StateFromDisk(Directory(), start_, "here");
  ASSERT_TRUE(disk.ok());
  EXPECT_TRUE(disk->all_exited());
  EXPECT_EQ(disk->ranks(0).state(), v1::RANK_STATE_LOST);
  EXPECT_EQ(disk->ranks(0).signal() != 0, disk->ranks(0).exit_code() == 0);  // a cause, whichever came first
  EXPECT_EQ(disk->ranks(1).state(), v1::RANK_STATE_EXITED);
  const size_t events = EventsOnDisk().size();
  ASSERT_TRUE(RecoverRun(Directory(), start_, "here").ok());
  EXPECT_EQ(EventsOnDisk().size(), events);
  EXPECT_TRUE(Eventually([&] { return SlotIsFree("cpu0"); }));
}

}  // namespace
}  // namespace tutti::worker
