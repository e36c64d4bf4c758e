#include "engine/ops/reshape/reshape_cpu.h"

#include <cstring>

namespace tutti {
namespace {

class ReshapeKernel : public CpuKernel {
 public:
  explicit ReshapeKernel(int64_t bytes) : bytes_(bytes) {}
  void Run(const KernelArgs& args) override {
    if (args.outputs[0] != args.inputs[0]) std::memcpy(args.outputs[0], args.inputs[0], static_cast<size_t>(bytes_));
  }

 private:
  int64_t bytes_;
};

StatusOr<KernelPlan> PlanReshape(const KernelRequest& request) {
  KernelPlan plan = PlainPlan(request);
  plan.views = {{0, 0}};
  plan.implementation = "tutti view";
  plan.kernel = std::make_unique<ReshapeKernel>(request.input_type(0).bytes());
  return plan;
}

}  // namespace

Status RegisterReshapeCpu(KernelRegistry* kernels) {
  TUTTI_RETURN_IF_ERROR(kernels->Register("reshape", PlanReshape));
  return kernels->Register("flatten", PlanReshape);
}

}  // namespace tutti
