#include "engine/optim/update.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace tutti {
namespace {

constexpr int kLanes = 16;

// Lanes are explicit, so that the loop vectorises without a change of the order of additions.
// Sum of squares with 16 running lanes; may overflow to infinity although all elements are finite.
void LaneSquares(const float* g, int64_t n, float* lanes) {
  float sums[kLanes] = {};
  for (int64_t i = 0; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) sums[j] += g[i + j] * g[i + j];
  }
  for (int64_t i = n / kLanes * kLanes; i < n; ++i) sums[i % kLanes] += g[i] * g[i];
  for (int j = 0; j < kLanes; ++j) lanes[j] = sums[j];
}

// NaN when an element is not finite. The sum in f32 is exact enough (256 additions a lane); where it overflows the
// block is summed again in f64, which no f32 square can overflow.
double BlockSquares(const float* g, int64_t n) {
  float lanes[kLanes] = {};
  LaneSquares(g, n, lanes);
  double sum = 0;
  for (float lane : lanes) sum += lane;
  if (std::isfinite(sum)) [[likely]]
    return sum;
  sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(g[i]) * g[i];
  return std::isfinite(sum) ? sum : std::numeric_limits<double>::quiet_NaN();
}

struct Constants {
  float rate = 0;   // sgd: lr; adam: lr / (1 - b1^t)
  float scale = 1;  // of the gradient
  float l2 = 0;
  float keep = 1;  // adamw: 1 - lr wd
  float momentum = 0;
  float blend1 = 0;  // 1 - b1
  float beta2 = 0;
  float blend2 = 0;        // 1 - b2
  float inverse_root = 1;  // 1 / sqrt(1 - b2^t)
  float epsilon = 0;
};

void PlainSgd(float* __restrict p, const float* __restrict g, int64_t n, const Constants& constants) {
  const Constants c = constants;
  for (int64_t i = 0; i < n; ++i) p[i] -= c.rate * (g[i] * c.scale + c.l2 * p[i]);
}

void MomentumSgd(float* __restrict p, const float* __restrict g, float* __restrict v, int64_t n,
                 const Constants& constants) {
  const Constants c = constants;
  for (int64_t i = 0; i < n; ++i) {
    v[i] = c.momentum * v[i] + (g[i] * c.scale + c.l2 * p[i]);
    p[i] -= c.rate * v[i];
  }
}

void NesterovSgd(float* __restrict p, const float* __restrict g, float* __restrict v, int64_t n,
                 const Constants& constants) {
  const Constants c = constants;
  for (int64_t i = 0; i < n; ++i) {
    const float d = g[i] * c.scale + c.l2 * p[i];
    v[i] = c.momentum * v[i] + d;
    p[i] -= c.rate * (d + c.momentum * v[i]);
  }
}

void Adam(float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v, int64_t n,
          const Constants& constants) {
  const Constants c = constants;
  for (int64_t i = 0; i < n; ++i) {
    const float kept = p[i] * c.keep;
    const float d = g[i] * c.scale + c.l2 * kept;
    m[i] += c.blend1 * (d - m[i]);
    v[i] = c.beta2 * v[i] + c.blend2 * d * d;
    p[i] = kept - c.rate * m[i] / (__builtin_sqrtf(v[i]) * c.inverse_root + c.epsilon);
  }
}

