// The border between the CPU compiler (engine/runtime/cpu) and an operator's CPU kernel (engine/ops/<room>/*_cpu.cc).
//
// Layouts: a tensor's logical elements may lie in memory in a library's own (blocked) order. The compiler walks the
// graph in order and asks each node's factory for a plan: given the layouts of inputs that are fixed already, the
// factory says which layouts it wants and makes. Where an input lies differently the compiler inserts a reorder. A
// parameter's stored layout is the one that its first consumer (the forward op) asks for, for the job's whole life;
// gradients and optimizer state have the parameter's layout.
#pragma once

#include <dnnl_types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/graph/graph.h"

namespace tutti {

struct CpuLayout {
  dnnl_memory_desc_t desc;  // oneDNN's own; zero dims for dtypes that it lacks
  int64_t bytes = 0;        // with padding of blocked formats
  bool plain = true;        // dense, row-major, logical order
};
CpuLayout PlainLayout(const TensorType& type);
bool SameLayout(const CpuLayout& a, const CpuLayout& b);

struct KernelArgs {
  void* const* inputs;  // 64-byte aligned, in the planned layouts
  void* const* outputs;
  void* scratch;  // scratch_bytes, 64-byte aligned; content undefined before and after
};

class CpuKernel {
 public:
  virtual ~CpuKernel() = default;
  // Runs on the calling thread plus planned `threads` - 1 OpenMP threads. No allocation over 1 KB. One call at a time
  // per object.
  virtual void Run(const KernelArgs& args) = 0;
};

struct KernelContext {
  int threads = 1;  // OpenMP threads of this lane; already set (omp_set_num_threads) when factory and Run are called
};

struct KernelPlan {
  std::unique_ptr<CpuKernel> kernel;
  std::vector<CpuLayout> input_layouts;   // what Run reads
  std::vector<CpuLayout> output_layouts;  // what Run writes; where an output layout was demanded: that one
  int64_t scratch_bytes = 0;
  std::vector<std::pair<int, int>> in_place;  // (output, input) that may share memory in this plan
  std::vector<std::pair<int, int>>
      views;                   // (output, input): the same bytes; Run does nothing for it when pointers are equal
  std::string implementation;  // "oneDNN brgconv:avx2", "tutti pointwise": recorded in plan and manifest
};

struct KernelRequest {
  const Graph* graph;
  const Node* node;
  std::span<const std::optional<CpuLayout>> inputs;   // nullopt: a parameter whose layout this kernel decides
  std::span<const std::optional<CpuLayout>> outputs;  // set: the output must have this layout (a parameter's gradient)
  KernelContext context;

  const TensorType& input_type(size_t i) const { return graph->value(node->inputs[i]).type; }
  const TensorType& output_type(size_t i) const { return graph->value(node->outputs[i]).type; }
};
// A plan without kernel in which every input and output is plain: the start of own kernels.
KernelPlan PlainPlan(const KernelRequest& request);

using KernelFactory = std::function<StatusOr<KernelPlan>(const KernelRequest&)>;

class KernelRegistry {
 public:
  Status Register(std::string op, KernelFactory factory);          // ALREADY_EXISTS
  StatusOr<const KernelFactory*> Find(std::string_view op) const;  // NOT_FOUND names the op and the device

 private:
  std::map<std::string, KernelFactory, std::less<>> factories_;
};

}  // namespace tutti
