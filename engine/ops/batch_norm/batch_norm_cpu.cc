// Own batch normalisation, in whatever order the channels lie. A group of channels is one thread's: sums run in a fixed
// order, the bits do not depend on threads. Sums of one image are f32, images add in f64.
#include "engine/ops/batch_norm/batch_norm_cpu.h"

#include <algorithm>
#include <cmath>

#include "engine/ops/attributes.h"
#include "engine/ops/channels_cpu.h"
#include "engine/ops/dnnl_kernel_cpu.h"
#include "engine/runtime/cpu/parallel.h"

namespace tutti {
namespace {

constexpr int64_t kLanes = 8;      // partial sums where the positions of a channel lie together
constexpr int64_t kMaxGroup = 16;  // channels that one call handles
constexpr int64_t kRun = 512;      // positions that one f32 sum adds at most

// A run of positions of `width` channels; `pitch` floats from one position to the next.
struct Run {
  const float* x;
  const float* dy;  // backward only
  int64_t positions, width, pitch;
};

// sums[c] += sum of (x - centre[c])^power
TUTTI_VECTORIZE void AddMoments(const Run& r, const float* centre, bool squared, double* sums) {
  if (r.width == 1) {
    float partial[kLanes] = {};
    int64_t s = 0;
    const float c = centre[0];
    for (; s + kLanes <= r.positions && r.pitch == 1; s += kLanes) {
      for (int64_t i = 0; i < kLanes; ++i) {
        const float d = r.x[s + i] - c;
        partial[i] += squared ? d * d : d;
      }
    }
    for (; s < r.positions; ++s) {
      const float d = r.x[s * r.pitch] - c;
      partial[0] += squared ? d * d : d;
    }
    for (const float value : partial) sums[0] += static_cast<double>(value);
    return;
  }
  float partial[kMaxGroup] = {};
  for (int64_t s = 0; s < r.positions; ++s) {
    for (int64_t c = 0; c < r.width; ++c) {
      const float d = r.x[s * r.pitch + c] - centre[c];
      partial[c] += squared ? d * d : d;
    }
  }
  for (int64_t c = 0; c < r.width; ++c) sums[c] += static_cast<double>(partial[c]);
}

// sum_dy[c] += sum of dy, sum_dyx[c] += sum of dy * (x - mean[c])
TUTTI_VECTORIZE void AddGradientSums(const Run& r, const float* mean, double* sum_dy, double* sum_dyx) {
  float dy_partial[kMaxGroup] = {}, dyx_partial[kMaxGroup] = {};
  if (r.width == 1) {
    const float m = mean[0];
    int64_t s = 0;
    for (; s + kLanes <= r.positions && r.pitch == 1; s += kLanes) {
      for (int64_t i = 0; i < kLanes; ++i) {
        dy_partial[i] += r.dy[s + i];
        dyx_partial[i] += r.dy[s + i] * (r.x[s + i] - m);
      }
    }
    for (; s < r.positions; ++s) {
      dy_partial[0] += r.dy[s * r.pitch];
      dyx_partial[0] += r.dy[s * r.pitch] * (r.x[s * r.pitch] - m);
    }
    for (int64_t i = 0; i < kLanes; ++i) sum_dy[0] += static_cast<double>(dy_partial[i]);
    for (int64_t i = 0; i < kLanes; ++i) sum_dyx[0] += static_cast<double>(dyx_partial[i]);
    return;
  }
  for (int64_t s = 0; s < r.positions; ++s) {
    for (int64_t c = 0; c < r.width; ++c) {
      const float dy = r.dy[s * r.pitch + c];
      dy_partial[c] += dy;
      dyx_partial[c] += dy * (r.x[s * r.pitch + c] - mean[c]);
    }
  }
  for (int64_t c = 0; c < r.width; ++c) sum_dy[c] += static_cast<double>(dy_partial[c]);
  for (int64_t c = 0; c < r.width; ++c) sum_dyx[c] += static_cast<double>(dyx_partial[c]);
}

// out = (x - mean) * factor + shift
TUTTI_VECTORIZE void Normalise(const Run& r, const float* mean, const float* factor, const float* shift, float* out) {
  if (r.width == 1 && r.pitch == 1) {
    const float m = mean[0], f = factor[0], b = shift[0];
    for (int64_t s = 0; s < r.positions; ++s) out[s] = (r.x[s] - m) * f + b;
    return;
  }
  for (int64_t s = 0; s < r.positions; ++s) {
    for (int64_t c = 0; c < r.width; ++c)
      out[s * r.pitch + c] = (r.x[s * r.pitch + c] - mean[c]) * factor[c] + shift[c];
  }
}

// dx = factor * (dy - dy_mean - (x - mean) * slope)
TUTTI_VECTORIZE void Propagate(const Run& r, const float* mean, const float* factor, const float* dy_mean,
                               const float* slope, float* dx) {
  if (r.width == 1 && r.pitch == 1) {
    const float m = mean[0], f = factor[0], d = dy_mean[0], k = slope[0];
    for (int64_t s = 0; s < r.positions; ++s) dx[s] = f * (r.dy[s] - d - (r.x[s] - m) * k);
    return;
  }
  for (int64_t s = 0; s < r.positions; ++s) {
    for (int64_t c = 0; c < r.width; ++c) {
      const int64_t i = s * r.pitch + c;
      dx[i] = factor[c] * (r.dy[i] - dy_mean[c] - (r.x[i] - mean[c]) * slope[c]);
    }
  }
}

// How x lies: groups of up to kMaxGroup neighbouring channels, each walked image by image.
struct Walk {
  ChannelLayout layout;
  int64_t images, channels, positions;
  float epsilon;

