#include "engine/data/ledger.h"

#include <gmock/gmock.h>

#include "base/digest.h"
#include "engine/data/permutation.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSize = 50;

StepPlanCounts Counts() {
  return CountSteps({.epochs = 3, .steps = 0, .global_batch = 8, .data_set_size = kSize}).value();
}
LedgerOrder Order() { return {.seed = 5, .shuffle = true, .counts = Counts()}; }

std::vector<int64_t> RowsOf(int64_t step) {
  std::vector<int64_t> rows;
  for (int64_t p = (step - 1) * 8; p < std::min<int64_t>(step * 8, 150); ++p) {
    rows.push_back(EpochOrder({.seed = 5, .epoch = p / kSize, .size = kSize})(p % kSize));
  }
  return rows;
}

// What an honest trainer records up to `steps`; `change` may falsify the rows of a step.
template <typename Change>
Ledger Recorded(int64_t steps, Change change) {
  Ledger ledger;
  for (int64_t step = 1; step <= steps; ++step) {
    std::vector<int64_t> rows = RowsOf(step);
    change(step, &rows);
    ledger.Append(step, SampleDigest(rows), static_cast<int64_t>(rows.size()));
  }
  return ledger;
}
Ledger Honest(int64_t steps) {
  return Recorded(steps, [](int64_t, std::vector<int64_t>*) {});
}

TEST(Ledger, SurvivesSerialisationAndRewinding) {
  const Ledger ledger = Honest(10);
  Ledger loaded = Ledger::Parse(ledger.Serialize()).value();
  EXPECT_EQ(std::vector(loaded.entries().begin(), loaded.entries().end()),
            std::vector(ledger.entries().begin(), ledger.entries().end()));
  EXPECT_EQ(loaded.samples(), 80);
  loaded.Rewind(4);
  EXPECT_EQ(loaded.chain(), Honest(4).chain());
  EXPECT_EQ(Ledger::Parse("").value().steps(), 0);
}

TEST(Ledger, ChainIsTheDocumentedHash) {
  Ledger ledger;
  ledger.Append(1, 0xABCD, 8);
  uint64_t words[4] = {0, 1, 0xABCD, 8};
  const uint64_t first = Xxh3(words, sizeof words);
  EXPECT_EQ(ledger.chain(), first);
  ledger.Append(2, 0xEF, 8);
  uint64_t next[4] = {first, 2, 0xEF, 8};
  EXPECT_EQ(ledger.chain(), Xxh3(next, sizeof next));
}

TEST(Ledger, DamageIsFound) {
  const std::string bytes = Honest(10).Serialize();
  EXPECT_FALSE(Ledger::Parse("not a message").ok());
  int64_t accepted = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string bad = bytes;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    accepted += Ledger::Parse(bad).ok();
  }
  EXPECT_EQ(accepted, 0);
}

TEST(VerifyLedger, HonestRunIsExact) {
  const LedgerReport report = VerifyLedger(Order(), Honest(19).entries());
  EXPECT_TRUE(report.exact) << ::testing::PrintToString(report.problems);
  EXPECT_EQ(report.steps, 19);
  EXPECT_EQ(report.samples, 150);
  EXPECT_EQ(report.epochs, 3);
  EXPECT_EQ(report.partial_samples, 0);
}

TEST(VerifyLedger, UnfinishedRunCountsWholeEpochsOnly) {
  const LedgerReport report = VerifyLedger(Order(), Honest(8).entries());  // 64 samples
  EXPECT_TRUE(report.exact);
  EXPECT_EQ(report.epochs, 1);
  EXPECT_EQ(report.partial_samples, 14);
}

TEST(VerifyLedger, FirstDeviatingStepIsNamed) {
  const auto expect_bad = [](const Ledger& ledger, int64_t step, const std::string& text) {
    const LedgerReport report = VerifyLedger(Order(), ledger.entries());
    EXPECT_FALSE(report.exact);
    EXPECT_EQ(report.first_bad_step, step);
    ASSERT_FALSE(report.problems.empty());
    EXPECT_THAT(report.problems[0], HasSubstr(text));
    EXPECT_LE(report.epochs, (step - 1) * 8 / kSize);
  };
  // A sample twice, another one not at all.
  expect_bad(Recorded(19,
                      [](int64_t step, auto* rows) {
                        if (step == 7) (*rows)[0] = (*rows)[1];
                      }),
             7, "step 7 saw other samples");
  // A swapped order inside a step.
  expect_bad(Recorded(19,
                      [](int64_t step, auto* rows) {
                        if (step == 3) std::swap((*rows)[0], (*rows)[1]);
                      }),
             3, "step 3");
  // A sample dropped.
  expect_bad(Recorded(19,
                      [](int64_t step, auto* rows) {
                        if (step == 9) rows->pop_back();
                      }),
             9, "7 samples, expected 8");
  // A step done twice: everything after it is one step late.
  expect_bad(Recorded(19, [](int64_t step, auto* rows) { *rows = RowsOf(step <= 5 ? step : step - 1); }), 6,
             "step 6 saw other samples");
  // More steps than the job has.
  expect_bad(Recorded(20,
                      [](int64_t step, auto* rows) {
                        if (step == 20) *rows = {1, 2};
                      }),
             20, "past the job's last step 19");
  // An entry changed after the fact.
  const Ledger honest = Honest(19);
  std::vector<LedgerEntry> entries(honest.entries().begin(), honest.entries().end());
  entries[11].chain ^= 1;
  const LedgerReport report = VerifyLedger(Order(), entries);
  EXPECT_EQ(report.first_bad_step, 12);
  EXPECT_THAT(report.problems[0], HasSubstr("chain breaks at step 12"));
}

TEST(VerifyLedger, AnotherSeedIsFound) {
  LedgerOrder order = Order();
  order.seed = 6;
  EXPECT_EQ(VerifyLedger(order, Honest(19).entries()).first_bad_step, 1);
  order = Order();
  order.shuffle = false;
  EXPECT_FALSE(VerifyLedger(order, Honest(19).entries()).exact);
}

}  // namespace
}  // namespace tutti
