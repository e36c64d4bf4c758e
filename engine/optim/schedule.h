// Learning rate as a pure function of the number of applied updates: nothing to save, nothing to be one step behind
// after a resume.
#pragma once

#include <cstdint>

#include "tutti/v1/job.pb.h"

namespace tutti {

// Rate of update `update` = 1, 2, ... of a job of `total_updates`. Warm-up: factor update / warmup_steps while update
// <= warmup_steps. After it, with progress p = (update - warmup) / (total - warmup), clamped to 1:
//   cosine  final + (1 - final) * (1 + cos(pi p)) / 2        linear  1 - (1 - final) p
//   step    gamma ^ floor((update - 1 - warmup) / every)     constant  1
double LearningRate(const v1::Optimizer& optimizer, const v1::Schedule& schedule, int64_t update,
                    int64_t total_updates);

}  // namespace tutti
