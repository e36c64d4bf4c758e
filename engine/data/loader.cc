#include "engine/data/loader.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/check.h"
#include "engine/data/ledger.h"
#include "engine/data/permutation.h"

namespace tutti {
namespace {

constexpr int64_t kAlignment = 64;
int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t RowsPerShard(const LoaderOptions& options, const StepPlanCounts& counts) {
  return counts.global_batch / options.shards;
}
int64_t LocalRows(const LoaderOptions& options, const StepPlanCounts& counts) {
  return (options.last_shard - options.first_shard) * RowsPerShard(options, counts);
}
int64_t SlotBytes(int64_t rows, int64_t sample_elements) {
  return Aligned(rows * sample_elements * int64_t{sizeof(float)}) + Aligned(rows * int64_t{sizeof(int32_t)}) +
         Aligned(rows * int64_t{sizeof(float)});
}

// What one thread needs to fill batches: nothing of it depends on which steps it filled before.
class Filler {
 public:
  Filler(const Dataset& dataset, const LoaderOptions& options, const StepPlanCounts& counts)
      : reader_(dataset, options.normalization),
        options_(options),
        counts_(counts),
        rows_(static_cast<size_t>(counts.global_batch)) {}

  Status Fill(int64_t step, Batch* batch) {
    const int64_t first = counts_.FirstPosition(step);
    for (int64_t i = 0; i < counts_.global_batch; ++i) rows_[static_cast<size_t>(i)] = RowAt(first + i);
    batch->step = step;
    batch->epoch = counts_.EpochOf(step);
    batch->valid = counts_.ValidSamples(step);
    batch->sample_digest = SampleDigest(std::span(rows_).first(static_cast<size_t>(batch->valid)));
    const int64_t offset = options_.first_shard * RowsPerShard(options_, counts_);
    batch->first_position = first + offset;
    const int64_t elements = reader_.dataset().sample_elements();
    for (int64_t r = 0; r < batch->rows; ++r) {
      TUTTI_RETURN_IF_ERROR(
          reader_.Read(rows_[static_cast<size_t>(offset + r)], batch->x + r * elements, batch->labels + r));
      batch->weights[r] = offset + r < batch->valid ? 1.0f : 0.0f;
    }
    return OkStatus();
  }

 private:
  int64_t RowAt(int64_t position) {
    const int64_t epoch = position / counts_.data_set_size;
    if (!order_ || order_->epoch() != epoch) {
      order_.emplace(EpochOrder::Options{
          .seed = options_.seed, .epoch = epoch, .size = counts_.data_set_size, .shuffle = options_.shuffle});
    }
    return (*order_)(position % counts_.data_set_size);
  }

  SampleReader reader_;
  const LoaderOptions options_;
  const StepPlanCounts counts_;
  std::vector<int64_t> rows_;  // of the global batch
  std::optional<EpochOrder> order_;
};

class PrefetchLoader final : public Loader {
 public:
  PrefetchLoader(const Dataset& dataset, const LoaderOptions& options, const StepPlanCounts& counts,
                 std::span<std::byte> memory)
      : counts_(counts), slots_(static_cast<size_t>(options.prefetch) + 1) {
    const int64_t rows = LocalRows(options, counts), elements = dataset.sample_elements();
    std::byte* at = memory.data();
    for (Slot& slot : slots_) {
      slot.batch.rows = rows;
      slot.batch.x = reinterpret_cast<float*>(at);
      at += Aligned(rows * elements * int64_t{sizeof(float)});
      slot.batch.labels = reinterpret_cast<int32_t*>(at);
      at += Aligned(rows * int64_t{sizeof(int32_t)});
      slot.batch.weights = reinterpret_cast<float*>(at);
      at += Aligned(rows * int64_t{sizeof(float)});
    }
    for (int32_t i = 0; i < options.threads; ++i) fillers_.emplace_back(dataset, options, counts);
    for (Filler& filler : fillers_) threads_.emplace_back([this, &filler] { FillLoop(filler); });
  }

  ~PrefetchLoader() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Seek(int64_t completed_step) override {
    TUTTI_CHECK(completed_step >= 0 && completed_step <= counts_.steps, "step {} of {}", completed_step, counts_.steps);
    std::unique_lock lock(mutex_);
    paused_ = true;
    changed_.wait(lock, [this] { return filling_ == 0; });
    for (Slot& slot : slots_) slot.ready = false;
    floor_ = next_fill_ = next_take_ = completed_step + 1;
    paused_ = false;
    changed_.notify_all();
  }

