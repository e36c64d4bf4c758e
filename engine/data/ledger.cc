#include "engine/data/ledger.h"

#include <array>
#include <bit>

#include "base/check.h"
#include "base/digest.h"
#include "engine/data/permutation.h"
#include "tutti/v1/checkpoint.pb.h"

namespace tutti {
namespace {

constexpr size_t kMaxProblems = 20;

// Walks the stream of epochs and counts each sample.
class OrderReplay {
 public:
  explicit OrderReplay(const LedgerOrder& order)
      : order_(order), seen_(static_cast<size_t>(order.counts.data_set_size)) {}

  // Rows of the next `count` positions. False when one of them had been in its epoch before.
  bool Take(int64_t count, std::vector<int64_t>* rows) {
    const int64_t n = order_.counts.data_set_size;
    bool fresh = true;
    rows->clear();
    for (; count > 0; --count, ++position_) {
      if (position_ % n == 0) {
        seen_.assign(seen_.size(), 0);
        current_.emplace(
            EpochOrder::Options{.seed = order_.seed, .epoch = position_ / n, .size = n, .shuffle = order_.shuffle});
      }
      const int64_t row = (*current_)(position_ % n);
      fresh &= seen_[static_cast<size_t>(row)]++ == 0;
      rows->push_back(row);
    }
    return fresh;
  }
  int64_t position() const { return position_; }

 private:
  const LedgerOrder order_;
  std::vector<uint8_t> seen_;  // of the current epoch; N fresh ones among N are each exactly once
  std::optional<EpochOrder> current_;
  int64_t position_ = 0;
};

}  // namespace

uint64_t SampleDigest(std::span<const int64_t> rows) {
  static_assert(std::endian::native == std::endian::little);
  return Xxh3(rows.data(), rows.size_bytes());
}

uint64_t ChainDigest(uint64_t previous, int64_t step, uint64_t digest, int64_t samples) {
  const std::array<uint64_t, 4> words = {previous, static_cast<uint64_t>(step), digest, static_cast<uint64_t>(samples)};
  return Xxh3(words.data(), sizeof words);
}

void Ledger::Append(int64_t step, uint64_t digest, int64_t samples) {
  TUTTI_CHECK(step == steps() + 1, "step {} after {}", step, steps());
  entries_.push_back({step, digest, samples, ChainDigest(chain(), step, digest, samples)});
}

int64_t Ledger::samples() const {
  int64_t total = 0;
  for (const LedgerEntry& entry : entries_) total += entry.samples;
  return total;
}

std::string Ledger::Serialize() const {
  v1::StepDigests message;
  for (const LedgerEntry& entry : entries_) {
    v1::StepDigest* out = message.add_steps();
    out->set_step(entry.step);
    out->set_digest(entry.digest);
    out->set_samples(entry.samples);
    out->set_chain(entry.chain);
  }
  return message.SerializeAsString();
}

StatusOr<Ledger> Ledger::Parse(std::string_view bytes) {
  v1::StepDigests message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return DataLoss("the ledger is not a StepDigests message");
  Ledger ledger;
  ledger.Reserve(message.steps_size());
  for (const v1::StepDigest& entry : message.steps()) {
    if (entry.step() != ledger.steps() + 1)
      return DataLoss("the ledger has step {} after step {}", entry.step(), ledger.steps());
    ledger.Append(entry.step(), entry.digest(), entry.samples());
    if (ledger.chain() != entry.chain()) {
      return DataLoss("the ledger's chain breaks at step {}: expected {:016x}, found {:016x}", entry.step(),
                      ledger.chain(), entry.chain());
    }
  }
  return ledger;
}

LedgerReport VerifyLedger(const LedgerOrder& order, std::span<const LedgerEntry> entries) {
  LedgerReport report;
  OrderReplay replay(order);
  std::vector<int64_t> rows;
  uint64_t chain = 0;
  const auto problem = [&](int64_t step, std::string text) {
    if (!report.first_bad_step) report.first_bad_step = step;
    if (report.problems.size() < kMaxProblems) report.problems.push_back(std::move(text));
  };
  for (const LedgerEntry& entry : entries) {
    const int64_t step = report.steps + 1, expected = order.counts.ValidSamples(step);
    if (step > order.counts.steps) {
      problem(step, fmt::format("step {} lies past the job's last step {}", step, order.counts.steps));
      break;
    }
    const bool fresh = replay.Take(expected, &rows);
    chain = ChainDigest(chain, entry.step, entry.digest, entry.samples);
    if (entry.step != step) problem(step, fmt::format("step {} is missing: found step {}", step, entry.step));
    if (entry.samples != expected)
      problem(step, fmt::format("step {} has {} samples, expected {}", step, entry.samples, expected));
    if (entry.digest != SampleDigest(rows))
      problem(step, fmt::format("step {} saw other samples than the order says", step));
    if (entry.chain != chain) problem(step, fmt::format("the chain breaks at step {}", step));
    if (!fresh) problem(step, fmt::format("the order of step {} repeats a sample of its epoch", step));
    if (report.first_bad_step == step) {
      chain = entry.chain;  // report each deviation once, not all that follow from it
    }
    report.steps = step;
    report.samples += entry.samples;
    if (!report.first_bad_step) report.epochs = replay.position() / order.counts.data_set_size;
  }
  report.partial_samples = replay.position() % order.counts.data_set_size;
  report.exact = !report.first_bad_step.has_value();
  return report;
}

}  // namespace tutti
