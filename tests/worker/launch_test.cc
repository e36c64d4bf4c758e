// Launching, inventory, addresses and locks: no process is started.
#include "worker/launch/launch.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "gmock/gmock.h"
#include "tests/worker/support.h"
#include "worker/launch/layout.h"
#include "worker/launch/local_socket.h"
#include "worker/probe/network.h"
#include "worker/probe/probe.h"
#include "worker/probe/slot_lock.h"
#include "worker/rpc/log_reader.h"

namespace tutti::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

HostInventory Host(int cores) {
  HostInventory host;
  for (int i = 0; i < cores; ++i) host.cores.push_back(2 * i);  // not every number: hyper-threads, say
  host.memory_bytes = 1 << 20;
  return host;
}

LaunchInputs Inputs(const v1::StartJob& start, int cores, const SlotOptions& slots) {
  LaunchInputs inputs;
  inputs.start = start;
  inputs.node = "here";
  inputs.run_directory = "/run";
  inputs.slots = *CpuSlots(Host(cores), slots);
  inputs.rank_program = "/bin/rank";
  return inputs;
}

TEST(MakeShimConfig, RanksOfOneNodeGetCoresSharedMemoryAndNumbers) {
  auto start = MakeStart("A", 3, {"", ""});
  start.mutable_assignment()->set_base_step(40);
  const auto config = MakeShimConfig(Inputs(start, 4, {.cores_per_slot = 2}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->ranks(1).cores(), ElementsAre(4, 6));
  EXPECT_EQ(config->comm(), v1::COMM_BACKEND_SHM);
  EXPECT_GT(config->shared_memory_bytes(), 2 * config->shared_window_bytes());
  const v1::RankConfig rank = MakeRankConfig(*config, 1);
  EXPECT_EQ(rank.rank(), 1);
  EXPECT_EQ(rank.world_size(), 2);
  EXPECT_EQ(rank.local_world_size(), 2);
  EXPECT_EQ(rank.generation(), 3);
  EXPECT_EQ(rank.base_step(), 40);
  EXPECT_EQ(rank.shared_window_bytes(), config->shared_window_bytes());
  // ENV-05: threads follow the cores that the rank has.
  EXPECT_EQ(config->ranks(1).environment().at("OMP_NUM_THREADS"), "2");
  EXPECT_FALSE(config->ranks(1).environment().contains("OMP_WAIT_POLICY"));
}

TEST(MakeShimConfig, SeveralNodesMeetOverTheNetwork) {
  auto start = MakeStart("A", 1, {"", ""}, "there");
  v1::NodeShare* share = start.mutable_assignment()->add_nodes();
  share->set_node("here");
  share->set_first_rank(2);
  share->add_slots("cpu1");
  const auto config = MakeShimConfig(Inputs(start, 2, {}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->comm(), v1::COMM_BACKEND_GLOO);
  EXPECT_EQ(config->shared_memory_bytes(), 0);
  const v1::RankConfig rank = MakeRankConfig(*config, 0);
  EXPECT_EQ(rank.rank(), 2);
  EXPECT_EQ(rank.local_rank(), 0);
  EXPECT_EQ(rank.world_size(), 3);
}

TEST(MakeShimConfig, SharedCoresSleepAtBarriersUnlessTheUserSaysOtherwise) {
  auto inputs = Inputs(MakeStart("A", 1, {"", "", "", ""}), 2, {.slots = 4});
  EXPECT_EQ(MakeShimConfig(inputs)->ranks(3).environment().at("OMP_WAIT_POLICY"), "PASSIVE");
  inputs.environment["OMP_WAIT_POLICY"] = "ACTIVE";
  EXPECT_EQ(MakeShimConfig(inputs)->ranks(3).environment().at("OMP_WAIT_POLICY"), "ACTIVE");
}

TEST(MakeShimConfig, WhatCannotStartIsRefusedWithTheReason) {
  const auto refused = [](const v1::StartJob& start) { return Message(MakeShimConfig(Inputs(start, 2, {})).status()); };
  EXPECT_THAT(refused(MakeStart("A", 1, {"", "", ""})), HasSubstr("no slot 'cpu2' for rank 2"));
  EXPECT_THAT(refused(MakeStart("A", 1, {""}, "there")), HasSubstr("no rank for node here"));
  EXPECT_THAT(refused(MakeStart("A/..", 1, {""})), HasSubstr("job id"));
  EXPECT_THAT(refused(MakeStart("A", 0, {""})), HasSubstr("generation 0"));
  auto twice = MakeStart("A", 1, {"", ""});
  twice.mutable_assignment()->mutable_nodes(0)->set_slots(1, "cpu0");
  EXPECT_THAT(refused(twice), HasSubstr("two ranks"));
  auto greedy = MakeStart("A", 1, {""});
  greedy.mutable_spec()->mutable_resources()->set_cores_per_rank(2);
  EXPECT_THAT(refused(greedy), HasSubstr("--cores-per-slot 2"));
}

TEST(Layout, RunsOnDiskAreFoundUnlessForgottenOrDamaged) {
  const auto temp = *TempDirectory::Create("tutti-layout");
  const auto put = [&](const std::string& job, int64_t generation) {
    const std::string directory = RunDirectory(temp.path(), {job, generation});
    EXPECT_TRUE(WriteRecord(directory, MakeStart(job, generation, {""})).ok());
    return directory;
  };
  put("B", 10);
  put("B", 9);
  put("A", 1);
  EXPECT_TRUE(MarkForgotten(put("C", 1)).ok());
  std::ofstream(JoinPath(put("D", 1), kRecordFile)) << "\xFF";
  ASSERT_TRUE(
      MakeDirectories(RunDirectory(temp.path(), {"E", 1})).ok());  // its agent ended before the record was there
  std::vector<std::string> problems;
  const auto runs = ListRuns(temp.path(), &problems);
  ASSERT_TRUE(runs.ok());
  std::vector<std::string> found;
  for (const auto& run : *runs) found.push_back(ToString(KeyOf(run.assignment())));
  EXPECT_THAT(found, ElementsAre("A generation 1", "B generation 9", "B generation 10"));
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_THAT(problems[0], HasSubstr("/D/1/"));
  ASSERT_TRUE(SweepForgotten(temp.path(), 0).ok());
  EXPECT_FALSE(FileExists(RunDirectory(temp.path(), {"C", 1})));
  EXPECT_TRUE(FileExists(RunDirectory(temp.path(), {"A", 1})));
}

// The path of a socket may be longer than sun_path.
TEST(LocalSocket, PathMayBeLong) {
  const auto temp = *TempDirectory::Create("tutti-socket");
  const std::string directory = JoinPath(temp.path(), std::string(200, 'd'));
  ASSERT_TRUE(MakeDirectories(directory).ok());
  EXPECT_EQ(ConnectLocal(directory, "s").status().code(), absl::StatusCode::kNotFound);
  auto listener = ListenLocal(directory, "s");
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(ConnectLocal(directory, "s").ok());
  struct stat info {};
  ASSERT_EQ(stat(JoinPath(directory, "s").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  listener->Reset();
  EXPECT_EQ(ConnectLocal(directory, "s").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(ListenLocal(directory, "s").ok());
}

TEST(CpuSlots, CoresAreDividedAndMayBeShared) {
  const auto shape = [](const StatusOr<std::vector<v1::Slot>>& slots) {
    std::string text;
    for (const auto& slot : *slots) {
      text += slot.id() + ":";
      for (const int core : slot.cores()) text += std::to_string(core) + ",";
    }
    return text;
  };
  EXPECT_EQ(shape(CpuSlots(Host(3), {})), "cpu0:0,cpu1:2,cpu2:4,");
  EXPECT_EQ(shape(CpuSlots(Host(5), {.cores_per_slot = 2})), "cpu0:0,2,cpu1:4,6,");
  EXPECT_EQ(shape(CpuSlots(Host(4), {.slots = 1})), "cpu0:0,2,4,6,");
  EXPECT_EQ(shape(CpuSlots(Host(2), {.slots = 3})), "cpu0:0,cpu1:2,cpu2:0,");
  EXPECT_EQ(CpuSlots(Host(2), {.cores_per_slot = 3}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CpuSlots(Host(2), {.slots = -1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CpuSlots(Host(0), {}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Probe, ReadsProcessorAndQuota) {
  const std::string info =
      "processor\t: 0\nmodel name\t: Some CPU 9000\nflags\t\t: fpu avx avx2 fma avx512f avx512bw avx512vl\n";
  EXPECT_EQ(ProcessorName(info), "Some CPU 9000");
  EXPECT_EQ(InstructionSet(info), "avx512");
  EXPECT_EQ(InstructionSet("flags : avx2 fma avx512f\n"), "avx2");
  EXPECT_EQ(InstructionSet("flags : avx2 fma avx512f avx512bw avx512vl amx_tile amx_bf16\n"), "amx");
  EXPECT_EQ(InstructionSet("Features : neon\n"), "baseline");
  EXPECT_EQ(CoresOfQuota("250000 100000"), 2);
  EXPECT_EQ(CoresOfQuota("50000 100000"), 1);
  EXPECT_EQ(CoresOfQuota("max 100000"), -1);
  EXPECT_EQ(CoresOfQuota(""), -1);
  const HostInventory host = ProbeHost();
  EXPECT_FALSE(host.cores.empty());
  EXPECT_GT(host.memory_bytes, 0);
  EXPECT_EQ(host.boot_id.size(), 36u);
}

TEST(SlotLocks, SlotIsFreeAgainWhenTheLastHolderIsGone) {
  const auto temp = *TempDirectory::Create("tutti-locks");
  const auto pairs = SlotLocks::Create(temp.path(), *CpuSlots(Host(2), {.cores_per_slot = 2}));
  const auto singles = SlotLocks::Create(temp.path(), *CpuSlots(Host(2), {.slots = 3}));
  auto held = pairs->Lock("cpu0");
  ASSERT_TRUE(held.ok()) << held.status();
  // An agent that cuts its slots differently sees the same cores; its third slot is a second user of core 0.
  EXPECT_TRUE(singles->IsLocked("cpu0"));
  EXPECT_TRUE(singles->IsLocked("cpu1"));
  EXPECT_FALSE(singles->IsLocked("cpu2"));
  const auto refused = singles->Lock("cpu1", Nanos(0));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(refused.status()), HasSubstr("slot cpu1 is in use on this host"));
  held = Unavailable("dropped");
  EXPECT_FALSE(singles->IsLocked("cpu1"));
  EXPECT_TRUE(singles->Lock("cpu1", Nanos(0)).ok());
}

AdvertiseInputs Address() {
  AdvertiseInputs inputs;
  inputs.coordinator = "10.0.0.1:7070";
  inputs.routed = "10.0.0.5";
  inputs.interfaces = {{"lo", "127.0.0.1", true},
                       {"eth0", "192.168.1.5", false},
                       {"ib0", "10.0.0.5", false},
                       {"docker0", "172.17.0.1", false}};
  return inputs;
}

// RDZ-01
TEST(AdvertiseAddress, IsTheOneThatRoutesToTheCoordinator) {
  EXPECT_EQ(*ChooseAdvertiseAddress(Address()), "10.0.0.5");
  auto local = Address();
  local.coordinator = "127.0.0.1:7070";
  local.routed = "127.0.0.1";
  EXPECT_EQ(*ChooseAdvertiseAddress(local), "127.0.0.1");
  local.coordinator = "unix:/run/x";
  local.routed = "";
  EXPECT_EQ(*ChooseAdvertiseAddress(local), "127.0.0.1");
}

// RDZ-01: the host's name maps to 127.0.1.1, and nothing else is known.
TEST(AdvertiseAddress, LoopbackForARemoteCoordinatorIsRefusedWithTheRemedy) {
  auto inputs = Address();
  inputs.routed = "127.0.1.1";
  const Status refused = ChooseAdvertiseAddress(inputs).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(refused), HasSubstr("127.0.1.1"));
  EXPECT_THAT(Message(refused), HasSubstr("--advertise ADDRESS or --net-interface NAME"));
  inputs.routed = "";
  EXPECT_THAT(Message(ChooseAdvertiseAddress(inputs).status()), HasSubstr("no address of this host routes to it"));
  inputs.pattern = "lo";
  EXPECT_EQ(ChooseAdvertiseAddress(inputs).status().code(), absl::StatusCode::kFailedPrecondition);
  inputs.advertise = "10.9.9.9";
  EXPECT_EQ(*ChooseAdvertiseAddress(inputs), "10.9.9.9");
}

// RDZ-02
TEST(AdvertiseAddress, PatternChoosesAndUnknownNamesListWhatThereIs) {
  auto inputs = Address();
  inputs.pattern = "eth0";
  EXPECT_EQ(*ChooseAdvertiseAddress(inputs), "192.168.1.5");
  inputs.pattern = "^lo,docker";
  EXPECT_EQ(*ChooseAdvertiseAddress(inputs), "10.0.0.5");
  inputs.pattern = "^lo,docker,ib";
  EXPECT_EQ(*ChooseAdvertiseAddress(inputs), "192.168.1.5");
  inputs.pattern = "eth9";
  const Status refused = ChooseAdvertiseAddress(inputs).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(refused), HasSubstr("lo (127.0.0.1), eth0 (192.168.1.5), ib0 (10.0.0.5), docker0 (172.17.0.1)"));
  inputs.pattern = "eth";  // stands for eth0
  EXPECT_EQ(*ChooseAdvertiseAddress(inputs), "192.168.1.5");
  inputs.pattern = "doc";
  EXPECT_FALSE(ChooseAdvertiseAddress(inputs).ok());
}

TEST(AdvertiseAddress, EndpointsOfThisHostAreKnown) {
  for (const char* local : {"unix:/a/b", "localhost:1", "127.3.2.1:5", "[::1]:7"})
    EXPECT_TRUE(IsLocalEndpoint(local)) << local;
  for (const char* remote : {"10.0.0.1:1", "example.org:2", "[fe80::1]:7"})
    EXPECT_FALSE(IsLocalEndpoint(remote)) << remote;
  EXPECT_EQ(RoutedAddress("127.0.0.1:9"), "127.0.0.1");
}

class LogReader : public ::testing::Test {
 protected:
  LogReader() : temp_(*TempDirectory::Create("tutti-logs")), directory_(RunDirectory(temp_.path(), {"A", 1})) {
    EXPECT_TRUE(WriteRecord(directory_, MakeStart("A", 1, {""})).ok());
  }
  v1::LogChunk Read(const std::string& job, int64_t generation, int32_t rank, int64_t offset, int64_t max_bytes) {
    v1::ReadLog request;
    request.set_request_id("r");
    request.set_job_id(job);
    request.set_generation(generation);
    request.set_rank(rank);
    request.set_offset(offset);
    request.set_max_bytes(max_bytes);
    return ReadRankLogChunk(temp_.path(), request);
  }
  TempDirectory temp_;
  std::string directory_;
};

TEST_F(LogReader, ReadsByOffsetFromBothEnds) {
  EXPECT_EQ(Read("A", 1, 0, 0, 10).size(), 0);
  EXPECT_EQ(Read("A", 1, 0, 0, 10).error(), "");
  std::ofstream(JoinPath(directory_, RankLogFile(0))) << "0123456789";
  const auto middle = Read("A", 1, 0, 3, 4);
  EXPECT_EQ(middle.data(), "3456");
  EXPECT_EQ(middle.size(), 10);
  EXPECT_FALSE(middle.ended());
  EXPECT_EQ(middle.request_id(), "r");
  const auto tail = Read("A", 1, 0, -4, 100);
  EXPECT_EQ(tail.data(), "6789");
  EXPECT_EQ(tail.offset(), 6);
  EXPECT_EQ(Read("A", 1, 0, -400, 2).data(), "01");
  EXPECT_EQ(Read("A", 1, 0, 400, 2).data(), "");
  EXPECT_EQ(Read("A", 1, 0, 400, 2).offset(), 10);
  std::ofstream(JoinPath(directory_, RankExitFile(0))) << "";
  EXPECT_TRUE(Read("A", 1, 0, 0, 1).ended());
}

TEST_F(LogReader, NamesThatLeaveTheFolderAreRefused) {
  EXPECT_THAT(Read("../jobs/A", 1, 0, 0, 1).error(), HasSubstr("job id"));
  EXPECT_THAT(Read("A", -1, 0, 0, 1).error(), HasSubstr("generation -1"));
  EXPECT_THAT(Read("A", 1, -1, 0, 1).error(), HasSubstr("rank -1"));
  EXPECT_THAT(Read("B", 1, 0, 0, 1).error(), HasSubstr("never ran on this node"));
  ASSERT_EQ(symlink("/etc/passwd", JoinPath(directory_, RankLogFile(0)).c_str()), 0);
  const auto link = Read("A", 1, 0, 0, 100);
  EXPECT_NE(link.error(), "");
  EXPECT_EQ(link.data(), "");
}

}  // namespace
}  // namespace tutti::worker
