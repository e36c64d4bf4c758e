// A toy job whose state is a known function of the step, so that whatever is loaded can be checked by formula.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "engine/checkpoint/store.h"
#include "engine/checkpoint/writer.h"
#include "engine/data/dataset.h"
#include "tutti/v1/checkpoint.pb.h"
#include "tutti/v1/job.pb.h"

namespace tutti::testing {

// Element i of tensor number t at `step`.
inline float ValueAt(int64_t step, size_t t, size_t i) {
  return static_cast<float>(step) + static_cast<float>(t) * 0.25f + static_cast<float>(i % 7);
}

struct ToyTensor {
  std::string name;
  v1::TensorRole role;
  std::vector<int64_t> shape;
};

// Names are not in order, sizes differ: the partition has something to do.
inline std::vector<ToyTensor> ToyTensors() {
  return {{"layers.2.weight", v1::TENSOR_ROLE_PARAMETER, {6, 5}},
          {"layers.0.weight", v1::TENSOR_ROLE_PARAMETER, {3, 4}},
          {"layers.0.bias", v1::TENSOR_ROLE_PARAMETER, {4}},
          {"statistic/layers.1.running_mean", v1::TENSOR_ROLE_STATISTIC, {4}},
          {"optimizer/layers.0.weight/m", v1::TENSOR_ROLE_OPTIMIZER_STATE, {3, 4}},
          {"scalar", v1::TENSOR_ROLE_PARAMETER, {}}};
}

inline size_t ElementsOf(const ToyTensor& tensor) {
  size_t elements = 1;
  for (int64_t dim : tensor.shape) elements *= static_cast<size_t>(dim);
  return elements;
}

class ToyRank {
 public:
  // `step` lives as long as the rank: the tensors are read at the value that it has when Begin is called.
  ToyRank(const CheckpointStore& store, AsyncCheckpointWriter::Options options, std::vector<ToyTensor> tensors,
          const int64_t* step)
      : tensors_(std::move(tensors)) {
    std::vector<TensorRef> refs;
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const size_t elements = ElementsOf(tensors_[t]);
      refs.push_back({tensors_[t].name, tensors_[t].role, tensors_[t].shape, [=](float* plain) {
                        for (size_t i = 0; i < elements; ++i) plain[i] = ValueAt(*step, t, i);
                      }});
    }
    writer_ = AsyncCheckpointWriter::Create(store, options, std::move(refs)).value();
  }
  AsyncCheckpointWriter* operator->() { return writer_.get(); }

 private:
  std::vector<ToyTensor> tensors_;
  std::unique_ptr<AsyncCheckpointWriter> writer_;
};

inline Ledger ToyLedger(int64_t steps) {
  Ledger ledger;
  for (int64_t step = 1; step <= steps; ++step) ledger.Append(step, static_cast<uint64_t>(step) * 77, 8);
  return ledger;
}

inline v1::Manifest ToyManifest(int64_t step, Generation generation, int64_t base) {
  v1::Manifest manifest;
  manifest.set_step(step);
  manifest.set_position(8 * step);
  manifest.set_data_digest(DigestText(99));
  manifest.mutable_spec()->mutable_train()->set_seed(3);
  manifest.mutable_spec()->mutable_batch()->set_global(8);
  v1::GenerationBase* own = manifest.add_bases();
  own->set_generation(generation.value());
  own->set_base_step(base);
  return manifest;
}

// One generation of the toy job: all of its ranks live in this process.
class ToyGeneration {
 public:
  struct Options {
    std::string job = "job-a";
    std::vector<ToyTensor> tensors = ToyTensors();
    int64_t keep = 100;
    int64_t base = 0;  // step that the generation started from
  };
  ToyGeneration(const std::string& directory, int64_t generation, int32_t ranks)
      : ToyGeneration(directory, generation, ranks, Options()) {}
  ToyGeneration(const std::string& directory, int64_t generation, int32_t ranks, const Options& toy)
      : store_(CheckpointStore::Open(directory).value()), self_{toy.job, Generation(generation)}, base_(toy.base) {
    for (int32_t rank = 0; rank < ranks; ++rank) {
      AsyncCheckpointWriter::Options options;
      options.self = self_;
      options.rank = Rank(rank);
      options.world_size = ranks;
      options.receipt_timeout_ms = 20'000;
      options.retention.keep = toy.keep;
      options.retention.base = Step(toy.base);
      ranks_.push_back(std::make_unique<ToyRank>(store_, options, toy.tensors, &step_));
    }
  }

  // All ranks write `step`; rank 0's result, once all are done.
  CheckpointResult Save(int64_t step, bool wait_for_commit = true) {
    Begin(step, wait_for_commit);
    CheckpointResult result;
    for (size_t r = ranks_.size(); r-- > 0;) result = (*ranks_[r])->Finish().value();
    return result;
  }
  void Begin(int64_t step, bool wait_for_commit = true) {
    step_ = step;
    for (auto& rank : ranks_)
      (*rank)->Begin(ToyManifest(step, self_.generation, base_), ToyLedger(step), wait_for_commit);
  }
  ToyRank& rank(size_t r) { return *ranks_[r]; }
  const CheckpointStore& store() const { return store_; }
  const JobIdentity& self() const { return self_; }
  std::string Folder(int64_t step) const { return store_.StepFolder(self_, Step(step)); }

 private:
  CheckpointStore store_;
  JobIdentity self_;
  int64_t base_;
  int64_t step_ = 0;
  std::vector<std::unique_ptr<ToyRank>> ranks_;
};

inline void ExpectStateOf(int64_t step, const LoadedCheckpoint& loaded,
                          const std::vector<ToyTensor>& tensors = ToyTensors()) {
  ASSERT_EQ(loaded.info.step, Step(step));
  ASSERT_EQ(loaded.tensors.size(), tensors.size());
  EXPECT_EQ(loaded.ledger.chain(), ToyLedger(step).chain());
  for (size_t t = 0; t < tensors.size(); ++t) {
    const LoadedTensor& tensor = loaded.tensors.at(tensors[t].name);
    EXPECT_EQ(tensor.shape, tensors[t].shape);
    EXPECT_EQ(tensor.role, tensors[t].role);
    ASSERT_EQ(tensor.data.size(), ElementsOf(tensors[t]));
    size_t wrong = 0;
    for (size_t i = 0; i < tensor.data.size(); ++i) wrong += tensor.data[i] != ValueAt(step, t, i);
    EXPECT_EQ(wrong, 0u) << tensors[t].name;
  }
}

// True once `condition` holds; false when it does not within `timeout`.
inline bool WaitFor(const std::function<bool()>& condition,
                    std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

inline std::vector<std::string> NamesIn(const std::string& directory) { return ListDirectory(directory).value(); }

inline TempDirectory NewDirectory() { return TempDirectory::Create("tutti-checkpoint-").value(); }

}  // namespace tutti::testing
