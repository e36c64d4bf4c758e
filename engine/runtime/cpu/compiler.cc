// Walks the graph in order, asks each node's factory for a plan, puts reorders between layouts that differ, and lays
// all intermediates out in one workspace.
#include <omp.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/check.h"
#include "engine/graph/verify.h"
#include "engine/passes/autodiff.h"
#include "engine/passes/memory_plan.h"
#include "engine/runtime/cpu/compiled.h"
#include "engine/runtime/cpu/reorder.h"

namespace tutti {
namespace {

size_t Index(ValueId id) { return static_cast<size_t>(id.value()); }

// Memory while the program is compiled: an external, or a buffer of the table.
struct Memory {
  int external = -1;
  int buffer = -1;
};

// A value in one layout. The first copy of a value is the one that its producer (or the caller) makes.
struct StoredCopy {
  CpuLayout layout;
  Memory memory;
};

struct DraftStep {
  KernelPlan plan;
  std::string op, path;
  std::vector<Memory> inputs, outputs;
  std::vector<size_t> completed;
};

class Compiler {
 public:
  Compiler(const Graph& graph, const KernelRegistry& kernels, const CompileOptions& options)
      : graph_(graph),
        kernels_(kernels),
        options_(options),
        copies_(graph.values().size()),
        output_of_(graph.values().size(), -1) {}

  StatusOr<CompiledProgram> Run() {
    AddExternals();
    for (const Node& node : graph_.nodes()) TUTTI_RETURN_IF_ERROR(AddNode(node));
    FixUnreadParameters();
    return Finish();
  }

 private:
  void AddExternals() {
    for (ValueId id : graph_.inputs()) {
      const Value& value = graph_.value(id);
      ExternalValue external{value.name, value.value_class, value.type, PlainLayout(value.type), false};
      const auto fixed = options_.fixed_layouts.find(value.name);
      if (fixed != options_.fixed_layouts.end()) external.layout = fixed->second;
      const int index = static_cast<int>(externals_.size());
      input_externals_[value.name] = index;
      // A parameter's layout is decided by its first reader.
      if (fixed != options_.fixed_layouts.end() || value.value_class != ValueClass::kParameter)
        copies_[Index(id)].push_back({external.layout, {index, -1}});
      externals_.push_back(std::move(external));
    }
    for (const Output& output : graph_.outputs()) {
      const TensorType& type = graph_.value(output.value).type;
      output_of_[Index(output.value)] = static_cast<int>(externals_.size());
      externals_.push_back({output.name, ValueClass::kIntermediate, type, PlainLayout(type), true});
      outputs_.push_back(&output);
    }
  }

  // The layout that output `output` must have; nullopt: of no consequence yet (a gradient of a parameter that nobody
  // laid out).
  CpuLayout DemandedLayout(const Output& output) const {
    const auto given = options_.output_layouts.find(output.name);
    if (given != options_.output_layouts.end()) return given->second;
    std::string like = output.alias;
    if (like.empty() && output.name.starts_with(kGradientPrefix)) like = output.name.substr(kGradientPrefix.size());
    const auto input = input_externals_.find(like);
    if (input != input_externals_.end() &&
        externals_[static_cast<size_t>(input->second)].type == graph_.value(output.value).type)
      return externals_[static_cast<size_t>(input->second)].layout;
    return PlainLayout(graph_.value(output.value).type);
  }

  const Output& OutputAt(int external) const {
    return *outputs_[static_cast<size_t>(external) - graph_.inputs().size()];
  }

