#include "engine/ops/dropout/dropout_cpu.h"

#include <algorithm>

#include "engine/ops/dropout/dropout.h"
#include "engine/runtime/cpu/parallel.h"

namespace tutti {
namespace {

constexpr int64_t kBlocks = 32;  // Philox blocks of four elements that are made at once

// Words of blocks [first, first + kBlocks) of one row, as base/philox.h makes them, word w of block b at words[w][b].
TUTTI_VECTORIZE void PhiloxRow(PhiloxKey key, PhiloxCounter counter, uint32_t (*words)[kBlocks]) {
  uint32_t* c0 = words[0];
  uint32_t* c1 = words[1];
  uint32_t* c2 = words[2];
  uint32_t* c3 = words[3];
  for (int64_t b = 0; b < kBlocks; ++b) {
    c0[b] = counter[0] + static_cast<uint32_t>(b);
    c1[b] = counter[1];
    c2[b] = counter[2];
    c3[b] = counter[3];
  }
  for (int round = 0; round < 10; ++round) {
#pragma GCC ivdep
    for (int64_t b = 0; b < kBlocks; ++b) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[b];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2[b];
      c0[b] = static_cast<uint32_t>(p1 >> 32) ^ c1[b] ^ key[0];
      c1[b] = static_cast<uint32_t>(p1);
      c2[b] = static_cast<uint32_t>(p0 >> 32) ^ c3[b] ^ key[1];
      c3[b] = static_cast<uint32_t>(p0);
    }
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
}

TUTTI_VECTORIZE void ApplyMask(const float* x, float* y, int64_t n, const uint32_t (*words)[kBlocks],
                               uint32_t threshold, float scale) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = (words[i % 4][i / 4] >> 8) >= threshold ? x[i] * scale : 0.0f;
}

class DropoutKernel : public CpuKernel {
 public:
  DropoutKernel(const Node& node, const TensorType& type, int threads)
      : rows_(type.dims[0]),
        width_(type.elements() / type.dims[0]),
        key_(StringAttribute(node, "key")),
        threshold_(DropoutThreshold(DoubleAttribute(node, "rate"))),
        scale_(static_cast<float>(1.0 / (1.0 - DoubleAttribute(node, "rate")))),
        threads_(threads) {}

  void Run(const KernelArgs& args) override {
    const auto* x = static_cast<const float*>(args.inputs[0]);
    const PhiloxKey key = MakePhiloxKey(*static_cast<const uint64_t*>(args.inputs[1]), key_);
    const int64_t batch_index = *static_cast<const int64_t*>(args.inputs[2]);
    const int64_t first_row = *static_cast<const int64_t*>(args.inputs[3]);
    auto* y = static_cast<float*>(args.outputs[0]);
    ParallelFor(threads_, rows_, [&](int64_t row) {
      alignas(64) uint32_t words[4][kBlocks];
      for (int64_t begin = 0; begin < width_; begin += 4 * kBlocks) {
        PhiloxRow(key, DropoutCounter(begin / 4, first_row + row, batch_index), words);
        const int64_t at = row * width_ + begin;
        ApplyMask(x + at, y + at, std::min(4 * kBlocks, width_ - begin), words, threshold_, scale_);
      }
    });
  }

 private:
  int64_t rows_;
  int64_t width_;  // elements of a row
  std::string key_;
  uint32_t threshold_;
  float scale_;
  int threads_;
};

StatusOr<KernelPlan> PlanDropout(const KernelRequest& request) {
  KernelPlan plan = PlainPlan(request);
  plan.in_place = {{0, 0}};
  plan.implementation = "tutti dropout";
  plan.kernel = std::make_unique<DropoutKernel>(*request.node, request.input_type(0), request.context.threads);
  return plan;
}

}  // namespace

Status RegisterDropoutCpu(KernelRegistry* kernels) { return kernels->Register("dropout", PlanDropout); }

}  // namespace tutti
