#include "engine/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace tutti {
namespace {

double Factor(const v1::Schedule& s, int64_t update, int64_t total_updates) {
  const int64_t warmup = s.warmup_steps();
  if (update <= warmup) return static_cast<double>(update) / static_cast<double>(warmup);
  const int64_t after = update - warmup;
  const double length = static_cast<double>(std::max<int64_t>(total_updates - warmup, 1));
  const double progress = std::min(static_cast<double>(after) / length, 1.0);
  switch (s.kind()) {
    case v1::SCHEDULE_KIND_COSINE:
      return s.final_factor() + (1 - s.final_factor()) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
    case v1::SCHEDULE_KIND_LINEAR:
      return 1 - (1 - s.final_factor()) * progress;
    case v1::SCHEDULE_KIND_STEP:
      return std::pow(s.step_gamma(), static_cast<double>((after - 1) / std::max<int64_t>(s.step_every(), 1)));
    default:
      return 1;
  }
}

}  // namespace

double LearningRate(const v1::Optimizer& optimizer, const v1::Schedule& schedule, int64_t update,
                    int64_t total_updates) {
  TUTTI_CHECK(update >= 1, "updates count from 1, got {}", update);
  return optimizer.learning_rate() * Factor(schedule, update, total_updates);
}

}  // namespace tutti
