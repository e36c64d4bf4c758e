#include "engine/ops/loss/loss_cpu.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "engine/ops/pointwise/functions.h"
#include "engine/runtime/cpu/parallel.h"

namespace tutti {
namespace {

// Sums and maxima run over eight interleaved partial results, which vectorise and have one order everywhere.
constexpr int64_t kPartials = 8;

TUTTI_VECTORIZE float RowMaximum(const float* x, int64_t n) {
  float best[kPartials];
  std::fill_n(best, kPartials, x[0]);
  const int64_t whole = n / kPartials * kPartials;
  for (int64_t i = 0; i < whole; i += kPartials)
    for (int64_t j = 0; j < kPartials; ++j) best[j] = x[i + j] > best[j] ? x[i + j] : best[j];
  for (int64_t i = whole; i < n; ++i) best[0] = x[i] > best[0] ? x[i] : best[0];
  return *std::max_element(best, best + kPartials);
}

// e[i] = exp(x[i] - maximum); returns their sum. e may be x.
TUTTI_VECTORIZE float RowExp(const float* x, float maximum, float* e, int64_t n) {
  float sums[kPartials] = {};
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) e[i] = FastExp(x[i] - maximum);
  const int64_t whole = n / kPartials * kPartials;
  for (int64_t i = 0; i < whole; i += kPartials)
    for (int64_t j = 0; j < kPartials; ++j) sums[j] += e[i + j];
  for (int64_t i = whole; i < n; ++i) sums[i - whole] += e[i];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

TUTTI_VECTORIZE void ScaleRow(float* e, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) e[i] *= factor;
}

struct RowInputs {
  const float* x;       // (K)
  int64_t label;        // -1: none
  const float* target;  // (K) or null
  float weight;
  float inverse_valid;
};

struct RowResult {
  double loss = 0;  // weighted
  double correct = 0;
};

using RowFn = RowResult (*)(const RowInputs& row, float* gradient, int64_t n);

double Correct(const RowInputs& row, int64_t n) {
  if (row.label < 0) return 0;
  return std::max_element(row.x, row.x + n) - row.x == row.label ? row.weight : 0;
}

// The maximum is taken off before exponentials, so that no logit overflows.
RowResult CrossEntropyRow(const RowInputs& row, float* gradient, int64_t n) {
  RowResult result;
  result.correct = Correct(row, n);
  const float maximum = RowMaximum(row.x, n);
  const double distance = static_cast<double>(maximum) - row.x[row.label];
  const float sum = RowExp(row.x, maximum, gradient, n);
  result.loss = row.weight * (std::log(static_cast<double>(sum)) + distance);
  const float factor = row.weight * row.inverse_valid;
  ScaleRow(gradient, factor / sum, n);
  gradient[row.label] -= factor;
  return result;
}

RowResult SquaredErrorRow(const RowInputs& row, float* gradient, int64_t n) {
  RowResult result;
  result.correct = Correct(row, n);
  double sum = 0;
  const float factor = 2.0f / static_cast<float>(n) * row.weight * row.inverse_valid;
  for (int64_t i = 0; i < n; ++i) {
    const float target = row.target != nullptr ? row.target[i] : (i == row.label ? 1.0f : 0.0f);
    const float error = row.x[i] - target;
    sum += static_cast<double>(error) * error;
    gradient[i] = error * factor;
  }
  result.loss = row.weight * sum / static_cast<double>(n);
  return result;
}

class LossKernel : public CpuKernel {
 public:
  LossKernel(RowFn row, const TensorType& x, bool has_labels, int threads)
      : row_(row), rows_(x.dims[0]), classes_(x.dims[1]), has_labels_(has_labels), threads_(threads) {}

  void Run(const KernelArgs& args) override {
    auto* results = static_cast<RowResult*>(args.scratch);
    auto* gradient = static_cast<float*>(args.outputs[2]);
    ParallelFor(threads_, rows_, [&](int64_t r) {
      const RowInputs row = Row(args, r);
      float* row_gradient = gradient + r * classes_;
      results[r] = {};
      if (row.weight == 0) {
        std::fill_n(row_gradient, classes_, 0.0f);
      } else {
        results[r] = row_(row, row_gradient, classes_);
      }
    });
    RowResult sum;
    for (int64_t r = 0; r < rows_; ++r) {
      sum.loss += results[r].loss;
      sum.correct += results[r].correct;
    }
    *static_cast<float*>(args.outputs[0]) = static_cast<float>(sum.loss);
    *static_cast<float*>(args.outputs[1]) = static_cast<float>(sum.correct);
  }

 private:
  RowInputs Row(const KernelArgs& args, int64_t r) const {
    RowInputs row{static_cast<const float*>(args.inputs[0]) + r * classes_, -1, nullptr,
                  static_cast<const float*>(args.inputs[2])[r], *static_cast<const float*>(args.inputs[3])};
    if (has_labels_) {
      row.label = static_cast<const int32_t*>(args.inputs[1])[r];
      TUTTI_CHECK(row.weight == 0 || (row.label >= 0 && row.label < classes_), "row {} has label {}, expected 0..{}", r,
                  row.label, classes_ - 1);
    } else {
      row.target = static_cast<const float*>(args.inputs[1]) + r * classes_;
    }
    return row;
  }

  RowFn row_;
  int64_t rows_;
  int64_t classes_;
  bool has_labels_;
  int threads_;
};

KernelFactory PlanWith(RowFn row) {
  return [row](const KernelRequest& request) -> StatusOr<KernelPlan> {
    const TensorType& x = request.input_type(0);
    KernelPlan plan = PlainPlan(request);
    plan.in_place = {{2, 0}};
    plan.scratch_bytes = x.dims[0] * static_cast<int64_t>(sizeof(RowResult));
    plan.implementation = "tutti loss";
    plan.kernel =
        std::make_unique<LossKernel>(row, x, request.input_type(1).dtype == DType::kI32, request.context.threads);
    return plan;
  };
}

}  // namespace

Status RegisterLossCpu(KernelRegistry* kernels) {
  TUTTI_RETURN_IF_ERROR(kernels->Register("softmax_cross_entropy", PlanWith(CrossEntropyRow)));
  return kernels->Register("mean_squared_error", PlanWith(SquaredErrorRow));
}

}  // namespace tutti
