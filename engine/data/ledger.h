// The ledger: which samples each completed step saw, as digests in a hash chain. It is training state: checkpoints keep
// it and rewind it, and it can be checked by replaying the order function, with the checkpoints and the data set's size
// alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/data/steps.h"

namespace tutti {

// XXH3 of the rows of a global batch's valid samples as little-endian int64, in position order.
uint64_t SampleDigest(std::span<const int64_t> rows);

struct LedgerEntry {
  int64_t step = 0;     // 1, 2, ... without a gap
  uint64_t digest = 0;  // SampleDigest
  int64_t samples = 0;  // valid ones
  uint64_t chain = 0;   // ChainDigest of the entry before it (0 before the first) and this one
  bool operator==(const LedgerEntry&) const = default;
};
// XXH3 of (previous chain, step, digest, samples), each as 8 bytes little-endian.
uint64_t ChainDigest(uint64_t previous, int64_t step, uint64_t digest, int64_t samples);

class Ledger {
 public:
  void Reserve(int64_t steps) { entries_.reserve(static_cast<size_t>(steps)); }  // no allocation in Append up to there
  void Append(int64_t step, uint64_t digest, int64_t samples);                   // step == steps() + 1
  void Rewind(int64_t step) { entries_.resize(static_cast<size_t>(step)); }      // keeps steps 1 .. step <= steps()
  int64_t steps() const { return static_cast<int64_t>(entries_.size()); }
  int64_t samples() const;  // valid ones of all steps
  uint64_t chain() const { return entries_.empty() ? 0 : entries_.back().chain; }
  std::span<const LedgerEntry> entries() const { return entries_; }

  std::string Serialize() const;  // v1.StepDigests
  // DATA_LOSS: not a ledger, a gap, or a chain that does not hold: names the first bad step.
  static StatusOr<Ledger> Parse(std::string_view bytes);

 private:
  std::vector<LedgerEntry> entries_;
};

struct LedgerOrder {  // all that the order depends on
  uint64_t seed = 0;
  bool shuffle = true;
  StepPlanCounts counts;  // of the job
};

struct LedgerReport {
  bool exact = false;  // every entry is what the order function says, no sample skipped or repeated
  int64_t steps = 0;
  int64_t samples = 0;
  int64_t epochs = 0;           // complete ones, each proved to hold every sample exactly once
  int64_t partial_samples = 0;  // of the epoch in progress, none twice
  std::optional<int64_t> first_bad_step;
  std::vector<std::string> problems;  // plain words, at most 20
};
// Replays the order function over `entries` and compares. The samples of each epoch are counted one by one.
LedgerReport VerifyLedger(const LedgerOrder& order, std::span<const LedgerEntry> entries);

}  // namespace tutti
