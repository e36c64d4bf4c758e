// From the job file's layers to graphs. Pure; no device library.
//
// Inputs of both graphs: "x" (rows, sample dims) f32, "labels" (rows) i32, "weights" (rows) f32 (0: a row that tops up
// the last batch), host scalars "inverse_valid" f32 and, where the model has dropout, "seed" u64, "batch_index" i64,
// "first_row" i64 (the cell's first row in the global batch); then parameters ("layers.0.weight") and, in the
// evaluation graph, statistics
// ("layers.1.running_mean"). Outputs: "loss_sum" (sum over rows of weight * loss, f32), "correct" (number of right
// rows), and in the training graph "statistic/<name>": the cell's own mean or biased variance that feeds the running
// statistic <name>.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/graph/graph.h"
#include "engine/ops/op.h"
#include "tutti/v1/job.pb.h"
#include "tutti/v1/plan.pb.h"

namespace tutti {

struct ParameterInfo {
  std::string name;  // "layers.0.weight"
  TensorType type;
  int64_t fan_in =
      0;              // > 0: uniform in [-1/sqrt(fan_in), 1/sqrt(fan_in)) (PyTorch's default for dense and convolution)
  float initial = 0;  // with fan_in 0: this value
  bool is_bias_or_norm = false;
};

struct StatisticInfo {
  std::string name;  // "layers.1.running_mean"
  TensorType type;   // (C)
  float initial = 0;
  double momentum = 0.1;         // running = (1 - momentum) * running + momentum * value
  bool is_variance = false;      // the cell gives the biased variance; running variance takes n / (n - 1) of it
  int64_t samples_per_cell = 0;  // n: values that one channel of one cell averages over
};

struct Model {
  Graph training;                         // forward only: engine/passes differentiates it
  Graph evaluation;                       // dropout absent, batch norm by running statistics
  std::vector<ParameterInfo> parameters;  // in layer order; tied ones once
  std::vector<StatisticInfo> statistics;
  std::vector<v1::LayerPlan> layers;  // flops and parameters of each top-level layer
  int64_t parameter_count() const;
};

// `rows`: samples of one cell; `sample_dims`: of one sample, (C, H, W). INVALID_ARGUMENT names the layer's path, what
// it was given and what it expects.
StatusOr<Model> BuildModel(const v1::JobSpec& spec, std::span<const int64_t> sample_dims, int64_t rows,
                           const OpRegistry& ops);

// Fills `plain` (logical order) with the parameter's first values: a pure function of (seed, name, element index).
void InitialValues(const ParameterInfo& parameter, uint64_t seed, std::span<float> plain);

}  // namespace tutti
