// Compiles a graph for the CPU and runs it once on values in plain logical order. For tests of ops, passes and the
// compiler.
#pragma once

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "engine/graph/graph.h"
#include "engine/passes/memory_plan.h"
#include "engine/runtime/cpu/program.h"

namespace tutti {

using PlainValues = std::map<std::string, std::vector<double>>;  // by name, logical row-major order, whatever the dtype

template <typename T>
void CastInto(const std::vector<double>& from, void* to) {
  for (size_t i = 0; i < from.size(); ++i) static_cast<T*>(to)[i] = static_cast<T>(from[i]);
}
template <typename T>
std::vector<double> CastFrom(const void* from, int64_t count) {
  const T* typed = static_cast<const T*>(from);
  return std::vector<double>(typed, typed + count);
}

inline void StoreValue(const ExternalValue& external, const std::vector<double>& values, void* memory) {
  TUTTI_CHECK(static_cast<int64_t>(values.size()) == external.type.elements(), "{}: {} values given, {} expected",
              external.name, values.size(), external.type.elements());
  switch (external.type.dtype) {
    case DType::kF32: {
      const std::vector<float> plain(values.begin(), values.end());
      return PackFromPlain(plain.data(), external.layout, memory);
    }
    case DType::kI32:
      return CastInto<int32_t>(values, memory);
    case DType::kI64:
      return CastInto<int64_t>(values, memory);
    case DType::kU64:
      return CastInto<uint64_t>(values, memory);
    case DType::kU8:
      return CastInto<uint8_t>(values, memory);
  }
}

inline std::vector<double> LoadValue(const ExternalValue& external, const void* memory) {
  const int64_t n = external.type.elements();
  switch (external.type.dtype) {
    case DType::kF32: {
      std::vector<float> plain(static_cast<size_t>(n));
      UnpackToPlain(memory, external.layout, plain.data());
      return std::vector<double>(plain.begin(), plain.end());
    }
    case DType::kI32:
      return CastFrom<int32_t>(memory, n);
    case DType::kI64:
      return CastFrom<int64_t>(memory, n);
    case DType::kU64:
      return CastFrom<uint64_t>(memory, n);
    case DType::kU8:
      return CastFrom<uint8_t>(memory, n);
  }
  return {};
}

// Memory of one program: every external, aliased outputs in their input's place, and the workspace, full of NaN before
// the first run so that reading what nobody wrote shows.
class ProgramMemory {
 public:
  ProgramMemory(const Graph& graph, const CpuProgram& program) {
    for (const ExternalValue& external : program.externals()) {
      std::string alias;
      for (const Output& output : graph.outputs())
        if (external.is_output && output.name == external.name) alias = output.alias;
      void* shared = nullptr;
      for (size_t i = 0; i < pointers_.size(); ++i)
        if (!alias.empty() && !program.externals()[i].is_output && program.externals()[i].name == alias)
          shared = pointers_[i];
      pointers_.push_back(shared != nullptr ? shared : Allocate(external.layout.bytes));
    }
    workspace_ = Allocate(program.workspace_bytes());
  }
  std::span<void* const> pointers() const { return pointers_; }
  void* workspace() const { return workspace_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  void* Allocate(int64_t bytes) {
    const size_t size = static_cast<size_t>(AlignUp(bytes + 1));
    blocks_.emplace_back(std::aligned_alloc(64, size));
    std::memset(blocks_.back().get(), 0xFF, size);
    return blocks_.back().get();
  }
  std::vector<std::unique_ptr<void, Free>> blocks_;
  std::vector<void*> pointers_;
  void* workspace_ = nullptr;
};

// Outputs by name. Every graph input must be in `inputs`.
inline StatusOr<PlainValues> RunGraph(const Graph& graph, const KernelRegistry& kernels, const PlainValues& inputs,
                                      int threads = 1) {
  CompileOptions options;
  options.threads = threads;
  TUTTI_ASSIGN_OR_RETURN(std::unique_ptr<CpuProgram> program, CpuProgram::Compile(graph, kernels, options));
  ProgramMemory memory(graph, *program);
  const auto externals = program->externals();
  for (size_t i = 0; i < externals.size(); ++i) {
    if (externals[i].is_output) continue;
    const auto found = inputs.find(externals[i].name);
    if (found == inputs.end()) return InvalidArgument("the test gives no value for input {}", externals[i].name);
    StoreValue(externals[i], found->second, memory.pointers()[i]);
  }
  program->Run(memory.pointers(), memory.workspace(), {});
  PlainValues outputs;
  for (size_t i = 0; i < externals.size(); ++i)
    if (externals[i].is_output) outputs[externals[i].name] = LoadValue(externals[i], memory.pointers()[i]);
  return outputs;
}

}  // namespace tutti
