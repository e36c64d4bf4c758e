#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "base/digest.h"
#include "base/files.h"
#include "base/framing.h"
#include "base/process.h"
#include "coordinator/store/journal.h"
#include "coordinator/store/series.h"

namespace tutti::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

v1::JobRow JobRowOf(const std::string& id, int64_t step, size_t padding = 0) {
  v1::JobRow row;
  row.mutable_job()->set_id(id);
  row.mutable_job()->mutable_status()->set_completed_step(step);
  row.mutable_job()->mutable_status()->set_message(std::string(padding, 'x'));
  return row;
}
v1::NodeRow NodeRowOf(const std::string& name) {
  v1::NodeRow row;
  row.mutable_node()->set_name(name);
  return row;
}
v1::MetaRow MetaRowOf(int64_t term) {
  v1::MetaRow row;
  row.set_term(term);
  return row;
}

// ---- One suite for every Journal. `Reopen` gives what a restarted coordinator would find.
class Store {
 public:
  virtual ~Store() = default;
  virtual Journal& journal() = 0;
  virtual void Reopen() = 0;
};
class MemoryStore : public Store {
 public:
  Journal& journal() override { return *journal_; }
  void Reopen() override {}

 private:
  std::unique_ptr<Journal> journal_ = NewMemoryJournal();
};
class SqliteStore : public Store {
 public:
  SqliteStore() { Reopen(); }
  Journal& journal() override { return *journal_; }
  void Reopen() override {
    journal_.reset();
    journal_ = *OpenSqliteJournal(directory_.path());
  }

 private:
  TempDirectory directory_ = *TempDirectory::Create("journal");
  std::unique_ptr<Journal> journal_;
};

template <typename T>
class JournalConformance : public ::testing::Test {
 protected:
  T store_;
};
using Stores = ::testing::Types<MemoryStore, SqliteStore>;
TYPED_TEST_SUITE(JournalConformance, Stores);

TYPED_TEST(JournalConformance, EmptyGivesZeros) {
  const Rows rows = *this->store_.journal().Load();
  EXPECT_EQ(rows.meta.term(), 0);
  EXPECT_TRUE(rows.jobs.empty() && rows.nodes.empty());
}

TYPED_TEST(JournalConformance, RowsSurviveAndReplaceByKeyInOrder) {
  ASSERT_TRUE(
      this->store_.journal().Commit({MetaRowOf(1), {JobRowOf("B", 1), JobRowOf("A", 1)}, {NodeRowOf("n2")}}).ok());
  ASSERT_TRUE(
      this->store_.journal().Commit({MetaRowOf(2), {JobRowOf("A", 7)}, {NodeRowOf("n1"), NodeRowOf("n2")}}).ok());
  this->store_.Reopen();
  const Rows rows = *this->store_.journal().Load();
  EXPECT_EQ(rows.meta.term(), 2);
  ASSERT_THAT(rows.jobs, SizeIs(2));
  EXPECT_EQ(rows.jobs[0].job().id(), "A");
  EXPECT_EQ(rows.jobs[0].job().status().completed_step(), 7);
  EXPECT_EQ(rows.jobs[1].job().id(), "B");
  ASSERT_THAT(rows.nodes, SizeIs(2));
  EXPECT_EQ(rows.nodes[0].node().name(), "n1");
}

TYPED_TEST(JournalConformance, KeysAreBytesAndRowsMayBeLarge) {
  const std::string odd = "'); DROP TABLE job; --";
  ASSERT_TRUE(this->store_.journal().Commit({MetaRowOf(1), {JobRowOf(odd, 3, 3 << 20)}, {}}).ok());
  this->store_.Reopen();
  const Rows rows = *this->store_.journal().Load();
  ASSERT_THAT(rows.jobs, SizeIs(1));
  EXPECT_EQ(rows.jobs[0].job().id(), odd);
  EXPECT_EQ(rows.jobs[0].job().status().message().size(), size_t{3} << 20);
}

// ---- SQLite alone

TEST(SqliteJournal, IsInWalModeAndFullySynchronous) {
  const TempDirectory directory = *TempDirectory::Create("journal");
  const auto journal = *OpenSqliteJournal(directory.path());
  ASSERT_TRUE(journal->Commit({MetaRowOf(1), {}, {}}).ok());
  EXPECT_TRUE(FileExists(JoinPath(directory.path(), "journal.db-wal")));
  EXPECT_FALSE(FileExists(JoinPath(directory.path(), "journal.db-shm")))
      << "exclusive locking keeps the index in memory";
}

