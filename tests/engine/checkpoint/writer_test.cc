#include "engine/checkpoint/writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <set>

#include "base/digest.h"
#include "engine/checkpoint/layout.h"
#include "tests/engine/checkpoint/checkpoint_testing.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::ExpectStateOf;
using ::testing::HasSubstr;
using testing::NewDirectory;
using testing::ToyGeneration;
using testing::ToyRank;
using testing::ToyTensors;
using testing::WaitFor;

TEST(PartitionTensors, NeighboursNearEqualBytesEveryTensorOnce) {
  EXPECT_THAT(PartitionTensors(std::vector<int64_t>{4, 4, 4, 4}, 2), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(PartitionTensors(std::vector<int64_t>{100, 1, 1}, 2), ElementsAre(0, 1, 1));
  EXPECT_THAT(PartitionTensors(std::vector<int64_t>{}, 3), ElementsAre());
  EXPECT_THAT(PartitionTensors(std::vector<int64_t>{0, 0}, 3), ElementsAre(0, 0));
  std::vector<int64_t> bytes;
  for (int64_t i = 0; i < 100; ++i) bytes.push_back(1000 + i % 17);
  const std::vector<int32_t> owners = PartitionTensors(bytes, 7);
  std::vector<int64_t> load(7);
  for (size_t i = 0; i < bytes.size(); ++i) {
    load[static_cast<size_t>(owners[i])] += bytes[i];
    if (i > 0) {
      EXPECT_GE(owners[i], owners[i - 1]);
    }
  }
  const auto [least, most] = std::minmax_element(load.begin(), load.end());
  EXPECT_LE(*most - *least, 2 * 1017);  // one tensor at either end
}

// The definition of writer.h, spelt out.
TEST(WeightsSha256, IsTheDocumentedDigest) {
  const auto hex_of = [](std::vector<float> v) {
    return Sha256Hex({reinterpret_cast<const char*>(v.data()), v.size() * sizeof(float)});
  };
  const auto bytes_of_hex = [](const std::string& hex) {
    std::string bytes;
    for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return bytes;
  };
  const auto int64_of = [](std::vector<int64_t> v) {
    return std::string(reinterpret_cast<const char*>(v.data()), v.size() * 8);
  };
  const std::string expected = Sha256Hex(std::string("a\0", 2) + int64_of({2, 1, 2}) + bytes_of_hex(hex_of({1, 2})) +
                                         std::string("b\0", 2) + int64_of({0}) + bytes_of_hex(hex_of({3})));
  EXPECT_EQ(WeightsSha256({{"b", v1::TENSOR_ROLE_STATISTIC, {}, hex_of({3})},
                           {"m", v1::TENSOR_ROLE_OPTIMIZER_STATE, {1}, hex_of({9})},
                           {"a", v1::TENSOR_ROLE_PARAMETER, {1, 2}, hex_of({1, 2})}}),
            expected);
  std::map<std::string, LoadedTensor> loaded;
  loaded["a"] = {v1::TENSOR_ROLE_PARAMETER, {1, 2}, {1, 2}};
  loaded["b"] = {v1::TENSOR_ROLE_STATISTIC, {}, {3}};
  loaded["m"] = {v1::TENSOR_ROLE_OPTIMIZER_STATE, {1}, {9}};
  EXPECT_EQ(WeightsSha256(loaded), expected);
}

TEST(AsyncCheckpointWriter, AnyWidthWritesTheSameStateOnce) {
  std::set<std::string> digests;
  for (int32_t ranks : {1, 2, 3, 4, 7, 9}) {  // more ranks than tensors too
    const TempDirectory directory = NewDirectory();
    ToyGeneration job(directory.path(), 1, ranks);
    const CheckpointResult result = job.Save(12);
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_TRUE(result.committed);
    EXPECT_THAT(result.notices, ElementsAre());
    EXPECT_EQ(result.path, job.Folder(12));
    const LoadedCheckpoint loaded = LoadCheckpoint(result.path).value();
    ExpectStateOf(12, loaded);
    EXPECT_EQ(loaded.info.manifest->world_size(), ranks);
    EXPECT_EQ(WeightsSha256(loaded.tensors), result.weights_sha256);
    EXPECT_EQ(loaded.info.manifest->weights_sha256(), result.weights_sha256);
    int64_t bytes = 0;
    for (const v1::SliceFile& file : loaded.info.manifest->files()) bytes += file.bytes();
    EXPECT_EQ(bytes, result.bytes);
    for (const auto& [name, tensor] : loaded.tensors) EXPECT_FALSE(name.starts_with("module.")) << name;  // CKP-12
    digests.insert(result.weights_sha256);
  }
  EXPECT_EQ(digests.size(), 1u);
}

TEST(AsyncCheckpointWriter, WhatTrainingDoesAfterBeginIsNotInTheFile) {
  const TempDirectory directory = NewDirectory();
  const CheckpointStore store = CheckpointStore::Open(directory.path()).value();
  std::vector<float> weights(100'000, 1.0f);
  AsyncCheckpointWriter::Options options;
  options.self = {"job-a", Generation(1)};
  const auto writer =
      AsyncCheckpointWriter::Create(store, options,
                                    {{"w",
                                      v1::TENSOR_ROLE_PARAMETER,
                                      {100'000},
                                      [&](float* plain) { std::copy(weights.begin(), weights.end(), plain); }}})
          .value();
  writer->Begin(testing::ToyManifest(1, Generation(1), 0), testing::ToyLedger(1), false);
  std::fill(weights.begin(), weights.end(), 2.0f);
  ASSERT_TRUE(writer->Finish()->status.ok());
  EXPECT_THAT(LoadCheckpoint(store.StepFolder(options.self, Step(1))).value().tensors.at("w").data,
              ::testing::Each(1.0f));
  EXPECT_FALSE(writer->busy());
  EXPECT_FALSE(writer->Poll().has_value());
  EXPECT_FALSE(writer->Finish().has_value());
}

TEST(AsyncCheckpointWriter, LateRankDelaysTheCommitAndNothingElse) {  // CKP-06
  const TempDirectory directory = NewDirectory();
  ToyGeneration job(directory.path(), 1, 3);
  job.rank(1)->Begin(testing::ToyManifest(4, Generation(1), 0), testing::ToyLedger(4), true);
  job.rank(0)->Begin(testing::ToyManifest(4, Generation(1), 0), testing::ToyLedger(4), true);
  ASSERT_TRUE(WaitFor([&] {
    return FileExists(JoinPath(job.Folder(4), "rank-0.done")) && FileExists(JoinPath(job.Folder(4), "rank-1.done"));
  }));
  EXPECT_TRUE(job.rank(0)->busy());
  EXPECT_TRUE(job.rank(1)->busy());  // durable on all ranks, or on none
  EXPECT_FALSE(FileExists(JoinPath(job.Folder(4), kManifestName)));
  job.rank(2)->Begin(testing::ToyManifest(4, Generation(1), 0), testing::ToyLedger(4), true);
  for (size_t r : {0, 1, 2}) {
    const CheckpointResult result = job.rank(r)->Finish().value();
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_TRUE(result.committed);
  }
}

TEST(AsyncCheckpointWriter, RanksRaceToMakeTheFolders) {  // CKP-06
  for (int run = 0; run < 20; ++run) {
    const TempDirectory directory = NewDirectory();
    const std::string path = JoinPath(directory.path(), "a/b/c");
    std::vector<std::future<bool>> opened;
    for (int rank = 0; rank < 4; ++rank) {
      opened.push_back(std::async(std::launch::async, [&] { return CheckpointStore::Open(path).ok(); }));
    }
    for (auto& open : opened) EXPECT_TRUE(open.get());
    ToyGeneration job(path, 1, 4);
    EXPECT_TRUE(job.Save(1).status.ok());
  }
}

// A clock that stands where the test puts it.
class ManualClock final : public Clock {
 public:
  Nanos Monotonic() const override { return Nanos(now_.load()); }
  int64_t UnixMillis() const override { return 0; }
  void Advance(Nanos by) { now_ += by.count(); }

 private:
  std::atomic<int64_t> now_{0};
};

AsyncCheckpointWriter::Options OfTwo(int32_t rank, const Clock* clock = nullptr) {
  AsyncCheckpointWriter::Options options;
  options.self = {"job-a", Generation(1)};
  options.rank = Rank(rank);
  options.world_size = 2;
  options.receipt_timeout_ms = 30'000;
  options.clock = clock;
  return options;
}

TEST(AsyncCheckpointWriter, MissingRankIsNamedAtTheDeadline) {
  const TempDirectory directory = NewDirectory();
  const CheckpointStore store = CheckpointStore::Open(directory.path()).value();
  ManualClock clock;
  const int64_t step = 3;
  ToyRank rank0(store, OfTwo(0, &clock), ToyTensors(), &step);
  rank0->Begin(testing::ToyManifest(3, Generation(1), 0), testing::ToyLedger(3), true);
  const std::string folder = store.StepFolder({"job-a", Generation(1)}, Step(3));
  ASSERT_TRUE(WaitFor([&] { return FileExists(JoinPath(folder, kLedgerName)); }));
  clock.Advance(std::chrono::seconds(29));
  EXPECT_TRUE(rank0->busy());
  ASSERT_TRUE(WaitFor([&] {  // the wait began somewhere before or after the 29 s
    clock.Advance(std::chrono::seconds(1));
    return !rank0->busy();
  }));
  const CheckpointResult result = rank0->Finish().value();
  EXPECT_EQ(result.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(result.status),
              AllOf(HasSubstr("step 3"), HasSubstr("receipt of rank 1"), HasSubstr("30000 ms")));
  EXPECT_THAT(testing::NamesIn(folder), ElementsAre("rank-0.failed"));  // what it took is free again
  // A rank that comes late gives up too, at once.
  ToyRank rank1(store, OfTwo(1, &clock), ToyTensors(), &step);
  rank1->Begin(testing::ToyManifest(3, Generation(1), 0), testing::ToyLedger(3), true);
  EXPECT_THAT(Message(rank1->Finish()->status), HasSubstr("rank 0 gave it up"));
}

TEST(AsyncCheckpointWriter, AFailedRankEndsTheOthersWaitAtOnce) {
  const TempDirectory directory = NewDirectory();
  const CheckpointStore store = CheckpointStore::Open(directory.path()).value();
  const JobIdentity self{"job-a", Generation(1)};
  const int64_t step = 3;
  ToyRank rank0(store, OfTwo(0), ToyTensors(), &step), rank1(store, OfTwo(1), ToyTensors(), &step);
  // Rank 1 finds its file taken: a fault of its own.
  ASSERT_TRUE(MakeDirectories(store.StepFolder(self, Step(3))).ok());
  ASSERT_TRUE(WriteFileAtomic(JoinPath(store.StepFolder(self, Step(3)), "rank-1.safetensors"), "x").ok());
  rank1->Begin(testing::ToyManifest(3, Generation(1), 0), testing::ToyLedger(3), true);
  const CheckpointResult failed = rank1->Finish().value();
  EXPECT_EQ(failed.status.code(), absl::StatusCode::kAlreadyExists);
  rank0->Begin(testing::ToyManifest(3, Generation(1), 0), testing::ToyLedger(3), true);
  const CheckpointResult result = rank0->Finish().value();
  EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(result.status), AllOf(HasSubstr("rank 1 failed"), HasSubstr("rank-1.safetensors")));
}

TEST(AsyncCheckpointWriter, AbortEndsTheWaits) {
  const TempDirectory directory = NewDirectory();
  const CheckpointStore store = CheckpointStore::Open(directory.path()).value();
  const int64_t step = 3;
  ToyRank rank0(store, OfTwo(0), ToyTensors(), &step);
  rank0->Begin(testing::ToyManifest(3, Generation(1), 0), testing::ToyLedger(3), true);
  rank0->Abort();
  EXPECT_EQ(rank0->Finish()->status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(AsyncCheckpointWriter::Create(store, OfTwo(0), {{"a", 1, {}, {}}, {"a", 1, {}, {}}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(AsyncCheckpointWriter, CommittedStepIsNeverOverwritten) {
  const TempDirectory directory = NewDirectory();
  ToyGeneration job(directory.path(), 1, 1);
  ASSERT_TRUE(job.Save(5).status.ok());
  const std::string before = ReadFile(JoinPath(job.Folder(5), kManifestName)).value();
  const CheckpointResult again = job.Save(5);
  EXPECT_EQ(again.status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadFile(JoinPath(job.Folder(5), kManifestName)).value(), before);
  ExpectStateOf(5, LoadCheckpoint(job.Folder(5)).value());
}

// A file system of 10 MB, gone with the object.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& path) : path_(path) {
    error_ = ::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=10m") == 0 ? 0 : errno;
  }
  ~SmallDisk() {
    if (error_ == 0) ::umount2(path_.c_str(), MNT_DETACH);
  }
  int error() const { return error_; }

 private:
  std::string path_;
  int error_;
};

TEST(AsyncCheckpointWriter, FullDiskNamesPathAndCauseAndKeepsTheOneBefore) {  // CKP-07
  const TempDirectory directory = NewDirectory();
  const SmallDisk disk(directory.path());
  if (disk.error() != 0) GTEST_SKIP() << "a tmpfs cannot be mounted here: " << std::strerror(disk.error());
  const std::vector<testing::ToyTensor> six_megabytes = {{"w", v1::TENSOR_ROLE_PARAMETER, {1'500'000}},
                                                         {"x", v1::TENSOR_ROLE_PARAMETER, {4}}};
  for (int32_t ranks : {1, 2}) {
    const std::string run = JoinPath(directory.path(), fmt::format("run-{}", ranks));
    ToyGeneration job(run, 1, ranks, {.tensors = six_megabytes});
    ASSERT_TRUE(job.Save(10).status.ok());
    const CheckpointResult full = job.Save(20);
    EXPECT_FALSE(full.status.ok());
    EXPECT_THAT(Message(full.status), AllOf(HasSubstr(job.Folder(20)), HasSubstr("rank-0.safetensors"),
                                            HasSubstr("No space left on device")));
    EXPECT_EQ(full.status.code(), absl::StatusCode::kResourceExhausted);
    std::vector<std::string> notices;
    const auto latest = job.store().Latest("job-a", {}, &notices).value();
    ASSERT_TRUE(latest.has_value());
    ExpectStateOf(10, LoadCheckpoint(latest->path).value(), six_megabytes);
    // The space is free again. Rank 1 leaves its own reason where it too met the full disk, or saw that rank 0 had.
    std::vector<std::string> left = testing::NamesIn(job.Folder(20));
    if (ranks == 2) std::erase(left, "rank-1.failed");
    EXPECT_THAT(left, ElementsAre("rank-0.failed"));
    ASSERT_TRUE(RemoveTree(job.Folder(10)).ok());
    EXPECT_TRUE(job.Save(30).status.ok());
    EXPECT_FALSE(FileExists(job.Folder(20)));
    ASSERT_TRUE(RemoveTree(run).ok());
  }
}

}  // namespace
}  // namespace tutti
