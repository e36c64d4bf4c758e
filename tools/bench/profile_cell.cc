// Where the time of one cell goes: profile_cell JOB.yaml C,H,W [THREADS [ROWS]] compiles the job's training graph and
// prints, for each node of the program, its implementation, the fastest of 30 runs and the rate of its multiply-adds.
#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/nn/model.h"
#include "engine/ops/registry.h"
#include "engine/ops/registry_cpu.h"
#include "engine/passes/fusion.h"
#include "engine/runtime/arena.h"
#include "engine/runtime/cpu/program.h"
#include "job/job_file.h"

namespace tutti {
namespace {

constexpr int kRuns = 30;

double FlopsOf(const Graph& graph, const OpRegistry& ops, std::string_view op, std::string_view path) {
  for (const Node& node : graph.nodes()) {
    if (node.op != op || node.path != path) continue;
    std::vector<TensorType> inputs, outputs;
    for (const ValueId id : node.inputs) inputs.push_back(graph.value(id).type);
    for (const ValueId id : node.outputs) outputs.push_back(graph.value(id).type);
    return ops.Find(op).value()->cost(node, inputs, outputs).flops;
  }
  return 0;
}

Status Profile(const std::string& file, const std::vector<int64_t>& sample_dims, int threads, int64_t rows) {
  const OpRegistry ops = StandardOps();
  JobFileOptions job_options;
  job_options.working_directory = "/tmp";
  TUTTI_ASSIGN_OR_RETURN(const LoadedJob job, LoadJobFile(file, job_options));
  TUTTI_ASSIGN_OR_RETURN(const Model model, BuildModel(job.spec, sample_dims, rows, ops));
  TUTTI_ASSIGN_OR_RETURN(const Graph graph, BuildTrainingGraph(model.training, "loss_sum", ops));
  omp_set_num_threads(threads);
  CompileOptions options;
  options.threads = threads;
  TUTTI_ASSIGN_OR_RETURN(const auto program, CpuProgram::Compile(graph, StandardCpuKernels(), options));
  ArenaLayout layout;
  for (const ExternalValue& external : program->externals()) layout.Reserve(external.name, external.layout.bytes);
  layout.Reserve("(workspace)", program->workspace_bytes());
  TUTTI_ASSIGN_OR_RETURN(const Arena arena, Arena::Create(layout));
  std::vector<void*> memory;
  for (const ExternalValue& external : program->externals()) {
    memory.push_back(arena.Find(external.name));
    if (external.type.dtype != DType::kF32) continue;
    auto* values = static_cast<float*>(memory.back());
    for (int64_t i = 0; i < external.layout.bytes / 4; ++i) {
      values[i] = static_cast<float>(i * 7919 % 1000) / 5000.0f - 0.1f;
    }
  }
  void* workspace = arena.Find("(workspace)");
  std::vector<NodeProfile> profile, best;
  CpuProgram::RunOptions run;
  run.profile = &profile;
  for (int i = 0; i < kRuns; ++i) {
    program->Run(memory, workspace, run);
    if (best.empty()) best = profile;
    for (size_t node = 0; node < best.size(); ++node)
      best[node].nanos = std::min(best[node].nanos, profile[node].nanos);
  }
  double total_ms = 0;
  for (const NodeProfile& node : best) {
    const double ms = static_cast<double>(node.nanos) * 1e-6, flops = FlopsOf(graph, ops, node.op, node.path);
    total_ms += ms;
    fmt::print("{:8.3f} ms {:7.1f} GFLOP/s  {:<12} {:<22} {}\n", ms, flops / static_cast<double>(node.nanos), node.path,
               node.op, node.implementation);
  }
  fmt::print("{:8.3f} ms in {} nodes · activations {:.1f} MiB · scratch {:.1f} MiB\n", total_ms, best.size(),
             static_cast<double>(program->activation_bytes()) / (1 << 20),
             static_cast<double>(program->scratch_bytes()) / (1 << 20));
  return OkStatus();
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: profile_cell JOB.yaml C,H,W [THREADS [ROWS]]\n");
    return 2;
  }
  std::vector<int64_t> dims;
  std::stringstream list(argv[2]);
  for (std::string word; std::getline(list, word, ',');) dims.push_back(std::atoll(word.c_str()));
  const int threads = argc > 3 ? std::atoi(argv[3]) : 2;
  const int64_t rows = argc > 4 ? std::atoll(argv[4]) : 128;
  if (const tutti::Status status = tutti::Profile(argv[1], dims, threads, rows); !status.ok()) {
    fmt::print(stderr, "{}\n", status.ToString());
    return 1;
  }
  return 0;
}
