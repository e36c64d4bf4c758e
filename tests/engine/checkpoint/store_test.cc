#include "engine/checkpoint/store.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "engine/checkpoint/layout.h"
#include "tests/engine/checkpoint/checkpoint_testing.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::ExpectStateOf;
using ::testing::HasSubstr;
using testing::NewDirectory;
using testing::ToyGeneration;

v1::CheckpointPolicy Policy(v1::ResumeMode mode, const std::string& from = "") {
  v1::CheckpointPolicy policy;
  policy.set_resume(mode);
  policy.set_resume_from(from);
  return policy;
}

std::optional<CheckpointInfo> LatestOf(const CheckpointStore& store, std::vector<std::string>* notices = nullptr,
                                       const Fence& known = {}) {
  std::vector<std::string> ignored;
  return store.Latest("job-a", known, notices != nullptr ? notices : &ignored).value();
}

// The steps of all folders with a manifest, ascending.
std::vector<int64_t> StepsOnDisk(const std::string& directory) {
  std::vector<int64_t> steps;
  for (const std::string& name : testing::NamesIn(directory)) {
    const auto folder = ParseFolderName(name);
    if (folder && FileExists(JoinPath(JoinPath(directory, name), kManifestName))) steps.push_back(folder->step.value());
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

TEST(Layout, NamesRoundTripAndForeignOnesAreNotTaken) {
  const FolderName name{Step(1407), Generation(2), JobTag("job-a")};
  const auto parsed = ParseFolderName(FormatFolderName(name));
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->step, Step(1407));
  EXPECT_EQ(parsed->generation, Generation(2));
  EXPECT_EQ(parsed->tag, name.tag);
  EXPECT_EQ(ParseFolderName("step-0900000.g1.0123abcd")->step, Step(900000));
  for (const char* bad : {"handpicked", "step-12", "step-.g1.0123abcd", "step-1x.g1.0123abcd", "step--1.g1.0123abcd",
                          "step-1.g.0123abcd", "step-1.g1.0123abc", "step-1.g1.0123abcdE",
                          "step-99999999999999999999.g1.0123abcd", "trash.step-1.g1.0123abcd"}) {
    EXPECT_FALSE(ParseFolderName(bad).has_value()) << bad;
  }
  EXPECT_EQ(ParseFriendlyName("step-12"), Step(12));
  EXPECT_FALSE(ParseFriendlyName("step-12.g1.0123abcd").has_value());
  EXPECT_NE(JobTag("job-a"), JobTag("job-b"));
}

TEST(CheckpointStore, LatestIsChosenByNumber) {  // CKP-03
  const TempDirectory directory = NewDirectory();
  ToyGeneration job(directory.path(), 1, 1);
  ASSERT_TRUE(job.Save(9).status.ok());
  ASSERT_TRUE(job.Save(10).status.ok());  // "10" < "9" as text
  const std::string tag = JobTag("job-a");
  // A folder that another tool padded with zeros, and one that people named.
  ASSERT_TRUE(RenamePath(job.Folder(10), JoinPath(directory.path(), "step-0010.g1." + tag)).ok());
  ASSERT_TRUE(job.Save(100).status.ok());
  ASSERT_TRUE(RenamePath(job.Folder(100), JoinPath(directory.path(), "handpicked")).ok());
  EXPECT_EQ(LatestOf(job.store())->step, Step(10));
  EXPECT_EQ(LoadCheckpoint(JoinPath(directory.path(), "handpicked")).value().info.step, Step(100));
  std::vector<std::string> notices;
  const auto start = job.store().FindStart(Policy(v1::RESUME_MODE_PATH, JoinPath(directory.path(), "handpicked")),
                                           {"job-b", Generation(1)}, &notices);
  EXPECT_EQ(start.value()->step, Step(100));
}

TEST(CheckpointStore, IncompleteStepIsPassedOver) {  // CKP-02
  const TempDirectory directory = NewDirectory();
  {
    ToyGeneration job(directory.path(), 1, 2);
    ASSERT_TRUE(job.Save(10).status.ok());
  }
  {
    // Rank 1 is gone before it wrote its part of step 20: rank 0's part is there, alone.
    ToyGeneration job(directory.path(), 2, 2, {.base = 10});
    ASSERT_TRUE(job.Save(20).status.ok());
    ASSERT_TRUE(RemoveFile(JoinPath(job.Folder(20), kManifestName)).ok());
    ASSERT_TRUE(RemoveFile(JoinPath(job.Folder(20), "rank-1.done")).ok());
    ASSERT_TRUE(RemoveFile(JoinPath(job.Folder(20), "rank-1.safetensors")).ok());
  }
  const CheckpointStore store = CheckpointStore::Open(directory.path()).value();
  std::vector<std::string> notices;
  const auto latest = LatestOf(store, &notices);
  ASSERT_TRUE(latest.has_value());
  EXPECT_EQ(latest->step, Step(10));
  EXPECT_EQ(latest->manifest->world_size(), 2);
  EXPECT_EQ(latest->manifest->files_size(), 3);
  EXPECT_THAT(notices, ElementsAre(AllOf(HasSubstr("step-20.g2"), HasSubstr("never completed"))));
}

TEST(CheckpointStore, HandMixedFolderIsRefusedNamingTheFile) {  // CKP-02
  const TempDirectory directory = NewDirectory();
  ToyGeneration job(directory.path(), 1, 2);
  ASSERT_TRUE(job.Save(10).status.ok());
  ASSERT_TRUE(job.Save(20).status.ok());
  const std::string mixed = JoinPath(job.Folder(20), "rank-1.safetensors");
  const std::string other = ReadFile(JoinPath(job.Folder(10), "rank-1.safetensors")).value();
  ASSERT_TRUE(WriteFileAtomic(mixed, other).ok());
  const Status status = LoadCheckpoint(job.Folder(20)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(status), AllOf(HasSubstr(mixed), HasSubstr("it is of step 10, generation 1")));
  std::vector<std::string> notices;
  EXPECT_EQ(LatestOf(job.store(), &notices)->step, Step(10));
  EXPECT_THAT(notices, ElementsAre(HasSubstr("rank-1.safetensors")));
  // A whole manifest of another step, too.
  ASSERT_TRUE(WriteFileAtomic(JoinPath(job.Folder(20), kManifestName),
                              ReadFile(JoinPath(job.Folder(10), kManifestName)).value())
                  .ok());
  EXPECT_THAT(Message(LoadCheckpoint(job.Folder(20)).status()), HasSubstr("is of step 10"));
}

TEST(CheckpointStore, AnyDamagedByteIsFound) {
  const TempDirectory directory = NewDirectory();
  ToyGeneration job(directory.path(), 1, 2);
  ASSERT_TRUE(job.Save(5).status.ok());
  for (const char* name : {"rank-0.safetensors", "rank-1.safetensors", "ledger.bin"}) {
    const std::string path = JoinPath(job.Folder(5), name), good = ReadFile(path).value();
    for (size_t at : {size_t{0}, good.size() / 2, good.size() - 1}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 4);
      ASSERT_TRUE(WriteFileAtomic(path, bad).ok());
      EXPECT_THAT(Message(LoadCheckpoint(job.Folder(5)).status()), HasSubstr(path));
    }
    ASSERT_TRUE(WriteFileAtomic(path, good.substr(0, good.size() / 2)).ok());
    EXPECT_THAT(Message(LoadCheckpoint(job.Folder(5)).status()), HasSubstr(path));
    ASSERT_TRUE(RemoveFile(path).ok());
    EXPECT_THAT(Message(LoadCheckpoint(job.Folder(5)).status()), AllOf(HasSubstr(path), HasSubstr("missing")));
    ASSERT_TRUE(WriteFileAtomic(path, good).ok());
  }
  ExpectStateOf(5, LoadCheckpoint(job.Folder(5)).value());
  const std::string manifest = JoinPath(job.Folder(5), kManifestName), text = ReadFile(manifest).value();
  ASSERT_TRUE(WriteFileAtomic(manifest, text.substr(0, text.size() / 2)).ok());
  EXPECT_EQ(LoadCheckpoint(job.Folder(5)).status().code(), absl::StatusCode::kDataLoss);
  std::string escape = text;
  escape.replace(escape.find("rank-1.safetensors"), 18, "../../../etc/passw");
  ASSERT_TRUE(WriteFileAtomic(manifest, escape).ok());
  EXPECT_THAT(Message(LoadCheckpoint(job.Folder(5)).status()), HasSubstr("no name of a file of this folder"));
}

