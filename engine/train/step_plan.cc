#include "engine/train/step_plan.h"

#include <fmt/core.h>

#include "base/check.h"

namespace tutti {

StepPlan MakeStepPlan(const v1::Batch& batch, const TreeReducer& tree) {
  TUTTI_CHECK(batch.global() % (tree.shards() * batch.micro()) == 0, "batch {} micro {} shards {}", batch.global(),
              batch.micro(), tree.shards());
  const int64_t shard_rows = batch.global() / tree.shards();
  const int32_t first = tree.local_shards().begin;
  StepPlan plan;
  plan.micro_batches = static_cast<int32_t>(shard_rows / batch.micro());
  plan.local_cells = tree.local_shards().size() * plan.micro_batches;
  for (int32_t w = 0; w < tree.waves(); ++w) {
    StepWave& wave = plan.waves.emplace_back();
    const ShardRange shards = tree.WaveShards(w);
    for (int32_t shard = shards.begin; shard < shards.end; ++shard) {
      std::vector<CellCall>& lane = wave.lanes.emplace_back();
      for (int32_t m = 0; m < plan.micro_batches; ++m) {
        lane.push_back({.shard = shard,
                        .micro_batch = m,
                        .slot = tree.SlotOf(shard),
                        .cell = (shard - first) * plan.micro_batches + m,
                        .first_row = shard * shard_rows + m * batch.micro(),
                        .local_row = (shard - first) * shard_rows + m * batch.micro()});
      }
    }
    const auto merges = tree.MergesAfterWave(w);
    wave.merges.assign(merges.begin(), merges.end());
  }
  return plan;
}

std::string Print(const StepPlan& plan) {
  std::string text;
  for (size_t w = 0; w < plan.waves.size(); ++w) {
    const StepWave& wave = plan.waves[w];
    for (size_t lane = 0; lane < wave.lanes.size(); ++lane) {
      for (const CellCall& call : wave.lanes[lane]) {
        text += fmt::format("wave {} lane {}: cell shard {} micro {} rows {} -> slot {}\n", w, lane, call.shard,
                            call.micro_batch, call.first_row, call.slot);
      }
    }
    for (const TreeMerge& merge : wave.merges) {
      text += fmt::format("wave {} merge: slot {} += slot {}\n", w, merge.into, merge.from);
    }
  }
  return text + "reduce, footer, update\n";
}

}  // namespace tutti