TEST(SqliteJournal, FullDiskChangesNothingAndMayBeTriedAgain) {
  const TempDirectory directory = *TempDirectory::Create("journal");
  const auto journal = *OpenSqliteJournal(directory.path(), 64);
  ASSERT_TRUE(journal->Commit({MetaRowOf(1), {JobRowOf("A", 1)}, {}}).ok());
  const Status full = journal->Commit({MetaRowOf(2), {JobRowOf("A", 2), JobRowOf("B", 1, 1 << 20)}, {}});
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  Rows rows = *journal->Load();
  EXPECT_EQ(rows.meta.term(), 1) << "rows of one commit appear together or not at all";
  ASSERT_THAT(rows.jobs, SizeIs(1));
  EXPECT_EQ(rows.jobs[0].job().status().completed_step(), 1);
  EXPECT_TRUE(journal->Commit({MetaRowOf(2), {JobRowOf("A", 2)}, {}}).ok());
}

TEST(SqliteJournal, DamageAndOtherVersionsAreRefused) {
  const TempDirectory directory = *TempDirectory::Create("journal");
  const std::string path = JoinPath(directory.path(), "journal.db");
  ASSERT_TRUE(WriteFileAtomic(path, std::string(8192, 'z')).ok());
  EXPECT_EQ(OpenSqliteJournal(directory.path()).status().code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(RemoveTree(path).ok());
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "CREATE TABLE t(x); PRAGMA user_version=99", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  const Status other = OpenSqliteJournal(directory.path()).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(other), HasSubstr("schema version 99"));
}

// DEP-03: a writer is killed in the middle of its work; what it had acknowledged is there each time.
TEST(SqliteJournal, EveryAcknowledgedRowSurvivesSigkill) {
  const TempDirectory directory = *TempDirectory::Create("journal");
  int64_t acknowledged = 0;
  for (int round = 0; round < 8; ++round) {
    int pipe_fds[2];
    ASSERT_EQ(::pipe2(pipe_fds, O_CLOEXEC), 0);
    SpawnOptions options;
    options.argv = {"/proc/self/exe", "--gtest_also_run_disabled_tests", "--gtest_filter=Writer.DISABLED_Loop"};
    options.environment = CurrentEnvironment();
    options.environment["TUTTI_TEST_JOURNAL"] = directory.path();
    options.descriptors = {{1, 2}, {2, 2}, {3, pipe_fds[1]}};
    const auto pid = Spawn(options);
    ASSERT_TRUE(pid.ok()) << pid.status();
    ::close(pipe_fds[1]);
    int64_t number = 0;
    const int64_t enough = acknowledged + 5 + 7 * round;
    while (::read(pipe_fds[0], &number, sizeof number) == sizeof number) {
      acknowledged = number;
      if (acknowledged >= enough) ::kill(*pid, SIGKILL);
    }
    ::close(pipe_fds[0]);
    int wait_status = 0;
    ASSERT_EQ(::waitpid(*pid, &wait_status, 0), *pid);
    ASSERT_TRUE(WIFSIGNALED(wait_status));
    const auto journal = OpenSqliteJournal(directory.path());  // checks integrity too
    ASSERT_TRUE(journal.ok()) << journal.status();
    const Rows rows = *(*journal)->Load();
    EXPECT_GE(rows.meta.term(), acknowledged);
    EXPECT_THAT(rows.jobs, SizeIs(static_cast<size_t>(rows.meta.term()))) << "each commit has its job";
  }
}

TEST(Writer, DISABLED_Loop) {
  const auto directory = GetEnv("TUTTI_TEST_JOURNAL");
  ASSERT_TRUE(directory.has_value()) << "started by EveryAcknowledgedRowSurvivesSigkill";
  const auto journal = *OpenSqliteJournal(*directory);
  for (int64_t number = journal->Load()->meta.term() + 1; number < 100000; ++number) {
    ASSERT_TRUE(
        journal->Commit({MetaRowOf(number), {JobRowOf("job" + std::to_string(number), number, 3000)}, {}}).ok());
    ASSERT_EQ(::write(3, &number, sizeof number), static_cast<ssize_t>(sizeof number));
  }
}

TEST(StateDirectory, SecondCoordinatorIsRefusedWithTheHoldersPid) {
  const TempDirectory parent = *TempDirectory::Create("state");
  const std::string directory = JoinPath(parent.path(), "new/state");
  auto lock = LockStateDirectory(directory);
  ASSERT_TRUE(lock.ok()) << lock.status();
  const Status second = LockStateDirectory(directory).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(second), HasSubstr("process " + std::to_string(::getpid())));
  lock->reset();
  EXPECT_TRUE(LockStateDirectory(directory).ok());
}