  Status AddNode(const Node& node) {
    std::vector<std::optional<CpuLayout>> inputs, outputs;
    for (ValueId id : node.inputs)
      inputs.push_back(copies_[Index(id)].empty() ? std::nullopt : std::optional(copies_[Index(id)][0].layout));
    for (ValueId id : node.outputs) {
      const int external = output_of_[Index(id)];
      outputs.push_back(external < 0 ? std::nullopt : std::optional(DemandedLayout(OutputAt(external))));
    }
    const StatusOr<const KernelFactory*> factory = kernels_.Find(node.op);
    if (!factory.ok()) return Unimplemented("{} {}: {}", node.path, node.op, Message(factory.status()));
    TUTTI_ASSIGN_OR_RETURN(KernelPlan plan, (**factory)({&graph_, &node, inputs, outputs, {options_.threads}}));
    if (plan.input_layouts.size() != node.inputs.size() || plan.output_layouts.size() != node.outputs.size() ||
        !plan.kernel)
      return Internal("{} {}: the kernel's plan has {} inputs and {} outputs, expected {} and {}", node.path, node.op,
                      plan.input_layouts.size(), plan.output_layouts.size(), node.inputs.size(), node.outputs.size());
    DraftStep step{std::move(plan), node.op, node.path, {}, {}, {}};
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      TUTTI_ASSIGN_OR_RETURN(const Memory memory, Read(node, node.inputs[i], step.plan.input_layouts[i]));
      step.inputs.push_back(memory);
    }
    return PlaceOutputs(node, std::move(step), outputs);
  }

  // Memory that holds `id` in `layout`: a copy that is there, or a new one by a reorder.
  StatusOr<Memory> Read(const Node& reader, ValueId id, const CpuLayout& layout) {
    std::vector<StoredCopy>& copies = copies_[Index(id)];
    if (copies.empty()) {
      const int external = input_externals_.at(graph_.value(id).name);
      externals_[static_cast<size_t>(external)].layout = layout;
      copies.push_back({layout, {external, -1}});
    }
    for (const StoredCopy& copy : copies)
      if (SameLayout(copy.layout, layout)) return copy.memory;
    const Memory memory{-1, buffers_.Add(layout.bytes)};
    TUTTI_RETURN_IF_ERROR(AddReorder(reader.path, copies[0], {layout, memory}));
    copies.push_back({layout, memory});
    return memory;
  }

  Status AddReorder(const std::string& path, const StoredCopy& from, const StoredCopy& to) {
    StatusOr<KernelPlan> plan = PlanReorder(from.layout, to.layout);
    if (!plan.ok()) return Annotate(plan.status(), path);
    steps_.push_back({*std::move(plan), "reorder", path, {from.memory}, {to.memory}, {}});
    return OkStatus();
  }

  // Gives the step's outputs memory, and where one may not be written in place of the graph's output, copies it there
  // afterwards.
  Status PlaceOutputs(const Node& node, DraftStep step, const std::vector<std::optional<CpuLayout>>& demanded) {
    std::vector<std::pair<StoredCopy, StoredCopy>> moves;
    std::vector<size_t> moved;
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const int external = output_of_[Index(node.outputs[k])];
      const CpuLayout& made = step.plan.output_layouts[k];
      StoredCopy copy{made, {external, -1}};
      if (external >= 0) externals_[static_cast<size_t>(external)].layout = *demanded[k];
      if (external < 0 || !SameLayout(made, *demanded[k]) || WouldOverwrite(node, step, k, external)) {
        copy.memory = {-1, buffers_.Add(made.bytes)};
        if (external >= 0) {
          moves.push_back({copy, {*demanded[k], {external, -1}}});
          moved.push_back(static_cast<size_t>(external));
        }
      } else {
        step.completed.push_back(static_cast<size_t>(external));
      }
      step.outputs.push_back(copy.memory);
      copies_[Index(node.outputs[k])].push_back(copy);
    }
    steps_.push_back(std::move(step));
    for (size_t m = 0; m < moves.size(); ++m) {
      TUTTI_RETURN_IF_ERROR(AddReorder(node.path, moves[m].first, moves[m].second));
      steps_.back().completed.push_back(moved[m]);
    }
    return OkStatus();
  }

