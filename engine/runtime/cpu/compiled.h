// What the compiler makes and the program runs. Internal to the runtime.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/runtime/cpu/program.h"

namespace tutti {

// Where an operand lies: an external's memory, or an offset in the workspace.
struct Place {
  int external = -1;
  int64_t offset = 0;
};

struct CompiledStep {
  std::unique_ptr<CpuKernel> kernel;
  std::string op, path, implementation;
  std::vector<Place> inputs, outputs;
  std::vector<size_t> completed;  // output externals that are final after this step
};

struct CompiledProgram {
  std::vector<CompiledStep> steps;
  std::vector<ExternalValue> externals;
  int64_t activation_bytes = 0;
  int64_t scratch_bytes = 0;
  int threads = 1;
};

StatusOr<CompiledProgram> CompileCpu(const Graph& graph, const KernelRegistry& kernels, const CompileOptions& options);

}  // namespace tutti
