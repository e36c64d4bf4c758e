#include "engine/runtime/cpu/reorder.h"

#include <cstring>

#include "engine/passes/memory_plan.h"
#include "engine/runtime/cpu/onednn.h"

namespace tutti {
namespace {

// Plain memory under the dims that the other side describes (an image tensor and its flattened matrix are the same
// bytes).
dnnl::memory::desc DescLike(const CpuLayout& layout, const CpuLayout& other) {
  return layout.plain ? PlainDesc(ToDesc(other).dims()) : ToDesc(layout);
}

class CopyKernel : public CpuKernel {
 public:
  explicit CopyKernel(int64_t bytes) : bytes_(bytes) {}
  void Run(const KernelArgs& args) override {
    std::memcpy(args.outputs[0], args.inputs[0], static_cast<size_t>(bytes_));
  }

 private:
  int64_t bytes_;
};

class ReorderKernel : public CpuKernel {
 public:
  ReorderKernel(const dnnl::memory::desc& from, const dnnl::memory::desc& to)
      : engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        from_(from, engine_, nullptr),
        to_(to, engine_, nullptr) {
    const dnnl::reorder::primitive_desc desc(engine_, from, engine_, to, UserScratchpad());
    scratch_ = dnnl::memory(desc.scratchpad_desc(), engine_, nullptr);
    scratch_bytes_ = static_cast<int64_t>(desc.scratchpad_desc().get_size());
    implementation_ = ImplementationName(desc);
    reorder_ = dnnl::reorder(desc);
  }

  void Run(const KernelArgs& args) override { Run(args.inputs[0], args.outputs[0], args.scratch); }

  void Run(void* from, void* to, void* scratch) {
    SetHandle(from_, from);
    SetHandle(to_, to);
    if (scratch_bytes_ > 0) SetHandle(scratch_, scratch);
    reorder_.execute(stream_, {{DNNL_ARG_FROM, from_}, {DNNL_ARG_TO, to_}, {DNNL_ARG_SCRATCHPAD, scratch_}});
  }

  int64_t scratch_bytes() const { return scratch_bytes_; }
  const std::string& implementation() const { return implementation_; }

 private:
  // Setting a handle clears the padding behind it: not needed for memory that is set already.
  static void SetHandle(dnnl::memory& memory, void* handle) {
    if (memory.get_data_handle() != handle) memory.set_data_handle(handle);
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::memory from_, to_, scratch_;
  dnnl::reorder reorder_;
  int64_t scratch_bytes_ = 0;
  std::string implementation_;
};

// Between two blocked layouts that describe different dims: through plain memory.
class TwoStepReorder : public CpuKernel {
 public:
  TwoStepReorder(const CpuLayout& from, const CpuLayout& to)
      : first_(ToDesc(from), PlainDesc(ToDesc(from).dims())), second_(PlainDesc(ToDesc(to).dims()), ToDesc(to)) {
    plain_bytes_ = AlignUp(static_cast<int64_t>(PlainDesc(ToDesc(from).dims()).get_size()));
  }
  void Run(const KernelArgs& args) override {
    char* plain = static_cast<char*>(args.scratch);
    first_.Run(args.inputs[0], plain, plain + plain_bytes_);
    second_.Run(plain, args.outputs[0], plain + plain_bytes_);
  }
  int64_t scratch_bytes() const { return plain_bytes_ + std::max(first_.scratch_bytes(), second_.scratch_bytes()); }

 private:
  ReorderKernel first_, second_;
  int64_t plain_bytes_;
};

bool HasDesc(const CpuLayout& layout) { return layout.desc.ndims > 0; }

}  // namespace

StatusOr<KernelPlan> PlanReorder(const CpuLayout& from, const CpuLayout& to) {
  KernelPlan plan;
  plan.input_layouts = {from};
  plan.output_layouts = {to};
  if (SameLayout(from, to)) {
    plan.implementation = "tutti copy";
    plan.kernel = std::make_unique<CopyKernel>(from.bytes);
    return plan;
  }
  if (!HasDesc(from) || !HasDesc(to))
    return Internal("no reorder between layouts of {} and {} bytes: the dtype has plain layout only", from.bytes,
                    to.bytes);
  return CatchDnnl(Node{"reorder", "runtime", {}, {}, {}}, [&]() -> StatusOr<KernelPlan> {
    if (!from.plain && !to.plain && from.desc.ndims != to.desc.ndims) {
      auto kernel = std::make_unique<TwoStepReorder>(from, to);
      plan.scratch_bytes = kernel->scratch_bytes();
      plan.implementation = "oneDNN reorder through plain";
      plan.kernel = std::move(kernel);
    } else {
      auto kernel = std::make_unique<ReorderKernel>(DescLike(from, to), DescLike(to, from));
      plan.scratch_bytes = kernel->scratch_bytes();
      plan.implementation = kernel->implementation();
      plan.kernel = std::move(kernel);
    }
    return std::move(plan);
  });
}

}  // namespace tutti