  // Output k is the next version of an input that this very step reads, and the kernel does not work in place.
  bool WouldOverwrite(const Node& node, const DraftStep& step, size_t k, int external) const {
    const std::string& alias = OutputAt(external).alias;
    if (alias.empty()) return false;
    const int input = input_externals_.at(alias);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const std::pair<int, int> pair(static_cast<int>(k), static_cast<int>(i));
      const auto& allowed = step.plan.in_place;
      if (step.inputs[i].external == input && std::find(allowed.begin(), allowed.end(), pair) == allowed.end())
        return true;
    }
    return false;
  }

  void FixUnreadParameters() {
    for (ValueId id : graph_.inputs())
      if (copies_[Index(id)].empty()) {
        const int external = input_externals_.at(graph_.value(id).name);
        copies_[Index(id)].push_back({externals_[static_cast<size_t>(external)].layout, {external, -1}});
      }
  }

  void RecordUses() {
    for (size_t s = 0; s < steps_.size(); ++s) {
      for (const Memory& memory : steps_[s].inputs)
        if (memory.buffer >= 0) buffers_.Use(memory.buffer, static_cast<int>(s));
      for (const Memory& memory : steps_[s].outputs)
        if (memory.buffer >= 0) buffers_.Use(memory.buffer, static_cast<int>(s));
    }
  }

  void ShareMemory() {
    for (size_t s = 0; s < steps_.size(); ++s) {
      const DraftStep& step = steps_[s];
      std::vector<int> operands;
      for (const Memory& memory : step.inputs) operands.push_back(memory.buffer);
      const auto both_inside = [&](const std::pair<int, int>& pair) {
        return step.outputs[static_cast<size_t>(pair.first)].buffer >= 0 &&
               operands[static_cast<size_t>(pair.second)] >= 0;
      };
      for (const auto& pair : step.plan.views)
        if (both_inside(pair))
          buffers_.ShareView(step.outputs[static_cast<size_t>(pair.first)].buffer,
                             operands[static_cast<size_t>(pair.second)]);
      for (const auto& pair : step.plan.in_place)
        if (both_inside(pair))
          buffers_.ShareInPlace(step.outputs[static_cast<size_t>(pair.first)].buffer,
                                operands[static_cast<size_t>(pair.second)], static_cast<int>(s), operands);
    }
  }

  CompiledProgram Finish() {
    RecordUses();
    ShareMemory();
    const MemoryPlan memory = buffers_.Plan();
    CompiledProgram program;
    program.externals = std::move(externals_);
    program.activation_bytes = AlignUp(memory.total_bytes);
    program.threads = options_.threads;
    const auto place = [&](const Memory& m) {
      return m.external >= 0 ? Place{m.external, 0} : Place{-1, memory.offsets[static_cast<size_t>(m.buffer)]};
    };
    for (DraftStep& draft : steps_) {
      program.scratch_bytes = std::max(program.scratch_bytes, AlignUp(draft.plan.scratch_bytes));
      CompiledStep step;
      step.kernel = std::move(draft.plan.kernel);
      step.op = std::move(draft.op);
      step.path = std::move(draft.path);
      step.implementation = std::move(draft.plan.implementation);
      for (const Memory& m : draft.inputs) step.inputs.push_back(place(m));
      for (const Memory& m : draft.outputs) step.outputs.push_back(place(m));
      step.completed = std::move(draft.completed);
      program.steps.push_back(std::move(step));
    }
    return program;
  }

  const Graph& graph_;
  const KernelRegistry& kernels_;
  const CompileOptions& options_;
  std::vector<ExternalValue> externals_;
  std::map<std::string, int> input_externals_;
  std::vector<const Output*> outputs_;           // of externals after the inputs
  std::vector<std::vector<StoredCopy>> copies_;  // by value
  std::vector<int> output_of_;                   // by value: its external, or -1
  std::vector<DraftStep> steps_;
  BufferTable buffers_;
};

// Primitives are made for the team size that runs them.
class ScopedTeamSize {
 public:
  explicit ScopedTeamSize(int threads) : saved_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~ScopedTeamSize() { omp_set_num_threads(saved_); }

 private:
  int saved_;
};

}  // namespace

StatusOr<CompiledProgram> CompileCpu(const Graph& graph, const KernelRegistry& kernels, const CompileOptions& options) {
  TUTTI_RETURN_IF_ERROR(Verify(graph));
  if (options.threads < 1 || options.threads > omp_get_thread_limit())
    return InvalidArgument("graph {}: {} threads, expected 1 to {} (OMP_THREAD_LIMIT)", graph.name(), options.threads,
                           omp_get_thread_limit());
  TUTTI_CHECK(!omp_in_parallel(), "programs are compiled outside of parallel regions");
  const ScopedTeamSize team(options.threads);
  return Compiler(graph, kernels, options).Run();
}

}  // namespace tutti
