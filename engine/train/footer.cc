#include "engine/train/footer.h"

#include <algorithm>
#include <cstring>

namespace tutti {
namespace {
constexpr int64_t kHeaderFloats = sizeof(FooterHeader) / sizeof(float);
static_assert(sizeof(FooterHeader) % sizeof(float) == 0);
}  // namespace

Footer::Footer(const TreeReducer& tree, const Shape& shape) : tree_(tree), shape_(shape) {
  cell_floats_ = 2 + shape.statistic_floats;
  const int32_t most = ShardsOfRank(tree.shards(), tree.world_size(), Rank(0)).size() * shape.micro_batches;
  constexpr int64_t kAlignment = alignof(double);
  const int64_t cells_end = (kHeaderFloats + most * cell_floats_) * static_cast<int64_t>(sizeof(float));
  sums_offset_ = (cells_end + kAlignment - 1) / kAlignment * kAlignment;
  record_bytes_ = sums_offset_ + shape.sums * static_cast<int64_t>(sizeof(double));
  own_.resize(record_bytes_);
  all_.resize(record_bytes_ * tree.world_size());
  for (int32_t rank = 0; rank < tree.world_size(); ++rank) {
    const float* cells = reinterpret_cast<const float*>(RecordOf(rank)) + kHeaderFloats;
    const int32_t count = ShardsOfRank(tree.shards(), tree.world_size(), Rank(rank)).size() * shape.micro_batches;
    for (int32_t c = 0; c < count; ++c) cells_.push_back(cells + c * cell_floats_);
  }
}

Footer::Cell Footer::own_cell(int32_t cell) {
  float* base = reinterpret_cast<float*>(own_.data()) + kHeaderFloats + cell * cell_floats_;
  return {base, base + 1, base + 2};
}

std::span<double> Footer::own_sums() {
  return {reinterpret_cast<double*>(own_.data() + sums_offset_), static_cast<size_t>(shape_.sums)};
}

std::span<const double> Footer::SumsOf(int32_t rank) const {
  return {reinterpret_cast<const double*>(RecordOf(rank) + sums_offset_), static_cast<size_t>(shape_.sums)};
}

StatusOr<FooterOutcome> Footer::Exchange(Communicator& comm, const FooterHeader& header) {
  std::memcpy(own_.data(), &header, sizeof(header));
  TUTTI_RETURN_IF_ERROR(comm.AllGather(own_.data(), all_.data(), ElementCount(record_bytes_), CommType::kU8));
  FooterOutcome outcome;
  for (int32_t rank = 0; rank < tree_.world_size(); ++rank) {
    FooterHeader other;
    std::memcpy(&other, RecordOf(rank), sizeof(other));
    if (other.generation != header.generation || other.step != header.step || other.valid != header.valid ||
        other.sample_digest != header.sample_digest) {
      return Internal(
          "footer of step {}: rank {} is in generation {}, step {} with {} valid samples of digest {:016x}; rank {} in "
          "generation {}, step {} with {} of digest {:016x}",
          header.step, rank, other.generation, other.step, other.valid, other.sample_digest, tree_.rank().value(),
          header.generation, header.step, header.valid, header.sample_digest);
    }
    outcome.checkpoint_slow = outcome.checkpoint_slow || other.checkpoint_slow != 0;
    outcome.intent = static_cast<v1::Intent>(std::max<int>(outcome.intent, other.intent));
    outcome.checkpoint_requests = std::max(outcome.checkpoint_requests, other.checkpoint_requests);
  }
  for (const float* cell : cells_) {
    outcome.loss_sum += cell[0];
    outcome.correct += static_cast<int64_t>(cell[1]);
  }
  return outcome;
}

double Footer::TreeSum(ShardRange cells, int64_t index) const {
  if (cells.size() == 1) return cells_[cells.begin][2 + index];
  const int32_t split = TreeSplit(cells);
  return TreeSum({cells.begin, split}, index) + TreeSum({split, cells.end}, index);
}

double Footer::StatisticMean(int64_t index) const {
  const int32_t cells = static_cast<int32_t>(cells_.size());
  return TreeSum({0, cells}, index) / cells;
}

}  // namespace tutti
