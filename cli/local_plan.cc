#include "cli/local_plan.h"

#include <unistd.h>

#include <algorithm>

#include "base/process.h"
#include "engine/plan/plan.h"

namespace tutti::cli {
namespace {

SlotShape SlotHere(const v1::JobSpec& spec) {
  const int64_t ranks = std::max<int64_t>(1, spec.resources().ranks());
  const int64_t memory = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  const auto cores = static_cast<int32_t>(std::max<int64_t>(1, static_cast<int64_t>(AllowedCores().size()) / ranks));
  return {.memory_bytes = memory / ranks,
          .cores = spec.resources().cores_per_rank() > 0 ? spec.resources().cores_per_rank() : cores,
          .flops_per_core = 0};
}

}  // namespace

StatusOr<LocalPlan> PlanHere(const v1::JobSpec& spec, const v1::DataFacts& data) {
  const DataShape shape{.sample_dims = {data.sample_dims().begin(), data.sample_dims().end()},
                        .train_samples = data.train_samples(),
                        .eval_samples = data.eval_samples(),
                        .resident_bytes = data.resident_bytes()};
  const SlotShape slot = SlotHere(spec);
  TUTTI_ASSIGN_OR_RETURN(v1::TrainPlan plan, PlanJob(spec, shape, slot));
  const Status fits = CheckFits(spec, shape, slot, plan);
  return LocalPlan{.plan = std::move(plan), .slot_bytes = slot.memory_bytes, .fits = fits};
}

}  // namespace tutti::cli
