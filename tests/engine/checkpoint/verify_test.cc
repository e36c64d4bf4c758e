#include "engine/checkpoint/verify.h"

#include <gmock/gmock.h>

#include "engine/checkpoint/layout.h"
#include "engine/data/permutation.h"
#include "tests/engine/checkpoint/checkpoint_testing.h"

namespace tutti {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::NewDirectory;

// A run of 2 epochs over 10 samples in batches of 4: 5 steps. `order_seed` is what its loader really used.
class ToyRun {
 public:
  explicit ToyRun(uint64_t order_seed) : directory_(NewDirectory()) {
    WriteData(10);
    v1::JobSpec spec;
    spec.mutable_train()->set_epochs(2);
    spec.mutable_train()->set_seed(6);
    spec.mutable_batch()->set_global(4);
    spec.mutable_data()->set_shuffle(true);
    spec.mutable_data()->set_classes(3);
    *spec.mutable_data()->mutable_train() = source_;
    Ledger ledger;
    for (int64_t step = 1; step <= 5; ++step) {
      std::vector<int64_t> rows;
      for (int64_t p = 4 * (step - 1); p < 4 * step; ++p)
        rows.push_back(EpochOrder({.seed = order_seed, .epoch = p / 10, .size = 10})(p % 10));
      ledger.Append(step, SampleDigest(rows), 4);
    }
    v1::Manifest manifest;
    manifest.set_step(5);
    manifest.set_position(20);
    manifest.set_data_set_size(10);
    manifest.set_data_digest(DigestText(OpenDataset(source_, 3).value()->digest()));
    *manifest.mutable_spec() = spec;
    const CheckpointStore store = CheckpointStore::Open(run()).value();
    AsyncCheckpointWriter::Options options;
    options.self = {"job-a", Generation(1)};
    auto writer =
        AsyncCheckpointWriter::Create(
            store, options, {{"w", v1::TENSOR_ROLE_PARAMETER, {2}, [](float* plain) { plain[0] = 1, plain[1] = 2; }}})
            .value();
    writer->Begin(manifest, ledger, true);
    const CheckpointResult written = writer->Finish().value();
    TUTTI_CHECK_OK(written.status);
    folder_ = store.StepFolder(options.self, Step(5));
  }

  void WriteData(uint8_t rows) {
    const std::string dims = {0, 0, 0, static_cast<char>(rows)};
    source_.set_format(v1::DATA_FORMAT_IDX);
    source_.set_images(JoinPath(directory_.path(), "images"));
    source_.set_labels(JoinPath(directory_.path(), "labels"));
    TUTTI_CHECK_OK(WriteFileAtomic(
        source_.images(), std::string("\0\0\x08\x02", 4) + dims + std::string("\0\0\0\1", 4) + std::string(rows, 'x')));
    TUTTI_CHECK_OK(WriteFileAtomic(source_.labels(), std::string("\0\0\x08\x01", 4) + dims + std::string(rows, '\2')));
  }
  std::string run() const { return JoinPath(directory_.path(), "run"); }
  const std::string& folder() const { return folder_; }
  const v1::DataSource& source() const { return source_; }

 private:
  TempDirectory directory_;
  v1::DataSource source_;
  std::string folder_;
};

TEST(VerifyRun, HonestRunIsExact) {
  const ToyRun honest(6);
  for (const std::string& path : {honest.run(), honest.folder(), JoinPath(honest.run(), "step-5")}) {
    const VerifyReport report = VerifyRun(path).value();
    EXPECT_TRUE(report.exact) << ::testing::PrintToString(report.problems);
    EXPECT_EQ(report.ledger.epochs, 2);
    EXPECT_EQ(report.ledger.samples, 20);
    EXPECT_EQ(report.ledger.steps, 5);
    EXPECT_EQ(report.job_id, "job-a");
    EXPECT_EQ(report.weights_sha256.size(), 64u);
  }
  EXPECT_EQ(VerifyRun(honest.run(), "job-b").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(VerifyRun("/no/such/run").status().code(), absl::StatusCode::kNotFound);
}

TEST(VerifyRun, RunInAnotherOrderIsFound) {
  const VerifyReport report = VerifyRun(ToyRun(7).run()).value();
  EXPECT_FALSE(report.exact);
  EXPECT_EQ(report.ledger.first_bad_step, 1);
}

TEST(VerifyRun, ChangedOrAbsentDataIsReported) {
  ToyRun run(6);
  run.WriteData(11);
  EXPECT_THAT(VerifyRun(run.run()).value().problems, Contains(HasSubstr("the training data has digest")));
  ASSERT_TRUE(RemoveFile(run.source().images()).ok());
  const VerifyReport report = VerifyRun(run.run()).value();
  EXPECT_FALSE(report.exact);
  EXPECT_TRUE(report.ledger.exact);  // replayed from the manifest's size
  EXPECT_THAT(report.problems, ElementsAre(HasSubstr(run.source().images())));
}

TEST(VerifyRun, DamagedCheckpointIsNamed) {
  const ToyRun run(6);
  ASSERT_TRUE(WriteFileAtomic(JoinPath(run.folder(), kLedgerName), "x").ok());
  EXPECT_EQ(VerifyRun(run.folder()).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(VerifyRun(run.run()).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tutti
