// The Update program: optimizer steps as flat fused loops over stored tensors, with the reduction that precedes them
// (finiteness and norm of the whole gradient in one pass).
//
// Work is cut into blocks of at most 4096 elements of one tensor in stored layout; blocks are independent, so any
// number of lanes and threads gives the same bits. Conventions are PyTorch's:
//   sgd    g += wd p;  v = mu v + g;  p -= lr (nesterov ? g + mu v : v)        no momentum: p -= lr g
//   adam   g += wd p;  m += (1 - b1)(g - m);  v = b2 v + (1 - b2) g^2;  p -= lr / (1 - b1^t) * m / (sqrt(v / (1 -
//   b2^t)) + eps) adamw  p *= 1 - lr wd;  then as adam without wd
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/nn/model.h"
#include "tutti/v1/job.pb.h"

namespace tutti {

inline constexpr int64_t kNormBlock = 4096;  // elements

// Names of the tensors that the optimizer keeps for each parameter: {}, {"momentum"} or {"m", "v"}. All start at zero.
std::vector<std::string_view> OptimizerStates(const v1::Optimizer& optimizer);

// Whether weight decay applies: biases and normalisation parameters are left out unless decay_bias_and_norm.
bool HasWeightDecay(const v1::Optimizer& optimizer, const ParameterInfo& parameter);

struct UpdateTensor {
  float* parameter;
  const float* gradient;         // averaged over the global batch
  std::array<float*, 2> states;  // as OptimizerStates names them
  int64_t elements;              // stored, padding included (zero stays zero)
  bool decay;
};

struct GradientMeasure {
  double norm = 0;  // of the whole gradient, before clipping
  bool finite = true;
  int first_bad_tensor = -1;  // index of the first tensor with a non-finite element
};

struct UpdateScalars {
  int64_t update = 1;  // t, counts applied updates from 1
  double learning_rate = 0;
  double gradient_scale = 1;  // of clipping
};

class UpdateProgram {
 public:
  UpdateProgram(const v1::Optimizer& optimizer, std::vector<UpdateTensor> tensors);

  int64_t blocks() const { return static_cast<int64_t>(blocks_.size()); }
  // Blocks of tensor `t`: from .first up to .second.
  std::pair<int64_t, int64_t> BlocksOf(int t) const { return {first_block_[t], first_block_[t + 1]}; }
  // One pass over blocks [first, last) with `threads` OpenMP threads; distinct ranges may run side by side.
  void Measure(int64_t first, int64_t last, int threads);
  // By block, what Measure finds; several ranks may share the work and put each other's results here.
  std::span<double> sums() { return sums_; }
  // After all blocks were measured: their sum in block order.
  GradientMeasure Measured() const;
  void Apply(int64_t first, int64_t last, const UpdateScalars& scalars, int threads);

 private:
  struct Block {
    int32_t tensor;
    int32_t elements;
    int64_t offset;
  };
  v1::Optimizer optimizer_;
  std::vector<UpdateTensor> tensors_;
  std::vector<Block> blocks_;
  std::vector<int64_t> first_block_;  // by tensor, and the end
  std::vector<double> sums_;          // by block: sum of squares; NaN: a non-finite element
};

// Factor that brings a gradient of norm `norm` to at most `clip_norm` (0: no clipping), PyTorch's clip / (norm + 1e-6)
// capped at 1.
double ClipScale(double clip_norm, double norm);

}  // namespace tutti