  StatusOr<const Batch*> Next() override {
    std::unique_lock lock(mutex_);
    if (next_take_ > counts_.steps) return OutOfRange("the job has {} steps", counts_.steps);
    if (floor_ != next_take_) {  // the caller is done with the batch before
      SlotOf(floor_).ready = false;
      floor_ = next_take_;
      changed_.notify_all();
    }
    Slot& slot = SlotOf(next_take_);
    changed_.wait(lock, [&] { return slot.ready; });
    if (!slot.status.ok()) return slot.status;
    ++next_take_;
    return &slot.batch;
  }

 private:
  struct Slot {
    Batch batch;
    Status status;
    bool ready = false;  // filled and not yet given back
  };
  Slot& SlotOf(int64_t step) { return slots_[static_cast<size_t>(step) % slots_.size()]; }
  bool MayFill() const {
    return !paused_ && next_fill_ <= counts_.steps && next_fill_ < floor_ + static_cast<int64_t>(slots_.size());
  }

  void FillLoop(Filler& filler) {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || MayFill(); });
      if (stopping_) return;
      const int64_t step = next_fill_++;
      Slot& slot = SlotOf(step);
      ++filling_;
      lock.unlock();
      Status status = filler.Fill(step, &slot.batch);
      lock.lock();
      --filling_;
      slot.status = std::move(status);
      slot.ready = true;
      changed_.notify_all();
    }
  }

  const StepPlanCounts counts_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;  // step k lives in slot k mod size
  int64_t floor_ = 1;        // lowest step whose slot is held: the one that the caller has, else the next one
  int64_t next_fill_ = 1;
  int64_t next_take_ = 1;
  int filling_ = 0;
  bool paused_ = false;
  bool stopping_ = false;
  std::deque<Filler> fillers_;  // one a thread, whole before the threads start: a late thread allocates nothing
  std::vector<std::thread> threads_;
};

}  // namespace

int64_t Loader::BufferBytes(const LoaderOptions& options, const StepPlanCounts& counts, int64_t sample_elements) {
  return (int64_t{options.prefetch} + 1) * SlotBytes(LocalRows(options, counts), sample_elements);
}

StatusOr<std::unique_ptr<Loader>> Loader::Create(const Dataset& dataset, const LoaderOptions& options,
                                                 const StepPlanCounts& counts, std::span<std::byte> memory) {
  if (options.shards < 1 || counts.global_batch % options.shards != 0) {
    return InvalidArgument("{} shards do not divide the global batch of {}", options.shards, counts.global_batch);
  }
  if (options.first_shard < 0 || options.first_shard >= options.last_shard || options.last_shard > options.shards) {
    return InvalidArgument("a rank owns shards [{}, {}) of {}: at least one is needed", options.first_shard,
                           options.last_shard, options.shards);
  }
  if (options.threads < 1 || options.prefetch < 1) {
    return InvalidArgument("data.threads ({}) and data.prefetch ({}) must be at least 1", options.threads,
                           options.prefetch);
  }
  if (options.normalization.std == 0) return InvalidArgument("data.std must not be 0");
  if (counts.data_set_size != dataset.size()) {
    return InvalidArgument("planned for {} samples, the data set has {}", counts.data_set_size, dataset.size());
  }
  TUTTI_CHECK(static_cast<int64_t>(memory.size()) >= BufferBytes(options, counts, dataset.sample_elements()));
  TUTTI_CHECK(reinterpret_cast<uintptr_t>(memory.data()) % kAlignment == 0);
  return std::make_unique<PrefetchLoader>(dataset, options, counts, memory);
}

EvalReader::EvalReader(const Dataset& dataset, Normalization normalization, int64_t cell_rows)
    : reader_(dataset, normalization), cell_rows_(cell_rows) {
  TUTTI_CHECK(cell_rows >= 1);
}

Status EvalReader::Fill(int64_t cell, float* x, int32_t* labels, float* weights) {
  const EvalPlan plan{.size = reader_.dataset().size(), .cell_rows = cell_rows_};
  TUTTI_CHECK(cell >= 0 && cell < plan.cells(), "cell {} of {}", cell, plan.cells());
  const int64_t elements = reader_.dataset().sample_elements(), valid = plan.ValidRows(cell);
  for (int64_t r = 0; r < valid; ++r) {
    TUTTI_RETURN_IF_ERROR(reader_.Read(cell * cell_rows_ + r, x + r * elements, labels + r));
    weights[r] = 1.0f;
  }
  std::fill(x + valid * elements, x + cell_rows_ * elements, 0.0f);
  std::fill(labels + valid, labels + cell_rows_, 0);
  std::fill(weights + valid, weights + cell_rows_, 0.0f);
  return OkStatus();
}

}  // namespace tutti
