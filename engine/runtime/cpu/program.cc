#include "engine/runtime/cpu/program.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "engine/passes/memory_plan.h"
#include "engine/runtime/cpu/compiled.h"
#include "engine/runtime/cpu/onednn.h"
#include "engine/runtime/cpu/parallel.h"
#include "engine/runtime/cpu/reorder.h"

namespace tutti {
namespace {

bool IsAligned(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % kTensorAlignment == 0; }

class CompiledCpuProgram : public CpuProgram {
 public:
  explicit CompiledCpuProgram(CompiledProgram program) : program_(std::move(program)) {
    size_t pointers = 0;
    for (const CompiledStep& step : program_.steps) pointers += step.inputs.size() + step.outputs.size();
    pointers_.resize(pointers, nullptr);
    bound_memory_.resize(program_.externals.size(), nullptr);
  }

  std::span<const ExternalValue> externals() const override { return program_.externals; }
  int64_t activation_bytes() const override { return program_.activation_bytes; }
  int64_t scratch_bytes() const override { return program_.scratch_bytes; }

  std::vector<std::string> kernel_choices() const override {
    std::vector<std::string> choices;
    for (const CompiledStep& step : program_.steps)
      choices.push_back(fmt::format("{} {}: {}", step.path, step.op, step.implementation));
    return choices;
  }

  void Run(std::span<void* const> memory, void* workspace, const RunOptions& options) override {
    TUTTI_CHECK(!omp_in_parallel(), "programs run outside of parallel regions");
    Bind(memory, workspace);
    const int team = omp_get_max_threads();
    if (team != program_.threads) omp_set_num_threads(program_.threads);
    const ScopedFlushDenormals flush;
    FlushDenormalsInTeam(program_.threads);
    if (options.profile != nullptr) options.profile->clear();
    void* scratch = static_cast<char*>(workspace) + program_.activation_bytes;
    size_t at = 0;
    for (CompiledStep& step : program_.steps) {
      const KernelArgs args{&pointers_[at], &pointers_[at] + step.inputs.size(), scratch};
      at += step.inputs.size() + step.outputs.size();
      if (options.profile == nullptr) {
        step.kernel->Run(args);
      } else {
        RunTimed(step, args, options.profile);
      }
      if (options.on_output != nullptr)
        for (size_t index : step.completed) (*options.on_output)(index);
    }
    if (team != program_.threads) omp_set_num_threads(team);
  }

 private:
  static void RunTimed(CompiledStep& step, const KernelArgs& args, std::vector<NodeProfile>* profile) {
    const Nanos start = SystemClock().Monotonic();
    step.kernel->Run(args);
    profile->push_back({step.op, step.path, step.implementation, (SystemClock().Monotonic() - start).count()});
  }

  // Fills the kernels' pointer tables; nothing to do where the caller gives the same memory as last time.
  void Bind(std::span<void* const> memory, void* workspace) {
    TUTTI_CHECK(memory.size() == bound_memory_.size(), "{} externals given, expected {}", memory.size(),
                bound_memory_.size());
    if (bound_ && workspace == bound_workspace_ && std::equal(memory.begin(), memory.end(), bound_memory_.begin()))
      return;
    TUTTI_CHECK(IsAligned(workspace), "the workspace is not aligned");
    for (size_t i = 0; i < memory.size(); ++i)
      TUTTI_CHECK(memory[i] != nullptr && IsAligned(memory[i]), "external {} is absent or not aligned",
                  program_.externals[i].name);
    size_t at = 0;
    const auto bind = [&](const std::vector<Place>& places) {
      for (const Place& place : places)
        pointers_[at++] = place.external >= 0 ? memory[static_cast<size_t>(place.external)]
                                              : static_cast<char*>(workspace) + place.offset;
    };
    for (const CompiledStep& step : program_.steps) {
      bind(step.inputs);
      bind(step.outputs);
    }
    std::copy(memory.begin(), memory.end(), bound_memory_.begin());
    bound_workspace_ = workspace;
    bound_ = true;
  }

  CompiledProgram program_;
  std::vector<void*> pointers_;  // of all steps in turn: inputs, outputs
  std::vector<void*> bound_memory_;
  void* bound_workspace_ = nullptr;
  bool bound_ = false;
};

// Outside of the step loop: scratch memory is allocated.
void Reorder(const CpuLayout& from, const void* source, const CpuLayout& to, void* target) {
  StatusOr<KernelPlan> plan = PlanReorder(from, to);
  TUTTI_CHECK_OK(plan.status());
  std::vector<char> scratch(static_cast<size_t>(plan->scratch_bytes + kTensorAlignment));
  const auto address = reinterpret_cast<uintptr_t>(scratch.data());
  void* const aligned = scratch.data() + (kTensorAlignment - address % kTensorAlignment) % kTensorAlignment;
  void* const inputs[] = {const_cast<void*>(source)};
  void* const outputs[] = {target};
  plan->kernel->Run({inputs, outputs, aligned});
}

CpuLayout PlainLike(const CpuLayout& layout) { return FromDesc(PlainDesc(ToDesc(layout).dims())); }

}  // namespace

StatusOr<std::unique_ptr<CpuProgram>> CpuProgram::Compile(const Graph& graph, const KernelRegistry& kernels,
                                                          const CompileOptions& options) {
  TUTTI_ASSIGN_OR_RETURN(CompiledProgram program, CompileCpu(graph, kernels, options));
  return std::unique_ptr<CpuProgram>(std::make_unique<CompiledCpuProgram>(std::move(program)));
}

void PackFromPlain(const float* plain, const CpuLayout& layout, void* stored) {
  Reorder(PlainLike(layout), plain, layout, stored);
}

void UnpackToPlain(const void* stored, const CpuLayout& layout, float* plain) {
  Reorder(layout, stored, PlainLike(layout), plain);
}

}  // namespace tutti