TEST(StateDirectory, NetworkFileSystemsAreKnown) {
  EXPECT_STREQ(NetworkFileSystemName(0x6969), "NFS");
  EXPECT_STREQ(NetworkFileSystemName(0xFF534D42), "CIFS");
  EXPECT_EQ(NetworkFileSystemName(0xEF53), nullptr) << "ext4";
}

// ---- Step series

v1::SeriesRecord StepOf(int64_t generation, int64_t step, double loss) {
  v1::SeriesRecord record;
  record.set_generation(generation);
  record.mutable_step()->set_step(step);
  record.mutable_step()->set_loss(loss);
  return record;
}

// LOG-02
TEST(SeriesStore, StepsRiseEachOnceAndTheNewestGenerationWins) {
  const TempDirectory directory = *TempDirectory::Create("series");
  const auto series = *SeriesStore::Open(directory.path());
  const std::string id = NewUlid();
  for (int step = 1; step <= 15; ++step) ASSERT_TRUE(series->Append(id, StepOf(1, step, 1.0)).ok());
  for (int step = 11; step <= 20; ++step) ASSERT_TRUE(series->Append(id, StepOf(2, step, 2.0)).ok());
  ASSERT_TRUE(series->Append(id, StepOf(1, 12, 1.0)).ok());  // a late zombie's report
  const Series read = *series->Read(id, 0);
  ASSERT_THAT(read.steps, SizeIs(20));
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(read.steps[i].step(), i + 1);
    EXPECT_EQ(read.steps[i].loss(), i < 10 ? 1.0 : 2.0);
  }
  EXPECT_THAT(series->Read(id, 18)->steps, SizeIs(2));
  EXPECT_THAT(series->Read(NewUlid(), 0)->steps, SizeIs(0));
}

TEST(SeriesStore, ATornTailIsCutAndWritingGoesOn) {
  const TempDirectory directory = *TempDirectory::Create("series");
  const std::string id = NewUlid();
  ASSERT_TRUE((*SeriesStore::Open(directory.path()))->Append(id, StepOf(1, 1, 0.5)).ok());
  std::string torn;
  AppendFrame(StepOf(1, 2, 0.5).SerializeAsString(), &torn);
  std::ofstream(JoinPath(directory.path(), id + ".series"), std::ios::app) << torn.substr(0, torn.size() - 3);
  const auto series = *SeriesStore::Open(directory.path());
  EXPECT_THAT(series->Read(id, 0)->steps, SizeIs(1));
  ASSERT_TRUE(series->Append(id, StepOf(1, 2, 0.25)).ok());
  const Series read = *series->Read(id, 0);
  ASSERT_THAT(read.steps, SizeIs(2));
  EXPECT_EQ(read.steps[1].loss(), 0.25);
}

// SEC-02
TEST(SeriesStore, OnlyUlidsBecomeFileNames) {
  const TempDirectory directory = *TempDirectory::Create("series");
  const auto series = *SeriesStore::Open(directory.path());
  for (const std::string& id :
       {std::string("../../etc/passwd"), std::string("%2e%2e%2f"), std::string("/etc/passwd"), std::string(""),
        std::string("01JD3\0AAAAAAAAAAAAAAAAAAAA", 26), std::string("01jd3aaaaaaaaaaaaaaaaaaaaa")}) {
    EXPECT_EQ(series->Append(id, StepOf(1, 1, 0)).code(), absl::StatusCode::kInvalidArgument) << id;
    EXPECT_EQ(series->Read(id, 0).status().code(), absl::StatusCode::kInvalidArgument) << id;
  }
  EXPECT_THAT(*ListDirectory(directory.path()), SizeIs(0));
  EXPECT_TRUE(IsUlid(NewUlid()));
}

TEST(SeriesStore, ManyJobsDoNotExhaustDescriptors) {
  const TempDirectory directory = *TempDirectory::Create("series");
  const auto series = *SeriesStore::Open(directory.path());
  std::vector<std::string> ids;
  for (int i = 0; i < 200; ++i) ids.push_back(NewUlid());
  for (int step = 1; step <= 2; ++step) {
    for (const std::string& id : ids) ASSERT_TRUE(series->Append(id, StepOf(1, step, 0)).ok());
  }
  EXPECT_LT(ListDirectory("/proc/self/fd")->size(), 150u);
  for (const std::string& id : ids) ASSERT_THAT(series->Read(id, 0)->steps, SizeIs(2));
}

}  // namespace
}  // namespace tutti::coordinator
