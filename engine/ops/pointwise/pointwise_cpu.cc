#include "engine/ops/pointwise/pointwise_cpu.h"

#include <algorithm>
#include <array>

#include "engine/ops/pointwise/functions.h"
#include "engine/runtime/cpu/parallel.h"

namespace tutti {
namespace {

constexpr int64_t kBlock = 512;                 // elements; temporaries of a block stay in the first-level cache
constexpr int64_t kParallelBlock = 8 * kBlock;  // what one thread takes at least

// One loop per instruction. y may be a or b (written in place): no element depends on another.
using BlockFn = void (*)(const float* a, const float* b, float* y, int64_t n, float factor);

#define TUTTI_BLOCK(Name, expression)                                                                             \
  TUTTI_VECTORIZE void Name(const float* a, const float* b, float* y, int64_t n, [[maybe_unused]] float factor) { \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i) {                                                        \
      const float u = a[i];                                                                                       \
      [[maybe_unused]] const float v = b[i];                                                                      \
      y[i] = (expression);                                                                                        \
    }                                                                                                             \
  }
TUTTI_BLOCK(BlockAdd, u + v)
TUTTI_BLOCK(BlockMul, u* v)
TUTTI_BLOCK(BlockScale, u* factor)
TUTTI_BLOCK(BlockRelu, u > 0 ? u : (u != u ? u : 0.0f))
TUTTI_BLOCK(BlockReluGrad, v > 0 ? u : 0.0f)
TUTTI_BLOCK(BlockGelu, u* NormalCdf(u))
TUTTI_BLOCK(BlockGeluGrad, u*(NormalCdf(v) + v * NormalDensity(v)))
TUTTI_BLOCK(BlockTanh, FastTanh(u))
TUTTI_BLOCK(BlockTanhGrad, u*(1.0f - v * v))
TUTTI_BLOCK(BlockSigmoid, FastSigmoid(u))
TUTTI_BLOCK(BlockSigmoidGrad, u*(v*(1.0f - v)))
#undef TUTTI_BLOCK

constexpr std::array<BlockFn, kPointwiseOps> kBlocks = {BlockAdd,      BlockMul,     BlockScale,      BlockRelu,
                                                        BlockReluGrad, BlockGelu,    BlockGeluGrad,   BlockTanh,
                                                        BlockTanhGrad, BlockSigmoid, BlockSigmoidGrad};

// Runs the program on elements [begin, begin + n), n <= kBlock.
void RunBlock(const PointwiseProgram& program, const float* const* inputs, float* output, int64_t begin, int64_t n) {
  alignas(64) float temporaries[kMaxPointwiseInstructions - 1][kBlock];
  const auto operand = [&](int index) -> const float* {
    return index < program.inputs ? inputs[index] + begin : temporaries[index - program.inputs];
  };
  for (size_t k = 0; k < program.code.size(); ++k) {
    const PointwiseInstruction& code = program.code[k];
    float* result = k + 1 == program.code.size() ? output + begin : temporaries[k];
    const float* a = operand(code.a);
    const float* b = Arity(code.op) == 2 ? operand(code.b) : a;
    kBlocks[static_cast<size_t>(code.op)](a, b, result, n, static_cast<float>(code.factor));
  }
}

class PointwiseKernel : public CpuKernel {
 public:
  PointwiseKernel(PointwiseProgram program, int64_t elements, int threads)
      : program_(std::move(program)), elements_(elements), threads_(threads) {}

  void Run(const KernelArgs& args) override {
    std::array<const float*, kMaxPointwiseInputs> inputs{};
    for (int i = 0; i < program_.inputs; ++i)
      inputs[static_cast<size_t>(i)] = static_cast<const float*>(args.inputs[i]);
    auto* output = static_cast<float*>(args.outputs[0]);
    const int64_t pieces = (elements_ + kParallelBlock - 1) / kParallelBlock;
    ParallelFor(threads_, pieces, [&](int64_t piece) {
      const int64_t end = std::min(elements_, (piece + 1) * kParallelBlock);
      for (int64_t begin = piece * kParallelBlock; begin < end; begin += kBlock)
        RunBlock(program_, inputs.data(), output, begin, std::min(kBlock, end - begin));
    });
  }

 private:
  PointwiseProgram program_;
  int64_t elements_;  // stored ones, padding included
  int threads_;
};

// The stored elements of padding stay zero where the program makes zero from zeros.
bool KeepsZero(const PointwiseProgram& program) {
  const std::array<float, kMaxPointwiseInputs> zeros{};
  return EvaluatePointwise(program, std::span(zeros).first(static_cast<size_t>(program.inputs))) == 0;
}

// The layout that all inputs and the output share: a demanded one, else the first blocked one (its neighbours will want
// it too), else plain.
CpuLayout SharedLayout(const KernelRequest& request, const PointwiseProgram& program) {
  const CpuLayout plain = PlainLayout(request.output_type(0));
  const bool may_pad = KeepsZero(program);
  const auto usable = [&](const std::optional<CpuLayout>& layout) {
    return layout.has_value() && (may_pad || layout->bytes == plain.bytes);
  };
  if (usable(request.outputs[0])) return *request.outputs[0];
  for (const std::optional<CpuLayout>& layout : request.inputs)
    if (usable(layout) && !layout->plain) return *layout;
  return plain;
}

StatusOr<KernelPlan> PlanPointwise(const KernelRequest& request) {
  TUTTI_ASSIGN_OR_RETURN(PointwiseProgram program, ProgramOf(*request.node));
  const CpuLayout layout = SharedLayout(request, program);
  KernelPlan plan;
  plan.input_layouts.assign(request.node->inputs.size(), layout);
  plan.output_layouts = {layout};
  for (int i = 0; i < program.inputs; ++i) plan.in_place.push_back({0, i});
  plan.implementation = "tutti pointwise";
  plan.kernel = std::make_unique<PointwiseKernel>(std::move(program), layout.bytes / SizeOf(DType::kF32),
                                                  request.context.threads);
  return plan;
}

}  // namespace

float EvaluatePointwise(const PointwiseProgram& program, std::span<const float> inputs) {
  std::array<const float*, kMaxPointwiseInputs> pointers{};
  for (size_t i = 0; i < inputs.size(); ++i) pointers[i] = &inputs[i];
  float output = 0;
  RunBlock(program, pointers.data(), &output, 0, 1);
  return output;
}

Status RegisterPointwiseCpu(KernelRegistry* kernels) {
  for (int i = 0; i < kPointwiseOps; ++i)
    TUTTI_RETURN_IF_ERROR(kernels->Register(std::string(Name(static_cast<PointwiseOp>(i))), PlanPointwise));
  return kernels->Register("pointwise", PlanPointwise);
}

}  // namespace tutti