  int64_t group_width() const { return std::min(layout.inner, kMaxGroup); }
  int64_t groups_per_block() const { return (layout.inner + kMaxGroup - 1) / kMaxGroup; }
  int64_t groups() const { return layout.blocks * groups_per_block(); }
  int64_t first_channel(int64_t group) const {
    return group / groups_per_block() * layout.inner + group % groups_per_block() * kMaxGroup;
  }
  // Channels of the group, padding of a blocked layout included: it is zero and is kept so.
  int64_t width(int64_t group) const {
    return std::min(group_width(), layout.inner - group % groups_per_block() * kMaxGroup);
  }
  int64_t count() const { return images * positions; }

  // fn(offset of the first float, positions) for each run of at most kRun positions. Channels last, all images are one
  // run.
  template <typename Fn>
  void ForEachRun(int64_t group, const Fn& fn) const {
    const int64_t block = group / groups_per_block(), lane = group % groups_per_block() * kMaxGroup;
    const bool merged = layout.blocks == 1;
    const int64_t pieces = merged ? 1 : images, length = merged ? images * positions : positions;
    for (int64_t n = 0; n < pieces; ++n) {
      const int64_t start = (n * layout.blocks + block) * positions * layout.inner + lane;
      for (int64_t s = 0; s < length; s += kRun) fn(start + s * layout.inner, std::min(kRun, length - s));
    }
  }

  // A vector of channels, zeros for padding.
  void Load(int64_t group, const float* from, float* to) const {
    const int64_t first = first_channel(group);
    for (int64_t c = 0; c < width(group); ++c) to[c] = first + c < channels ? from[first + c] : 0.0f;
  }
  void Store(int64_t group, const double* from, float* to) const {
    const int64_t first = first_channel(group);
    for (int64_t c = 0; c < width(group) && first + c < channels; ++c) to[first + c] = static_cast<float>(from[c]);
  }
};

class ForwardKernel final : public CpuKernel {
 public:
  ForwardKernel(const Walk& walk, bool inference, int threads) : w_(walk), inference_(inference), threads_(threads) {}

  void Run(const KernelArgs& args) override {
    ParallelFor(threads_, w_.groups(), [&](int64_t group) { RunGroup(group, args); });
  }

 private:
  void RunGroup(int64_t group, const KernelArgs& args) const {
    const auto* x = static_cast<const float*>(args.inputs[0]);
    const int64_t width = w_.width(group), pitch = w_.layout.inner;
    float mean[kMaxGroup] = {}, variance[kMaxGroup] = {}, factor[kMaxGroup], shift[kMaxGroup];
    if (inference_) {
      w_.Load(group, static_cast<const float*>(args.inputs[3]), mean);
      w_.Load(group, static_cast<const float*>(args.inputs[4]), variance);
    } else {
      Moment(group, x, false, mean, static_cast<float*>(args.outputs[1]), mean);
      Moment(group, x, true, mean, static_cast<float*>(args.outputs[2]), variance);
    }
    w_.Load(group, static_cast<const float*>(args.inputs[1]), factor);
    w_.Load(group, static_cast<const float*>(args.inputs[2]), shift);
    for (int64_t c = 0; c < width; ++c) factor[c] /= std::sqrt(variance[c] + w_.epsilon);
    auto* y = static_cast<float*>(args.outputs[0]);
    w_.ForEachRun(group, [&](int64_t offset, int64_t positions) {
      Normalise({x + offset, nullptr, positions, width, pitch}, mean, factor, shift, y + offset);
    });
  }

  // Mean of (x - centre) or of its square, stored for the channels and left in `result`.
  void Moment(int64_t group, const float* x, bool squared, const float* centre, float* stored, float* result) const {
    double sums[kMaxGroup] = {};
    w_.ForEachRun(group, [&](int64_t offset, int64_t positions) {
      AddMoments({x + offset, nullptr, positions, w_.width(group), w_.layout.inner}, centre, squared, sums);
    });
    for (int64_t c = 0; c < w_.width(group); ++c) {
      sums[c] /= static_cast<double>(w_.count());
      result[c] = static_cast<float>(sums[c]);
    }
    w_.Store(group, sums, stored);
  }

