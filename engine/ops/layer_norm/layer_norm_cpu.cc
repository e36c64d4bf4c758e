#include "engine/ops/layer_norm/layer_norm_cpu.h"

#include <algorithm>
#include <cmath>

#include "engine/runtime/cpu/parallel.h"

namespace tutti {
namespace {

// Sums run over eight interleaved partial sums in double, which vectorise and have one order everywhere.
constexpr int64_t kPartials = 8;

double FoldPartials(const double* partials) {
  return ((partials[0] + partials[4]) + (partials[2] + partials[6])) +
         ((partials[1] + partials[5]) + (partials[3] + partials[7]));
}

struct Moments {
  float mean;
  float inverse_deviation;
};

TUTTI_VECTORIZE Moments RowMoments(const float* x, int64_t n, float epsilon) {
  double sums[kPartials] = {}, squares[kPartials] = {};
  const int64_t whole = n / kPartials * kPartials;
  for (int64_t i = 0; i < whole; i += kPartials)
    for (int64_t j = 0; j < kPartials; ++j) sums[j] += x[i + j];
  for (int64_t i = whole; i < n; ++i) sums[i - whole] += x[i];
  const double mean = FoldPartials(sums) / static_cast<double>(n);
  for (int64_t i = 0; i < whole; i += kPartials)
    for (int64_t j = 0; j < kPartials; ++j) {
      const double d = x[i + j] - mean;
      squares[j] += d * d;
    }
  for (int64_t i = whole; i < n; ++i) squares[i - whole] += (x[i] - mean) * (x[i] - mean);
  const double variance = FoldPartials(squares) / static_cast<double>(n);
  return {static_cast<float>(mean), static_cast<float>(1.0 / std::sqrt(variance + static_cast<double>(epsilon)))};
}

TUTTI_VECTORIZE void NormalizeRow(const float* x, const float* scale, const float* shift, Moments m, float* y,
                                  int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - m.mean) * m.inverse_deviation * scale[i] + shift[i];
}

// dx = inverse_deviation * (g - mean(g) - xhat * mean(g * xhat)), g = dy * scale, xhat = (x - mean) *
// inverse_deviation.
TUTTI_VECTORIZE void RowGradient(const float* dy, const float* x, const float* scale, Moments m, float* dx, int64_t n) {
  double sums[kPartials] = {}, products[kPartials] = {};
  for (int64_t i = 0; i < n; i += kPartials) {
    const int64_t count = std::min(kPartials, n - i);
    for (int64_t j = 0; j < count; ++j) {
      const float g = dy[i + j] * scale[i + j];
      sums[j] += g;
      products[j] += g * ((x[i + j] - m.mean) * m.inverse_deviation);
    }
  }
  const auto mean_g = static_cast<float>(FoldPartials(sums) / static_cast<double>(n));
  const auto mean_gx = static_cast<float>(FoldPartials(products) / static_cast<double>(n));
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float xhat = (x[i] - m.mean) * m.inverse_deviation;
    dx[i] = m.inverse_deviation * (dy[i] * scale[i] - mean_g - xhat * mean_gx);
  }
}

// Adds one row's part of columns [0, n) to dscale and dshift.
TUTTI_VECTORIZE void AddRow(const float* dy, const float* x, Moments m, float* dscale, float* dshift, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    dscale[i] += dy[i] * ((x[i] - m.mean) * m.inverse_deviation);
    dshift[i] += dy[i];
  }
}

struct Shape {
  int64_t rows;
  int64_t width;
  explicit Shape(const TensorType& x) : rows(x.dims[0]), width(x.elements() / x.dims[0]) {}
};

class LayerNormKernel : public CpuKernel {
 public:
  LayerNormKernel(Shape shape, float epsilon, int threads) : shape_(shape), epsilon_(epsilon), threads_(threads) {}
  void Run(const KernelArgs& args) override {
    const auto* x = static_cast<const float*>(args.inputs[0]);
    const auto* scale = static_cast<const float*>(args.inputs[1]);
    const auto* shift = static_cast<const float*>(args.inputs[2]);
    auto* y = static_cast<float*>(args.outputs[0]);
    auto* mean = static_cast<float*>(args.outputs[1]);
    auto* inverse_deviation = static_cast<float*>(args.outputs[2]);
    ParallelFor(threads_, shape_.rows, [&](int64_t row) {
      const int64_t at = row * shape_.width;
      const Moments m = RowMoments(x + at, shape_.width, epsilon_);
      NormalizeRow(x + at, scale, shift, m, y + at, shape_.width);
      mean[row] = m.mean;
      inverse_deviation[row] = m.inverse_deviation;
    });
  }

 private:
  Shape shape_;
  float epsilon_;
  int threads_;
};

class LayerNormGradKernel : public CpuKernel {
 public:
  LayerNormGradKernel(Shape shape, int threads) : shape_(shape), threads_(threads) {}
  void Run(const KernelArgs& args) override {
    const auto* dy = static_cast<const float*>(args.inputs[0]);
    const auto* x = static_cast<const float*>(args.inputs[1]);
    const auto* scale = static_cast<const float*>(args.inputs[2]);
    const auto* mean = static_cast<const float*>(args.inputs[3]);
    const auto* inverse_deviation = static_cast<const float*>(args.inputs[4]);
    auto* dx = static_cast<float*>(args.outputs[0]);
    auto* dscale = static_cast<float*>(args.outputs[1]);
    auto* dshift = static_cast<float*>(args.outputs[2]);
    const int64_t width = shape_.width;
    ParallelFor(threads_, shape_.rows, [&](int64_t row) {
      const int64_t at = row * width;
      RowGradient(dy + at, x + at, scale, {mean[row], inverse_deviation[row]}, dx + at, width);
    });
    constexpr int64_t kColumns = 64;
    ParallelFor(threads_, (width + kColumns - 1) / kColumns, [&](int64_t block) {
      const int64_t first = block * kColumns, count = std::min(kColumns, width - first);
      std::fill_n(dscale + first, count, 0.0f);
      std::fill_n(dshift + first, count, 0.0f);
      for (int64_t row = 0; row < shape_.rows; ++row) {
        const int64_t at = row * width + first;
        AddRow(dy + at, x + at, {mean[row], inverse_deviation[row]}, dscale + first, dshift + first, count);
      }
    });
  }

 private:
  Shape shape_;
  int threads_;
};

StatusOr<KernelPlan> PlanForward(const KernelRequest& request) {
  KernelPlan plan = PlainPlan(request);
  plan.in_place = {{0, 0}};
  plan.implementation = "tutti layer_norm";
  plan.kernel = std::make_unique<LayerNormKernel>(Shape(request.input_type(0)),
                                                  static_cast<float>(DoubleAttribute(*request.node, "epsilon")),
                                                  request.context.threads);
  return plan;
}

StatusOr<KernelPlan> PlanGradient(const KernelRequest& request) {
  KernelPlan plan = PlainPlan(request);
  plan.implementation = "tutti layer_norm_grad";
  plan.kernel = std::make_unique<LayerNormGradKernel>(Shape(request.input_type(1)), request.context.threads);
  return plan;
}

}  // namespace

Status RegisterLayerNormCpu(KernelRegistry* kernels) {
  TUTTI_RETURN_IF_ERROR(kernels->Register("layer_norm", PlanForward));
  return kernels->Register("layer_norm_grad", PlanGradient);
}

}  // namespace tutti
