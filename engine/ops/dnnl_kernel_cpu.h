// Kernels made of oneDNN primitives, and what the rooms that use them share. Include in *_cpu files only.
#pragma once

#include <memory>
#include <vector>

#include "engine/runtime/cpu/kernel.h"
#include "engine/runtime/cpu/onednn.h"

namespace tutti {

// What a primitive's argument is bound to when the kernel runs.
struct DnnlArgument {
  enum class Source { kInput, kOutput, kScratch };
  int name = 0;  // DNNL_ARG_...
  dnnl::memory::desc desc;
  Source source = Source::kInput;
  int64_t position = 0;  // index of the node's input or output, or byte offset into the scratch memory
};
DnnlArgument InputArgument(int name, const dnnl::memory::desc& desc, int64_t index);
DnnlArgument OutputArgument(int name, const dnnl::memory::desc& desc, int64_t index);

// Primitives that run one after the other. A primitive created for one number of threads may hang or change its bits
// when it runs with another: Run asserts that the calling thread's OpenMP team has the size that the kernel was made
// for.
class DnnlKernel final : public CpuKernel {
 public:
  explicit DnnlKernel(int threads);
  // Bytes of scratch memory that is used by all steps; offsets are multiples of 64.
  int64_t ReserveScratch(int64_t bytes);
  // `scratchpad` is the primitive's own demand (primitive_desc::scratchpad_desc()).
  void Add(const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad, std::vector<DnnlArgument> arguments);
  void Run(const KernelArgs& args) override;

  const dnnl::engine& engine() const { return engine_; }
  int64_t scratch_bytes() const { return scratch_bytes_; }

 private:
  struct Step {
    dnnl::primitive primitive;
    std::vector<DnnlArgument> arguments;
    std::vector<dnnl::memory> memories;
    std::vector<void*> handles;  // what `memories` point to; setting the same again would cost a pass over the padding
    std::vector<dnnl_exec_arg_t> call;
  };
  int threads_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::vector<Step> steps_;
  int64_t scratch_bytes_ = 0;
};

// Whether oneDNN has the primitive and in a fast form: descriptions are made with allow_empty.
bool IsUsable(const dnnl::primitive_desc_base& desc);

// UNIMPLEMENTED: no description of those tried is usable.
Status NoImplementation(const Node& node);

const TensorType& InputType(const KernelRequest& request, size_t index);
const TensorType& OutputType(const KernelRequest& request, size_t index);

// The layout that the request fixes for an input, where it is a blocked or permuted one of `ndims` dimensions.
std::optional<dnnl::memory::desc> FixedInput(const KernelRequest& request, size_t index, int ndims);

// Where an output must have another layout than the plan's, the kernel writes into scratch memory and a reorder
// follows. Both layouts must describe the same dimensions.
StatusOr<KernelPlan> MatchDemandedOutputs(const KernelRequest& request, KernelPlan plan);

}  // namespace tutti