  const Walk w_;
  const bool inference_;
  const int threads_;
};

// With x^ = (x - mean) / sqrt(variance + epsilon) and means over the n values of a channel:
//   dshift = sum dy, dscale = sum dy x^, dx = scale / sqrt(variance + epsilon) * (dy - mean(dy) - x^ mean(dy x^)).
class GradKernel final : public CpuKernel {
 public:
  GradKernel(const Walk& walk, int threads) : w_(walk), threads_(threads) {}

  void Run(const KernelArgs& args) override {
    ParallelFor(threads_, w_.groups(), [&](int64_t group) { RunGroup(group, args); });
  }

 private:
  void RunGroup(int64_t group, const KernelArgs& args) const {
    const auto* dy = static_cast<const float*>(args.inputs[0]);
    const auto* x = static_cast<const float*>(args.inputs[1]);
    const int64_t width = w_.width(group), pitch = w_.layout.inner;
    float scale[kMaxGroup], mean[kMaxGroup], variance[kMaxGroup], dy_mean[kMaxGroup], slope[kMaxGroup];
    w_.Load(group, static_cast<const float*>(args.inputs[2]), scale);
    w_.Load(group, static_cast<const float*>(args.inputs[3]), mean);
    w_.Load(group, static_cast<const float*>(args.inputs[4]), variance);
    double sum_dy[kMaxGroup] = {}, sum_dyx[kMaxGroup] = {};
    w_.ForEachRun(group, [&](int64_t offset, int64_t positions) {
      AddGradientSums({x + offset, dy + offset, positions, width, pitch}, mean, sum_dy, sum_dyx);
    });
    const double n = static_cast<double>(w_.count());
    for (int64_t c = 0; c < width; ++c) {
      const double inverse = 1.0 / std::sqrt(static_cast<double>(variance[c]) + static_cast<double>(w_.epsilon));
      dy_mean[c] = static_cast<float>(sum_dy[c] / n);
      slope[c] = static_cast<float>(sum_dyx[c] / n * inverse * inverse);
      scale[c] = static_cast<float>(static_cast<double>(scale[c]) * inverse);
      sum_dyx[c] *= inverse;
    }
    w_.Store(group, sum_dyx, static_cast<float*>(args.outputs[1]));
    w_.Store(group, sum_dy, static_cast<float*>(args.outputs[2]));
    auto* dx = static_cast<float*>(args.outputs[0]);
    w_.ForEachRun(group, [&](int64_t offset, int64_t positions) {
      Propagate({x + offset, dy + offset, positions, width, pitch}, mean, scale, dy_mean, slope, dx + offset);
    });
  }

  const Walk w_;
  const int threads_;
};

enum class Kind { kForward, kInference, kGrad };

StatusOr<KernelPlan> Plan(const KernelRequest& request, Kind kind) {
  const size_t x_index = kind == Kind::kGrad ? 1 : 0;
  const TensorType& x = InputType(request, x_index);
  const ChannelLayout channels = RequestedChannelLayout(request, x_index);
  const int64_t positions = x.dims.size() == 4 ? x.dims[2] * x.dims[3] : 1;
  const Walk walk{channels, x.dims[0], x.dims[1], positions,
                  static_cast<float>(DoubleAttribute(*request.node, "epsilon"))};
  KernelPlan plan;
  for (size_t i = 0; i < request.node->inputs.size(); ++i) {
    const TensorType& type = InputType(request, i);
    plan.input_layouts.push_back(i <= x_index ? WithChannelLayout(channels, type) : PlainLayout(type));
  }
  for (size_t i = 0; i < request.node->outputs.size(); ++i) {
    const TensorType& type = OutputType(request, i);
    plan.output_layouts.push_back(i == 0 ? WithChannelLayout(channels, type) : PlainLayout(type));
  }
  if (kind == Kind::kGrad) {
    plan.kernel = std::make_unique<GradKernel>(walk, request.context.threads);
  } else {
    plan.kernel = std::make_unique<ForwardKernel>(walk, kind == Kind::kInference, request.context.threads);
  }
  if (kind != Kind::kForward) plan.in_place = {{0, 0}};
  plan.implementation = "tutti batch_norm";
  return MatchDemandedOutputs(request, std::move(plan));
}

KernelFactory Factory(Kind kind) {
  return [kind](const KernelRequest& request) { return CatchDnnl(*request.node, [&] { return Plan(request, kind); }); };
}

}  // namespace

Status RegisterBatchNormCpu(KernelRegistry* kernels) {
  TUTTI_RETURN_IF_ERROR(kernels->Register("batch_norm", Factory(Kind::kForward)));
  TUTTI_RETURN_IF_ERROR(kernels->Register("batch_norm_inference", Factory(Kind::kInference)));
  return kernels->Register("batch_norm_grad", Factory(Kind::kGrad));
}

}  // namespace tutti
