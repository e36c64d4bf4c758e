// Worlds of trainers in one process: a thread per rank over the local communicator, on small data made by a formula.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "base/process.h"
#include "engine/comm/local.h"
#include "engine/train/trainer.h"
#include "tests/engine/data/data_testing.h"
#include "tutti/v1/rank.pb.h"

namespace tutti::testing {

// `rows` images of (1, side, side); pixel i of row r is (7 r + 13 i + 3 r i) mod 256, the label r mod classes.
inline void FillFormula(IdxFolder* folder, int rows, int side, int classes) {
  std::string pixels, labels;
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < side * side; ++i) pixels += static_cast<char>((r * 7 + i * 13 + r * i * 3) % 256);
    labels += static_cast<char>(r % classes);
  }
  const uint32_t n = static_cast<uint32_t>(rows), s = static_cast<uint32_t>(side);
  folder->Images(IdxBytes(8, {n, s, s}, pixels));
  folder->Labels(IdxBytes(8, {n}, labels));
}

// A model text, one word a layer: "conv:4:3:1" (channels, kernel, padding; no bias), "bn", "relu", "pool",
// "dropout:0.5", "flatten", "dense:16", "res:16" (a residual block of dense 16 and relu).
void AddLayers(const std::string& text, v1::Model* model);

// 64 formula rows of 8x8 in 4 classes, batch 16, one shard, unshuffled, SGD 0.1 with momentum 0.9; everything a test
// may change.
v1::JobSpec SmallJob(const IdxFolder& data, const std::string& layers, const std::string& directory);

struct RankRun {
  StatusOr<v1::RankResult> result = Internal("did not run");
  std::vector<v1::RankEvent> events;
  bool failed_in_collective = false;
  std::string where;

  std::vector<v1::StepRecord> steps() const;
  std::vector<v1::EvalRecord> evaluations() const;
};

struct WorldOptions {
  int ranks = 1;
  int64_t generation = 1;
  int64_t base_step = 0;                           // fence of this generation
  std::vector<std::pair<int64_t, int64_t>> bases = {};  // of earlier ones
  // Called on each rank's thread for each event, before the next step.
  std::function<void(int rank, const v1::RankEvent&, Communicator&, ControlBox&)> on_event = {};
};

v1::RankConfig MakeConfig(const v1::JobSpec& spec, const WorldOptions& options, int rank);
std::vector<RankRun> RunWorld(const v1::JobSpec& spec, const WorldOptions& options);

}  // namespace tutti::testing
