#include "engine/runtime/cpu/kernel.h"

namespace tutti {

KernelPlan PlainPlan(const KernelRequest& request) {
  KernelPlan plan;
  for (size_t i = 0; i < request.node->inputs.size(); ++i)
    plan.input_layouts.push_back(PlainLayout(request.input_type(i)));
  for (size_t k = 0; k < request.node->outputs.size(); ++k)
    plan.output_layouts.push_back(PlainLayout(request.output_type(k)));
  return plan;
}

Status KernelRegistry::Register(std::string op, KernelFactory factory) {
  std::string name = op;
  if (!factories_.emplace(std::move(op), std::move(factory)).second)
    return AlreadyExists("op {} has a CPU kernel already", name);
  return OkStatus();
}

StatusOr<const KernelFactory*> KernelRegistry::Find(std::string_view op) const {
  const auto found = factories_.find(op);
  if (found == factories_.end()) return NotFound("op {} has no kernel for device cpu", op);
  return &found->second;
}

}  // namespace tutti