Constants MakeConstants(const v1::Optimizer& o, bool decay, const UpdateScalars& s) {
  Constants c;
  c.scale = static_cast<float>(s.gradient_scale);
  c.momentum = static_cast<float>(o.momentum());
  const double wd = decay ? o.weight_decay() : 0;
  if (o.kind() == v1::OPTIMIZER_KIND_ADAMW) {
    c.keep = static_cast<float>(1 - s.learning_rate * wd);
  } else {
    c.l2 = static_cast<float>(wd);
  }
  if (o.kind() == v1::OPTIMIZER_KIND_SGD) {
    c.rate = static_cast<float>(s.learning_rate);
    return c;
  }
  const double t = static_cast<double>(s.update);
  c.rate = static_cast<float>(s.learning_rate / (1 - std::pow(o.beta1(), t)));
  c.inverse_root = static_cast<float>(1 / std::sqrt(1 - std::pow(o.beta2(), t)));
  c.blend1 = static_cast<float>(1 - o.beta1());
  c.beta2 = static_cast<float>(o.beta2());
  c.blend2 = static_cast<float>(1 - o.beta2());
  c.epsilon = static_cast<float>(o.epsilon());
  return c;
}

}  // namespace

std::vector<std::string_view> OptimizerStates(const v1::Optimizer& optimizer) {
  if (optimizer.kind() != v1::OPTIMIZER_KIND_SGD) return {"m", "v"};
  if (optimizer.momentum() > 0) return {"momentum"};
  return {};
}

bool HasWeightDecay(const v1::Optimizer& optimizer, const ParameterInfo& parameter) {
  return optimizer.weight_decay() > 0 && (optimizer.decay_bias_and_norm() || !parameter.is_bias_or_norm);
}

double ClipScale(double clip_norm, double norm) {
  if (clip_norm <= 0) return 1;
  return std::min(1.0, clip_norm / (norm + 1e-6));
}

UpdateProgram::UpdateProgram(const v1::Optimizer& optimizer, std::vector<UpdateTensor> tensors)
    : optimizer_(optimizer), tensors_(std::move(tensors)) {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    first_block_.push_back(blocks());
    for (int64_t at = 0; at < tensors_[t].elements; at += kNormBlock) {
      const int64_t n = std::min(kNormBlock, tensors_[t].elements - at);
      blocks_.push_back({static_cast<int32_t>(t), static_cast<int32_t>(n), at});
    }
  }
  first_block_.push_back(blocks());
  sums_.resize(blocks_.size());
}

void UpdateProgram::Measure(int64_t first, int64_t last, int threads) {
  TUTTI_CHECK(0 <= first && first <= last && last <= blocks());
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t b = first; b < last; ++b) {
    const Block& block = blocks_[b];
    sums_[b] = BlockSquares(tensors_[block.tensor].gradient + block.offset, block.elements);
  }
}

GradientMeasure UpdateProgram::Measured() const {
  GradientMeasure measure;
  double sum = 0;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    sum += sums_[b];
    if (std::isnan(sums_[b]) && measure.finite) {
      measure.finite = false;
      measure.first_bad_tensor = blocks_[b].tensor;
    }
  }
  measure.norm = std::sqrt(sum);
  return measure;
}

void UpdateProgram::Apply(int64_t first, int64_t last, const UpdateScalars& scalars, int threads) {
  TUTTI_CHECK(0 <= first && first <= last && last <= blocks());
  const Constants constants[2] = {MakeConstants(optimizer_, false, scalars), MakeConstants(optimizer_, true, scalars)};
  const bool sgd = optimizer_.kind() == v1::OPTIMIZER_KIND_SGD;
  const bool momentum = optimizer_.momentum() > 0;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t b = first; b < last; ++b) {
    const Block& block = blocks_[b];
    const UpdateTensor& t = tensors_[block.tensor];
    const Constants& c = constants[t.decay ? 1 : 0];
    float* p = t.parameter + block.offset;
    const float* g = t.gradient + block.offset;
    float* s0 = t.states[0] == nullptr ? nullptr : t.states[0] + block.offset;
    if (!sgd) {
      Adam(p, g, s0, t.states[1] + block.offset, block.elements, c);
    } else if (!momentum) {
      PlainSgd(p, g, block.elements, c);
    } else if (optimizer_.nesterov()) {
      NesterovSgd(p, g, s0, block.elements, c);
    } else {
      MomentumSgd(p, g, s0, block.elements, c);
    }
  }
}

}  // namespace tutti
