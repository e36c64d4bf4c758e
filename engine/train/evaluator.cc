#include "engine/train/evaluator.h"

#include <algorithm>

namespace tutti {

Evaluator::Evaluator(const v1::RankConfig& config, const Dataset& dataset, Executable& executable, RunState& state)
    : exe_(executable),
      state_(state),
      plan_{.size = dataset.size(), .cell_rows = config.spec().batch().micro(), .ranks = config.world_size()},
      rank_(config.rank()) {
  const Normalization normalization{config.spec().data().mean(), config.spec().data().std()};
  for (int lane = 0; lane < exe_.lanes().lanes(); ++lane)
    readers_.emplace_back(dataset, normalization, plan_.cell_rows);
  statuses_.resize(readers_.size());
  for (int32_t r = 0; r < plan_.ranks; ++r) {
    most_cells_ = std::max(most_cells_, plan_.FirstCell(r + 1) - plan_.FirstCell(r));
  }
  own_.resize(2 * most_cells_);
  all_.resize(2 * most_cells_ * plan_.ranks);
}

StatusOr<v1::EvalRecord> Evaluator::Run(int64_t step) {
  state_.Enter(v1::PHASE_EVALUATING, "evaluation");
  const Nanos start = state_.clock.Monotonic();
  TUTTI_RETURN_IF_ERROR(RunCells());
  TUTTI_RETURN_IF_ERROR(state_.Collective(state_.comm.AllGather(
      own_.data(), all_.data(), ElementCount(static_cast<int64_t>(own_.size())), CommType::kF32)));
  double loss = 0, correct = 0;
  for (int32_t r = 0; r < plan_.ranks; ++r) {
    const float* cells = all_.data() + 2 * most_cells_ * r;
    for (int64_t c = 0; c < plan_.FirstCell(r + 1) - plan_.FirstCell(r); ++c) {
      loss += cells[2 * c];
      correct += cells[2 * c + 1];
    }
  }
  v1::EvalRecord record;
  record.set_step(step);
  record.set_samples(plan_.size);
  record.set_loss(loss / static_cast<double>(plan_.size));
  record.set_accuracy(correct / static_cast<double>(plan_.size));
  record.set_seconds(MillisBetween(start, state_.clock.Monotonic()) / 1e3);
  return record;
}

Status Evaluator::RunCells() {
  const int64_t first = plan_.FirstCell(rank_), last = plan_.FirstCell(rank_ + 1);
  const int lanes = exe_.lanes().lanes();
  for (int64_t base = first; base < last; base += lanes) {
    exe_.lanes().RunAll([&](int lane) {
      const int64_t cell = base + lane;
      statuses_[lane] = OkStatus();
      if (cell >= last) return;
      BoundProgram& bound = exe_.evaluation(lane);
      const Executable::CellInputs inputs = exe_.inputs(lane);
      statuses_[lane] = readers_[lane].Fill(cell, inputs.x, inputs.labels, inputs.weights);
      if (!statuses_[lane].ok()) return;
      exe_.scalars(lane).inverse_valid = 1;
      bound.program->Run(bound.memory, exe_.workspace(lane), {});
      own_[2 * (cell - first)] = *static_cast<const float*>(bound.memory[bound.loss_sum]);
      own_[2 * (cell - first) + 1] = *static_cast<const float*>(bound.memory[bound.correct]);
    });
    for (const Status& status : statuses_) TUTTI_RETURN_IF_ERROR(status);
    state_.BeatIfDue();
  }
  return OkStatus();
}

}  // namespace tutti
