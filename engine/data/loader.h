// Batches of one rank, read ahead by a few threads into memory that the caller gives. What step k sees is a function of
// (data set, seed, k) alone: ranks, threads, prefetch and speed never change it, and the position is the only state.
//
//   TUTTI_ASSIGN_OR_RETURN(auto loader, Loader::Create(dataset, options, counts, arena_memory));
//   loader->Seek(completed_step);                       // after resuming; 0 from scratch
//   TUTTI_ASSIGN_OR_RETURN(const Batch* batch, loader->Next());
//
// A global batch is laid out shard by shard: shard s of V holds its positions [s * B / V, (s + 1) * B / V). A rank owns
// neighbouring shards, so its rows are neighbours too, and cell c of a shard (micro samples each) is rows [c * micro,
// (c + 1) * micro) of the shard.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "engine/data/dataset.h"
#include "engine/data/normalize.h"
#include "engine/data/steps.h"

namespace tutti {

struct LoaderOptions {
  uint64_t seed = 0;
  bool shuffle = true;
  Normalization normalization;
  int64_t shards = 1;       // V, divides the global batch
  int64_t first_shard = 0;  // of this rank
  int64_t last_shard = 1;   // one past it
  int32_t threads = 1;      // >= 1
  int32_t prefetch = 2;     // batches ahead, >= 1
};

// One step's share of this rank. Memory belongs to the loader until the next call of Next, Seek or the destructor.
struct Batch {
  int64_t step = 0;            // from 1
  int64_t epoch = 0;           // from 1, of the global batch's first sample
  int64_t valid = 0;           // of the whole global batch: the loss's denominator
  uint64_t sample_digest = 0;  // of the whole global batch (ledger.h)
  int64_t first_position = 0;  // SamplePosition of row 0 of this rank; row r has first_position + r
  int64_t rows = 0;            // (last_shard - first_shard) * B / V, padding included
  float* x = nullptr;          // (rows, sample shape), 64-byte aligned
  int32_t* labels = nullptr;   // (rows)
  float* weights = nullptr;    // (rows): 1, or 0 for what tops up the job's last batch
};

class Loader {
 public:
  virtual ~Loader() = default;

  // Bytes of batch memory: prefetch + 1 batches, each part 64-byte aligned.
  static int64_t BufferBytes(const LoaderOptions& options, const StepPlanCounts& counts, int64_t sample_elements);
  // `memory` has BufferBytes, is 64-byte aligned and outlives the loader, as the data set does. Starts the threads; no
  // allocation and no system call but waiting afterwards. INVALID_ARGUMENT: options that do not fit together.
  static StatusOr<std::unique_ptr<Loader>> Create(const Dataset& dataset, const LoaderOptions& options,
                                                  const StepPlanCounts& counts, std::span<std::byte> memory);

  // The next Next gives step completed_step + 1.
  virtual void Seek(int64_t completed_step) = 0;
  // Blocks until the next step's batch is there. OUT_OF_RANGE past the job's last step; an error of the data set as it
  // is.
  virtual StatusOr<const Batch*> Next() = 0;
};

// Evaluation: every sample once, in cells of fixed size whatever the number of ranks, so that a metric summed over
// cells in order has equal bits at any width. Rank r takes the neighbouring cells [FirstCell(r), FirstCell(r + 1)).
struct EvalPlan {
  int64_t size = 0;  // N >= 1
  int64_t cell_rows = 1;
  int32_t ranks = 1;

  int64_t cells() const { return (size + cell_rows - 1) / cell_rows; }
  int64_t FirstCell(int32_t rank) const { return cells() * rank / ranks; }
  int64_t ValidRows(int64_t cell) const { return std::min(cell_rows, size - cell * cell_rows); }
};

// Fills evaluation cells, in data set order. One thread per reader.
class EvalReader {
 public:
  EvalReader(const Dataset& dataset, Normalization normalization, int64_t cell_rows);
  // x: (cell_rows, sample shape), labels and weights: (cell_rows). Rows past the last sample: zeros, label 0, weight 0.
  Status Fill(int64_t cell, float* x, int32_t* labels, float* weights);

 private:
  SampleReader reader_;
  int64_t cell_rows_;
};

}  // namespace tutti