TEST(FindStart, AbsentPathIsNotFoundAndNeverFromScratch) {  // CKP-14
  const TempDirectory directory = NewDirectory();
  const CheckpointStore store = CheckpointStore::Open(JoinPath(directory.path(), "run")).value();
  std::vector<std::string> notices;
  const auto start = [&](const std::string& path) {
    return store.FindStart(Policy(v1::RESUME_MODE_PATH, path), {"job-a", Generation(1)}, &notices);
  };
  EXPECT_EQ(start("/no/such/dir").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(start("/no/such/dir").status()), HasSubstr("/no/such/dir"));
  ASSERT_TRUE(MakeDirectories(JoinPath(directory.path(), "empty")).ok());
  EXPECT_EQ(start(JoinPath(directory.path(), "empty")).status().code(), absl::StatusCode::kNotFound);
  // auto starts from scratch only because nothing is there.
  EXPECT_FALSE(store.FindStart(Policy(v1::RESUME_MODE_AUTO), {"job-a", Generation(1)}, &notices).value().has_value());
}

TEST(FindStart, AnotherJobsRunIsRefusedUnlessResumed) {
  const TempDirectory directory = NewDirectory();
  {
    ToyGeneration old(directory.path(), 4, 1, {.job = "job-old"});
    ASSERT_TRUE(old.Save(30).status.ok());
  }
  const CheckpointStore store = CheckpointStore::Open(directory.path()).value();
  std::vector<std::string> notices;
  const Status refused = store.FindStart(Policy(v1::RESUME_MODE_NEVER), {"job-a", Generation(1)}, &notices).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(refused), AllOf(HasSubstr(directory.path()), HasSubstr("step-30.g4")));
  const auto start = store.FindStart(Policy(v1::RESUME_MODE_AUTO), {"job-a", Generation(2)}, &notices).value();
  ASSERT_TRUE(start.has_value());
  EXPECT_EQ(start->step, Step(30));
  // From here on the job's own checkpoints count, although its generations are lower and its steps may repeat the old
  // job's.
  ToyGeneration job(directory.path(), 2, 1);
  ASSERT_TRUE(job.Save(20).status.ok());
  EXPECT_EQ(store.FindStart(Policy(v1::RESUME_MODE_NEVER), {"job-a", Generation(3)}, &notices).value()->step, Step(20));
  EXPECT_THAT(StepsOnDisk(directory.path()), ElementsAre(20, 30));  // the other job's folder is nobody's to delete
}

