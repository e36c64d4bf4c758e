#include "engine/ops/dnnl_kernel_cpu.h"

#include <omp.h>

#include <utility>

#include "base/check.h"

namespace tutti {
namespace {

constexpr int64_t kAlignment = 64;

void* Resolve(const DnnlArgument& argument, const KernelArgs& args) {
  switch (argument.source) {
    case DnnlArgument::Source::kInput:
      return args.inputs[argument.position];
    case DnnlArgument::Source::kOutput:
      return args.outputs[argument.position];
    case DnnlArgument::Source::kScratch:
      return static_cast<char*>(args.scratch) + argument.position;
  }
  return nullptr;
}

// Runs `inner` with some outputs moved into scratch memory, then the reorders.
class ReorderedOutputs final : public CpuKernel {
 public:
  ReorderedOutputs(std::unique_ptr<CpuKernel> inner, std::unique_ptr<DnnlKernel> reorders, std::vector<int64_t> offsets)
      : inner_(std::move(inner)),
        reorders_(std::move(reorders)),
        offsets_(std::move(offsets)),
        outputs_(offsets_.size()) {}

  void Run(const KernelArgs& args) override {
    for (size_t i = 0; i < offsets_.size(); ++i) {
      outputs_[i] = offsets_[i] < 0 ? args.outputs[i] : static_cast<char*>(args.scratch) + offsets_[i];
    }
    inner_->Run({args.inputs, outputs_.data(), args.scratch});
    reorders_->Run(args);
  }

 private:
  std::unique_ptr<CpuKernel> inner_;
  std::unique_ptr<DnnlKernel> reorders_;
  std::vector<int64_t> offsets_;  // into the scratch memory; negative: the output itself
  std::vector<void*> outputs_;
};

}  // namespace

DnnlArgument InputArgument(int name, const dnnl::memory::desc& desc, int64_t index) {
  return {name, desc, DnnlArgument::Source::kInput, index};
}
DnnlArgument OutputArgument(int name, const dnnl::memory::desc& desc, int64_t index) {
  return {name, desc, DnnlArgument::Source::kOutput, index};
}

DnnlKernel::DnnlKernel(int threads) : threads_(threads), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
  TUTTI_CHECK(omp_get_max_threads() == threads, "made with {} threads for {}", omp_get_max_threads(), threads);
}

int64_t DnnlKernel::ReserveScratch(int64_t bytes) {
  const int64_t offset = scratch_bytes_;
  scratch_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return offset;
}

void DnnlKernel::Add(const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad,
                     std::vector<DnnlArgument> arguments) {
  GenerateCode(primitive);
  if (scratchpad.get_size() > 0) {
    const int64_t offset = ReserveScratch(static_cast<int64_t>(scratchpad.get_size()));
    arguments.push_back({DNNL_ARG_SCRATCHPAD, scratchpad, DnnlArgument::Source::kScratch, offset});
  }
  Step step{primitive, std::move(arguments), {}, {}, {}};
  for (const DnnlArgument& argument : step.arguments) {
    step.memories.emplace_back(argument.desc, engine_, nullptr);
    step.handles.push_back(nullptr);
    step.call.push_back({argument.name, step.memories.back().get()});
  }
  steps_.push_back(std::move(step));
}

void DnnlKernel::Run(const KernelArgs& args) {
  TUTTI_CHECK(omp_get_max_threads() == threads_ && (threads_ == 1 || !omp_in_parallel()),
              "made for {} threads, called with {} (in a parallel region: {})", threads_, omp_get_max_threads(),
              omp_in_parallel() != 0);
  for (Step& step : steps_) {
    for (size_t i = 0; i < step.arguments.size(); ++i) {
      void* handle = Resolve(step.arguments[i], args);
      if (handle == step.handles[i]) continue;
      step.memories[i].set_data_handle(handle);
      step.handles[i] = handle;
    }
    const dnnl_status_t status = dnnl_primitive_execute(step.primitive.get(), stream_.get(),
                                                        static_cast<int>(step.call.size()), step.call.data());
    TUTTI_CHECK(status == dnnl_success, "oneDNN status {}", static_cast<int>(status));
  }
  stream_.wait();
}

bool IsUsable(const dnnl::primitive_desc_base& desc) { return desc.get(true) != nullptr && !IsReference(desc); }

Status NoImplementation(const Node& node) {
  return Unimplemented(
      "{} {}: neither oneDNN nor this build has a fast implementation for these shapes on this processor", node.path,
      node.op);
}

const TensorType& InputType(const KernelRequest& request, size_t index) {
  return request.graph->value(request.node->inputs[index]).type;
}
const TensorType& OutputType(const KernelRequest& request, size_t index) {
  return request.graph->value(request.node->outputs[index]).type;
}

std::optional<dnnl::memory::desc> FixedInput(const KernelRequest& request, size_t index, int ndims) {
  const std::optional<CpuLayout>& layout = request.inputs[index];
  if (!layout || layout->plain || layout->desc.ndims != ndims) return std::nullopt;
  return ToDesc(*layout);
}

StatusOr<KernelPlan> MatchDemandedOutputs(const KernelRequest& request, KernelPlan plan) {
  std::vector<int64_t> offsets(plan.output_layouts.size(), -1);
  auto reorders = std::make_unique<DnnlKernel>(request.context.threads);
  reorders->ReserveScratch(plan.scratch_bytes);
  bool any = false;
  for (size_t i = 0; i < plan.output_layouts.size() && i < request.outputs.size(); ++i) {
    const std::optional<CpuLayout>& demanded = request.outputs[i];
    if (!demanded || SameLayout(*demanded, plan.output_layouts[i])) continue;
    const dnnl::memory::desc from = ToDesc(plan.output_layouts[i]), to = ToDesc(*demanded);
    offsets[i] = reorders->ReserveScratch(plan.output_layouts[i].bytes);
    const dnnl::reorder::primitive_desc pd(reorders->engine(), from, reorders->engine(), to, UserScratchpad());
    reorders->Add(dnnl::reorder(pd), pd.scratchpad_desc(),
                  {{DNNL_ARG_FROM, from, DnnlArgument::Source::kScratch, offsets[i]},
                   OutputArgument(DNNL_ARG_TO, to, static_cast<int64_t>(i))});
    plan.output_layouts[i] = *demanded;
    any = true;
  }
  if (!any) return plan;
  plan.scratch_bytes = reorders->scratch_bytes();
  plan.in_place.clear();
  plan.views.clear();
  plan.kernel = std::make_unique<ReorderedOutputs>(std::move(plan.kernel), std::move(reorders), std::move(offsets));
  return plan;
}

}  // namespace tutti
