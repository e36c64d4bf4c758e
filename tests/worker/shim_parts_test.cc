// The parts of the shim, without a process.
#include "base/files.h"
#include "tests/worker/support.h"
#include "worker/shim/cgroup.h"
#include "worker/shim/event_log.h"
#include "worker/shim/rank_log.h"

namespace tutti::worker {
namespace {

using std::chrono::milliseconds;

// FLT-07 (a): a stand-in for the kernel's files.
TEST(MemoryEvidence, CountsKillsAndNamesTheSmallestLimitAbove) {
  const auto temp = *TempDirectory::Create("tutti-cgroup");
  const std::string group = JoinPath(temp.path(), "job/rank");
  ASSERT_TRUE(MakeDirectories(group).ok());
  const auto put = [&](const std::string& file, const std::string& text) {
    std::ofstream(JoinPath(temp.path(), file)) << text;
  };
  put("job/rank/memory.events", "low 0\nhigh 0\nmax 12\noom 1\noom_kill 0\n");
  put("job/rank/memory.max", "max\n");
  put("job/memory.max", "67108864\n");
  put("job/rank/memory.peak", "66584576\n");
  const MemoryEvidence before = ReadMemoryEvidence(group, temp.path());
  EXPECT_EQ(DescribeOutOfMemory(before, before), "");
  put("job/rank/memory.events", "low 0\nhigh 0\nmax 99\noom 2\noom_kill 1\n");
  EXPECT_EQ(DescribeOutOfMemory(before, ReadMemoryEvidence(group, temp.path())),
            "out of memory (cgroup limit 64.0 MiB, peak 63.5 MiB)");
}
TEST(MemoryEvidence, ReadsVersionOne) {
  const auto temp = *TempDirectory::Create("tutti-cgroup");
  std::ofstream(JoinPath(temp.path(), "memory.oom_control")) << "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
  std::ofstream(JoinPath(temp.path(), "memory.limit_in_bytes")) << "9223372036854771712\n";
  std::ofstream(JoinPath(temp.path(), "memory.max_usage_in_bytes")) << "1048576\n";
  const MemoryEvidence evidence = ReadMemoryEvidence(temp.path(), temp.path());
  EXPECT_EQ(evidence.oom_kills, 3);
  EXPECT_EQ(evidence.limit_bytes, -1);
  EXPECT_EQ(DescribeOutOfMemory({}, evidence), "out of memory (no cgroup limit: the host's memory, peak 1.0 MiB)");
}

TEST(EventLog, TornTailIsCutAndCountingGoesOn) {
  const auto temp = *TempDirectory::Create("tutti-events");
  const std::string path = JoinPath(temp.path(), "events.bin");
  const auto append = [&] {
    auto log = EventLog::Open(path);
    ASSERT_TRUE(log.ok());
    v1::ShimEvent event;
    event.mutable_rank_event()->mutable_step()->set_step(7);
    log->Append(event);
  };
  append();
  append();
  const std::string whole = Content(path);
  for (size_t cut = 1; cut < whole.size() / 2; ++cut) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, whole.size() - cut);
    append();
    EXPECT_EQ(Content(path), whole) << "cut by " << cut;
  }
}

TEST(EventLog, DamagedByteCutsThereAndKeepsWhatIsBefore) {
  const auto temp = *TempDirectory::Create("tutti-events");
  const std::string path = JoinPath(temp.path(), "events.bin");
  {
    auto log = EventLog::Open(path);
    for (int i = 0; i < 3; ++i) log->Append({});
  }
  std::string bytes = Content(path);
  bytes[bytes.size() - 1] ^= 1;
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(EventLog::Open(path)->last_sequence(), 2);
}

// LOG-03: what a terminal would show at each half second.
TEST(RankLog, CarriageReturnsOverwriteAndCrLfIsOneEndOfLine) {
  const auto temp = *TempDirectory::Create("tutti-log");
  const std::string path = JoinPath(temp.path(), "log");
  auto log = RankLog::Open(path);
  const auto at = [](int ms) { return Nanos(milliseconds(ms)); };
  log->Feed("10%\r20%\r", at(0));
  EXPECT_EQ(Content(path), "");
  log->FlushDue(at(499));
  EXPECT_EQ(Content(path), "");
  log->FlushDue(at(500));
  EXPECT_EQ(Content(path), "20%\n");
  log->Feed("windows\r\n\r30%", at(501));  // progress bars that begin with the carriage return
  log->Feed("\r40%", at(600));
  log->FlushDue(at(1100));
  EXPECT_EQ(Content(path), "20%\nwindows\n40%");
  log->Feed("\r50%\nplain", at(1200));
  log->Close();
  EXPECT_EQ(Content(path), "20%\nwindows\n40%\n50%\nplain\n");
  EXPECT_EQ(log->LastLines(2), (std::vector<std::string>{"50%", "plain"}));
}

TEST(RankLog, BytesThatAreNoUtf8DoNotReachMessages) {
  EXPECT_EQ(ValidUtf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"), "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(ValidUtf8("\xFFx\xC3"), "?x?");
  EXPECT_EQ(ValidUtf8("\xC0\xAF\xED\xA0\x80"), "?????");  // overlong, surrogate
}

}  // namespace
}  // namespace tutti::worker
