// The footer: one all-gather at the end of backward, before anything is applied. A step is completed when its footer
// succeeds.
//
// Every rank sends what it saw, shard by shard; every rank then computes the same outcome from the same bytes, summing
// over shards and cells in a fixed order, so that no result depends on the number of ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/comm/communicator.h"
#include "engine/comm/tree_reduce.h"
#include "tutti/v1/rank.pb.h"

namespace tutti {

// What one rank says.
struct FooterHeader {
  int64_t generation = 0;
  int64_t step = 0;
  int64_t valid = 0;                // of the whole global batch, as this rank's loader counts it
  uint64_t sample_digest = 0;       // likewise
  int64_t checkpoint_requests = 0;  // so far
  int32_t intent = v1::INTENT_RUN;
  int32_t checkpoint_slow = 0;  // this rank has been writing the last one for long: not yet another
};

struct FooterOutcome {
  v1::Intent intent = v1::INTENT_RUN;  // the highest that any rank heard
  int64_t checkpoint_requests = 0;     // likewise
  double loss_sum = 0;                 // in cell order, f64
  bool checkpoint_slow = false;        // on any rank
  int64_t correct = 0;
};

class Footer {
 public:
  struct Shape {
    int32_t micro_batches = 1;     // cells of a shard
    int64_t statistic_floats = 0;  // of one cell
    int64_t sums = 0;              // the most that a rank shares
  };
  Footer(const TreeReducer& tree, const Shape& shape);

  // Where the caller puts its own cell `cell` (local number) before Exchange.
  struct Cell {
    float* loss_sum;
    float* correct;
    float* statistics;
  };
  Cell own_cell(int32_t cell);
  // Likewise, its sums of squares of the part of the reduced gradient that it measures.
  std::span<double> own_sums();

  // Errors: the communicator's; INTERNAL where ranks disagree on generation, step, samples or valid count (names the
  // rank).
  StatusOr<FooterOutcome> Exchange(Communicator& comm, const FooterHeader& header);

  // After Exchange: what `rank` put there.
  std::span<const double> SumsOf(int32_t rank) const;
  // After Exchange: mean over all cells of the global batch of statistic `index`, added over a left-balanced tree in
  // cell order.
  double StatisticMean(int64_t index) const;

 private:
  const std::byte* RecordOf(int32_t rank) const { return all_.data() + rank * record_bytes_; }
  double TreeSum(ShardRange cells, int64_t index) const;

  const TreeReducer& tree_;
  const Shape shape_;
  int64_t cell_floats_, sums_offset_, record_bytes_;
  std::vector<std::byte> own_, all_;
  std::vector<const float*> cells_;  // by global cell, into all_
};

}  // namespace tutti