TEST(FindStart, RestartGoesOnFromItsOwnNewestWhateverThePolicySays) {
  const TempDirectory directory = NewDirectory(), other = NewDirectory();
  ToyGeneration old(other.path(), 1, 1, {.job = "job-old"});
  ASSERT_TRUE(old.Save(7).status.ok());
  std::vector<std::string> notices;
  const CheckpointStore store = CheckpointStore::Open(directory.path()).value();
  const auto policy = Policy(v1::RESUME_MODE_PATH, other.path());
  EXPECT_EQ(store.FindStart(policy, {"job-a", Generation(1)}, &notices).value()->step, Step(7));
  ToyGeneration first(directory.path(), 1, 1);
  ASSERT_TRUE(first.Save(12).status.ok());
  EXPECT_EQ(store.FindStart(policy, {"job-a", Generation(2)}, &notices).value()->step, Step(12));
  // The same generation asks again: the same answer. It cannot start from another step.
  EXPECT_EQ(store.FindStart(policy, {"job-a", Generation(2)}, &notices).value()->step, Step(12));
  ASSERT_TRUE(RemoveTree(first.Folder(12)).ok());
  EXPECT_EQ(store.FindStart(policy, {"job-a", Generation(2)}, &notices).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// Generation 1 is cut off, generation 2 starts from its step 10, and only then generation 1's step 20 appears.
TEST(Zombie, LateCommitIsNeverResumed) {
  const TempDirectory directory = NewDirectory(), apart = NewDirectory();
  ToyGeneration first(directory.path(), 1, 1), cut_off(apart.path(), 1, 1);
  ASSERT_TRUE(first.Save(10).status.ok());
  std::vector<std::string> notices;
  EXPECT_EQ(first.store().FindStart(Policy(v1::RESUME_MODE_AUTO), {"job-a", Generation(2)}, &notices).value()->step,
            Step(10));
  // The zombie's own check stops it where it can see the claim.
  const CheckpointResult fenced = first.Save(15);
  EXPECT_EQ(fenced.status.code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(fenced.committed);
  // Where it could not (it was between check and commit), its manifest appears all the same.
  ASSERT_TRUE(cut_off.Save(20).status.ok());
  ASSERT_TRUE(RenamePath(cut_off.Folder(20), first.Folder(20)).ok());
  // Generation 2 never committed: only the base file that it left speaks for it.
  const auto start = first.store().FindStart(Policy(v1::RESUME_MODE_AUTO), {"job-a", Generation(3)}, &notices).value();
  EXPECT_EQ(start->step, Step(10));
  EXPECT_THAT(notices, Contains(AllOf(HasSubstr("step-20.g1"), HasSubstr("later generation"))));
  // The same from the caller's knowledge and from manifests alone.
  ASSERT_TRUE(RemoveFile(JoinPath(directory.path(), "base.g2." + JobTag("job-a"))).ok());
  ASSERT_TRUE(RemoveFile(JoinPath(directory.path(), "base.g3." + JobTag("job-a"))).ok());
  EXPECT_EQ(LatestOf(first.store())->step, Step(20));
  Fence known;
  known.Add(Generation(2), Step(10));
  EXPECT_EQ(LatestOf(first.store(), nullptr, known)->step, Step(10));
  ToyGeneration third(directory.path(), 3, 1, {.base = 10});
  ASSERT_TRUE(third.Save(12).status.ok());
  EXPECT_EQ(LatestOf(first.store())->step, Step(12));
}

// A generation that only claimed, and died, fences nothing: it never trained.
TEST(Zombie, ClaimAloneFencesNothing) {
  const TempDirectory directory = NewDirectory();
  ToyGeneration first(directory.path(), 1, 1);
  ASSERT_TRUE(first.Save(10).status.ok());
  ASSERT_TRUE(first.store().Claim({"job-a", Generation(2)}).ok());
  std::vector<std::string> notices;
  const auto start = first.store().FindStart(Policy(v1::RESUME_MODE_AUTO), {"job-a", Generation(3)}, &notices).value();
  EXPECT_EQ(start->step, Step(10));
}

TEST(Zombie, DeletesNothingAnyMore) {
  const TempDirectory directory = NewDirectory();
  ToyGeneration first(directory.path(), 1, 1);
  for (int64_t step : {10, 20, 30}) ASSERT_TRUE(first.Save(step).status.ok());
  ASSERT_TRUE(first.store().Claim({"job-a", Generation(2)}).ok());
  EXPECT_EQ(first.store().Retain(first.self(), {.keep = 2, .best_step = std::nullopt, .base = Step(0)}).code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(first.store().Claim(first.self()).code(), absl::StatusCode::kAborted);
  EXPECT_THAT(StepsOnDisk(directory.path()), ElementsAre(10, 20, 30));
}

TEST(Retention, KeepsTheNewestTheBestAndTheBase) {
  const TempDirectory directory = NewDirectory();
  ToyGeneration job(directory.path(), 1, 2);
  for (int64_t step : {10, 20, 30, 40, 50, 60}) ASSERT_TRUE(job.Save(step).status.ok());
  ToyGeneration other(directory.path(), 9, 1, {.job = "job-b"});
  ASSERT_TRUE(other.Save(5).status.ok());
  ASSERT_TRUE(job.store().Retain(job.self(), {.keep = 2, .best_step = 30, .base = Step(10)}).ok());
  EXPECT_THAT(StepsOnDisk(directory.path()), ElementsAre(5, 10, 30, 50, 60));
  // Friendly names follow.
  EXPECT_FALSE(FileExists(JoinPath(directory.path(), "step-20")));
  EXPECT_EQ(LoadCheckpoint(JoinPath(directory.path(), "step-60")).value().info.step, Step(60));
  for (const std::string& name : testing::NamesIn(directory.path())) EXPECT_FALSE(name.starts_with("trash.")) << name;
}

TEST(Retention, DamagedOnesDoNotCountAsKept) {
  const TempDirectory directory = NewDirectory();
  ToyGeneration job(directory.path(), 1, 1);
  for (int64_t step : {10, 20, 30, 40}) ASSERT_TRUE(job.Save(step).status.ok());
  ASSERT_TRUE(WriteFileAtomic(JoinPath(job.Folder(40), "rank-0.safetensors"), "cut").ok());
  ASSERT_TRUE(job.store().Retain(job.self(), {.keep = 2, .best_step = std::nullopt, .base = Step(0)}).ok());
  const std::vector<int64_t> steps = StepsOnDisk(directory.path());
  EXPECT_THAT(steps, AllOf(Contains(20), Contains(30)));
  EXPECT_EQ(LatestOf(job.store())->step, Step(30));
}

TEST(Retention, LeftoversOfDeadGenerationsAreRemoved) {
  const TempDirectory directory = NewDirectory();
  ToyGeneration first(directory.path(), 1, 1), second(directory.path(), 2, 1, {.base = 10});
  ASSERT_TRUE(first.Save(10).status.ok());
  ASSERT_TRUE(first.Save(15).status.ok());  // a zombie's: generation 2 starts from 10
  ASSERT_TRUE(MakeDirectories(first.Folder(12)).ok());
  ASSERT_TRUE(WriteFileAtomic(JoinPath(first.Folder(12), "rank-0.safetensors"), "half").ok());
  ASSERT_TRUE(MakeDirectories(second.Folder(11)).ok());  // an own write that was given up
  ASSERT_TRUE(MakeDirectories(second.Folder(30)).ok());  // an own write that is under way
  ASSERT_TRUE(MakeDirectories(JoinPath(directory.path(), "trash.step-3.g1." + JobTag("job-a"))).ok());
  ASSERT_TRUE(second.Save(20).status.ok());  // retains after its commit
  EXPECT_THAT(StepsOnDisk(directory.path()), ElementsAre(10, 20));
  EXPECT_FALSE(FileExists(first.Folder(12)));
  EXPECT_FALSE(FileExists(second.Folder(11)));
  EXPECT_TRUE(FileExists(second.Folder(30)));
  for (const std::string& name : testing::NamesIn(directory.path())) EXPECT_FALSE(name.starts_with("trash.")) << name;
}

TEST(CheckResumable, OtherDataSeedOrBatchIsRefusedWithBothValues) {
  v1::Manifest manifest = testing::ToyManifest(5, Generation(1), 0);
  v1::JobSpec spec = manifest.spec();
  EXPECT_TRUE(CheckResumable(manifest, spec, 99).ok());
  EXPECT_THAT(Message(CheckResumable(manifest, spec, 98)), AllOf(HasSubstr(DigestText(99)), HasSubstr(DigestText(98))));
  spec.mutable_train()->set_seed(4);
  EXPECT_THAT(Message(CheckResumable(manifest, spec, 99)), HasSubstr("train.seed 3, this job has 4"));
  spec = manifest.spec();
  spec.mutable_batch()->set_global(16);
  EXPECT_THAT(Message(CheckResumable(manifest, spec, 99)), HasSubstr("batch.global 8, this job has 16"));
  spec = manifest.spec();
  spec.mutable_data()->set_shuffle(!spec.data().shuffle());
  EXPECT_FALSE(CheckResumable(manifest, spec, 99).ok());
}

}  // namespace
}  // namespace tutti
