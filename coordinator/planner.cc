#include "coordinator/planner.h"

#include "engine/plan/plan.h"

namespace tutti::coordinator {
namespace {

DataShape ShapeOf(const v1::DataFacts& data) {
  return {.sample_dims = {data.sample_dims().begin(), data.sample_dims().end()},
          .train_samples = data.train_samples(),
          .eval_samples = data.eval_samples(),
          .resident_bytes = data.resident_bytes()};
}

SlotShape ShapeOf(const SlotFacts& slot) {
  return {.memory_bytes = slot.memory_bytes, .cores = slot.cores, .flops_per_core = 0};
}

class EnginePlanner : public Planner {
 public:
  StatusOr<v1::TrainPlan> Plan(const v1::JobSpec& spec, const v1::DataFacts& data,
                               const SlotFacts& slot) const override {
    return PlanJob(spec, ShapeOf(data), ShapeOf(slot));
  }
  Status CheckFits(const v1::JobSpec& spec, const v1::DataFacts& data, const SlotFacts& slot,
                   const v1::TrainPlan& plan) const override {
    return tutti::CheckFits(spec, ShapeOf(data), ShapeOf(slot), plan);
  }
};

}  // namespace

std::unique_ptr<Planner> NewEnginePlanner() { return std::make_unique<EnginePlanner>(); }

}  // namespace tutti::coordinator
