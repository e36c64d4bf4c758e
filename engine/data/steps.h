// Which steps a job has and which positions of the endless stream of epochs each one consumes. Pure arithmetic:
// planner, loader, trainer and verifier agree because they all ask here.
//
// Position p of the stream is sample p mod N of epoch p div N, in that epoch's order (permutation.h). Step k = 1, 2,
// ... consumes the positions [(k - 1) * B, k * B). Epochs are not aligned to steps. Only the job's last step may need
// more positions than are left: it is topped up by the next positions of the stream with weight zero.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/status.h"

namespace tutti {

struct StepLimits {
  int64_t epochs = 0;  // exactly one of epochs and steps is > 0 (job.proto, Train)
  int64_t steps = 0;
  int64_t global_batch = 0;   // B >= 1
  int64_t data_set_size = 0;  // N >= 1
};

struct StepPlanCounts {
  int64_t steps = 0;            // of the whole job: ceil(samples / B)
  int64_t samples = 0;          // valid ones of the whole job: epochs * N, or steps * B
  int64_t steps_per_epoch = 0;  // full global batches in N samples, >= 1
  int64_t global_batch = 0;
  int64_t data_set_size = 0;

  int64_t FirstPosition(int64_t step) const { return (step - 1) * global_batch; }
  int64_t ValidSamples(int64_t step) const {  // of the whole global batch; 0 past the end
    return std::clamp<int64_t>(samples - FirstPosition(step), 0, global_batch);
  }
  int64_t ConsumedAfter(int64_t step) const { return std::min(step * global_batch, samples); }
  int64_t EpochOf(int64_t step) const {
    return FirstPosition(step) / data_set_size + 1;
  }  // from 1, of its first sample
};

// INVALID_ARGUMENT: neither or both of epochs and steps, sizes below 1, numbers that overflow, or an epoch without a
// single full global batch ("0 steps per epoch: 5 samples < 8").
inline StatusOr<StepPlanCounts> CountSteps(const StepLimits& limits) {
  const int64_t b = limits.global_batch, n = limits.data_set_size;
  if ((limits.epochs > 0) == (limits.steps > 0) || limits.epochs < 0 || limits.steps < 0) {
    return InvalidArgument("exactly one of train.epochs ({}) and train.steps ({}) must be positive", limits.epochs,
                           limits.steps);
  }
  if (b < 1) return InvalidArgument("the global batch must be at least 1, found {}", b);
  if (n < b) return InvalidArgument("0 steps per epoch: {} samples < {}", n, b);
  int64_t samples = 0;
  const bool overflow = limits.epochs > 0 ? __builtin_mul_overflow(limits.epochs, n, &samples)
                                          : __builtin_mul_overflow(limits.steps, b, &samples);
  if (overflow || samples > (int64_t{1} << 62)) return InvalidArgument("the job has more than 2^62 samples");
  return StepPlanCounts{.steps = (samples + b - 1) / b,
                        .samples = samples,
                        .steps_per_epoch = n / b,
                        .global_batch = b,
                        .data_set_size = n};
}

}  // namespace tutti
