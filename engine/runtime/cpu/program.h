// A graph compiled for the CPU: kernels, layouts and offsets are fixed; running makes no decision and no allocation.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/graph/graph.h"
#include "engine/runtime/cpu/kernel.h"

namespace tutti {

struct CompileOptions {
  int threads = 1;  // OpenMP threads of the lane that will run it
  std::map<std::string, CpuLayout>
      fixed_layouts;  // by input name: parameters that another program of the family laid out
  // Layout that an output must have, by output name ("gradient/layers.0.weight"): where absent and the name is
  // "gradient/<input>", the layout of that input; else plain.
  std::map<std::string, CpuLayout> output_layouts;
};

// A graph input or output: memory that the caller gives.
struct ExternalValue {
  std::string name;
  ValueClass value_class;  // kIntermediate for outputs
  TensorType type;
  CpuLayout layout;
  bool is_output = false;
};

struct NodeProfile {
  std::string op, path, implementation;
  int64_t nanos = 0;
};

class CpuProgram {
 public:
  virtual ~CpuProgram() = default;

  // INVALID_ARGUMENT: the graph does not verify. UNIMPLEMENTED: an op has no CPU kernel.
  static StatusOr<std::unique_ptr<CpuProgram>> Compile(const Graph& graph, const KernelRegistry& kernels,
                                                       const CompileOptions& options);

  // Graph inputs in graph order, then outputs in graph order. Aliased outputs are bound to their input's memory by the
  // caller.
  virtual std::span<const ExternalValue> externals() const = 0;
  virtual int64_t activation_bytes() const = 0;  // intermediates, after lifetimes were packed
  virtual int64_t scratch_bytes() const = 0;     // largest scratchpad
  int64_t workspace_bytes() const { return activation_bytes() + scratch_bytes(); }
  virtual std::vector<std::string> kernel_choices() const = 0;  // "layers.0 conv2d: jit:avx2", in node order

  struct RunOptions {
    // Called after the node that completes output external `index` (gradients in backward order): starts a bucket's
    // exchange.
    const std::function<void(size_t index)>* on_output = nullptr;
    std::vector<NodeProfile>* profile = nullptr;  // filled when set; costs two clock reads a node
  };
  // `memory[i]` belongs to externals()[i], 64-byte aligned, alive during the call; `workspace` has workspace_bytes().
  // One call at a time per program: lanes that run side by side own a program each. Flushes denormals in all its
  // threads.
  virtual void Run(std::span<void* const> memory, void* workspace, const RunOptions& options) = 0;
};

// Copies between a stored layout and plain logical order (checkpoints, initialisation, tests).
void PackFromPlain(const float* plain, const CpuLayout& layout, void* stored);  // padding becomes zero
void UnpackToPlain(const void* stored, const CpuLayout& layout, float* plain);

}  // namespace tutti
