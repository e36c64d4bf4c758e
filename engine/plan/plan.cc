#include "engine/plan/plan.h"

#include <algorithm>

#include "base/text.h"
#include "engine/comm/tree_reduce.h"
#include "engine/data/steps.h"
#include "engine/nn/model.h"
#include "engine/ops/builder.h"
#include "engine/ops/registry.h"
#include "engine/optim/update.h"
#include "engine/passes/fusion.h"
#include "engine/passes/memory_plan.h"

namespace tutti {
namespace {

constexpr double kDefaultFlopsPerCore = 25e9;      // f32 on a server core without AVX-512, sustained
constexpr double kExchangeBytesPerSecond = 2.0e9;  // shared memory or a 25 Gbit/s link, copies included
constexpr int64_t kMiB = 1 << 20;

struct Graphs {
  Model model;
  Graph training;
  Graph evaluation;
};

StatusOr<Graphs> BuildGraphs(const v1::JobSpec& spec, const DataShape& data, const OpRegistry& ops) {
  Graphs graphs;
  TUTTI_ASSIGN_OR_RETURN(graphs.model, BuildModel(spec, data.sample_dims, spec.batch().micro(), ops));
  TUTTI_ASSIGN_OR_RETURN(graphs.training, BuildTrainingGraph(graphs.model.training, "loss_sum", ops));
  TUTTI_ASSIGN_OR_RETURN(graphs.evaluation, BuildInferenceGraph(graphs.model.evaluation, ops));
  return graphs;
}

// "layers.3" of "layers.3.layers.0".
std::string TopLevel(const std::string& path) {
  const size_t second = path.find('.', path.find('.') + 1);
  return second == std::string::npos ? path : path.substr(0, second);
}

// FLOPs of one cell, forward and backward; adds each layer's share per sample to the table.
StatusOr<double> CountFlops(const Graph& training, const OpRegistry& ops, int64_t rows,
                            std::vector<v1::LayerPlan>* layers) {
  double total = 0;
  for (const Node& node : training.nodes()) {
    TUTTI_ASSIGN_OR_RETURN(const OpDef* op, ops.Find(node.op));
    if (!op->cost) continue;
    std::vector<TensorType> inputs, outputs;
    for (ValueId id : node.inputs) inputs.push_back(training.value(id).type);
    for (ValueId id : node.outputs) outputs.push_back(training.value(id).type);
    const double flops = op->cost(node, inputs, outputs).flops;
    total += flops;
    const std::string top = TopLevel(node.path);
    for (v1::LayerPlan& layer : *layers) {
      if (layer.path() == top) layer.set_flops(layer.flops() + flops / static_cast<double>(rows));
    }
  }
  return total;
}

// Stored bytes at most: kernels may pad the first two axes of a weight to 16.
int64_t StoredBytes(const TensorType& type) {
  int64_t elements = 1;
  for (size_t axis = 0; axis < type.dims.size(); ++axis) {
    elements *= axis < 2 && type.dims.size() > 1 ? AlignUp(type.dims[axis], 16) : type.dims[axis];
  }
  return AlignUp(elements * SizeOf(type.dtype));
}

struct Split {
  int32_t local_shards = 1;  // of the rank that has most
  int32_t lanes = 1;
  int32_t threads = 1;
  int64_t micro_batches = 1;
};

Split SplitBatch(const v1::JobSpec& spec, const SlotShape& slot) {
  Split split;
  const int64_t v = spec.numerics().shards(), r = spec.resources().ranks();
  split.local_shards = static_cast<int32_t>((v + r - 1) / r);
  split.threads = std::max(spec.numerics().threads(), 1);
  const int32_t cores = spec.resources().cores_per_rank() > 0 ? spec.resources().cores_per_rank() : slot.cores;
  split.lanes = LanesOf(spec, split.local_shards, cores);
  split.micro_batches = spec.batch().global() / (v * spec.batch().micro());
  return split;
}

// Resident bytes at most of a rank's process beside arena and data set. Libraries and the kernels that are generated
// for the processor differ: 22 to 31 MiB were measured; a rank that has compiled its programs knows its own.
int64_t ProcessBoundBytes(const Split& split) {
  return 40 * kMiB + static_cast<int64_t>(split.lanes) * split.threads * kMiB / 4;
}

StatusOr<v1::MemoryPlan> PlanBytes(const v1::JobSpec& spec, const DataShape& data, const Graphs& graphs,
                                   const OpRegistry& ops, const Split& split, const TreeReducer& tree) {
  v1::MemoryPlan memory;
  int64_t weights = 0, largest = 0, statistics = 0;
  for (const ParameterInfo& p : graphs.model.parameters) {
    weights += StoredBytes(p.type);
    largest = std::max(largest, StoredBytes(p.type));
  }
  for (const StatisticInfo& s : graphs.model.statistics) statistics += StoredBytes(s.type);
  TUTTI_ASSIGN_OR_RETURN(const MemoryPlan training, PlanGraphMemory(graphs.training, ops));
  TUTTI_ASSIGN_OR_RETURN(const MemoryPlan evaluation, PlanGraphMemory(graphs.evaluation, ops));
  memory.set_weight_bytes(weights);
  memory.set_gradient_bytes(weights * (tree.slots() + (split.micro_batches > 1 ? split.lanes : 0)));
  memory.set_optimizer_bytes(weights * static_cast<int64_t>(OptimizerStates(spec.optimizer()).size()));
  memory.set_statistic_bytes(statistics);
  memory.set_activation_bytes(split.lanes * std::max(training.total_bytes, evaluation.total_bytes));
  // Weight gradients keep one partial sum a thread; reorders keep one copy.
  memory.set_workspace_bytes(split.lanes * (largest * (split.threads + 1) + kMiB));
  int64_t elements = 1;
  for (int64_t dim : data.sample_dims) elements *= dim;
  const int64_t rows = split.local_shards * split.micro_batches * spec.batch().micro();
  const int64_t buffers = std::max(spec.data().prefetch(), 1) + 1;
  memory.set_batch_bytes(buffers * (AlignUp(rows * elements * 4) + 2 * AlignUp(rows * 4)) +
                         split.lanes * (AlignUp(spec.batch().micro() * elements * 4) + 4096));
  memory.set_data_set_bytes(data.resident_bytes);
  SumMemory(spec,
            memory.weight_bytes() + memory.gradient_bytes() + memory.optimizer_bytes() + memory.statistic_bytes() +
                memory.activation_bytes() + memory.workspace_bytes() + memory.batch_bytes() +
                memory.communication_bytes(),
            ProcessBoundBytes(split), &memory);
  return memory;
}

v1::StepCost PlanTime(const v1::JobSpec& spec, const SlotShape& slot, const Split& split, double cell_flops,
                      int64_t exchanged_bytes, int64_t update_bytes) {
  v1::StepCost cost;
  const double per_core = slot.flops_per_core > 0 ? slot.flops_per_core : kDefaultFlopsPerCore;
  cost.set_flops(cell_flops * static_cast<double>(spec.numerics().shards() * split.micro_batches));
  const double cells = static_cast<double>((split.local_shards + split.lanes - 1) / split.lanes * split.micro_batches);
  cost.set_compute_ms(1e3 * cells * cell_flops / (per_core * split.threads) +
                      1e3 * static_cast<double>(update_bytes) / 8e9);
  cost.set_exchanged_bytes(exchanged_bytes);
  cost.set_exchange_ms(1e3 * static_cast<double>(exchanged_bytes) / kExchangeBytesPerSecond);
  // Buckets overlap with backward; about the last quarter of the bytes has nothing left to hide behind.
  cost.set_step_ms(cost.compute_ms() + std::max(cost.exchange_ms() / 4, cost.exchange_ms() - cost.compute_ms()));
  return cost;
}

void AddReasons(const v1::JobSpec& spec, const Model& model, const Split& split, v1::TrainPlan* plan) {
  const auto add = [plan](std::string text) { plan->add_reasons(std::move(text)); };
  add(fmt::format("global batch {} = {} shards x {} micro-batch{} x {} samples", spec.batch().global(),
                  spec.numerics().shards(), split.micro_batches, split.micro_batches == 1 ? "" : "es",
                  spec.batch().micro()));
  add(fmt::format("{} of {} shards on a rank, {} side by side with {} thread{} each", split.local_shards,
                  spec.numerics().shards(), split.lanes, split.threads, split.threads == 1 ? "" : "s"));
  if (split.local_shards * spec.resources().ranks() != spec.numerics().shards()) {
    add(fmt::format("{} ranks do not divide {} shards: ranks with fewer wait for the others", spec.resources().ranks(),
                    spec.numerics().shards()));
  }
  if (!model.statistics.empty()) {
    add(fmt::format("batch norm normalises over one cell: {} samples", spec.batch().micro()));
  }
  add(spec.numerics().mode() == v1::NUMERICS_MODE_FAST
          ? "numerics fast: the order of sums, and so the bits, depend on the number of ranks"
          : "numerics exact: equal bits for every number of ranks");
}

void AddDecayGroups(const v1::Optimizer& optimizer, const Model& model, v1::TrainPlan* plan) {
  for (const bool decayed : {true, false}) {
    v1::DecayGroup group;
    group.set_weight_decay(decayed ? optimizer.weight_decay() : 0);
    for (const ParameterInfo& parameter : model.parameters) {
      if (HasWeightDecay(optimizer, parameter) != decayed) continue;
      group.add_names(parameter.name);
      group.set_parameters(group.parameters() + parameter.type.elements());
    }
    group.set_tensors(group.names_size());
    if (group.tensors() > 0) *plan->add_decay_groups() = std::move(group);
  }
}

}  // namespace

int32_t LanesOf(const v1::JobSpec& spec, int32_t local_shards, int32_t cores) {
  return std::clamp(cores / std::max(spec.numerics().threads(), 1), 1, std::max(local_shards, 1));
}

void SumMemory(const v1::JobSpec& spec, int64_t arena_bytes, int64_t process_bytes, v1::MemoryPlan* memory) {
  memory->set_arena_bytes(AlignUp(arena_bytes, 4096));
  // Checkpoints are staged in plain layout, dealt over the ranks.
  const int64_t staging = (memory->weight_bytes() + memory->optimizer_bytes() + memory->statistic_bytes()) /
                          std::max<int64_t>(spec.resources().ranks(), 1);
  memory->set_resident_bytes(memory->arena_bytes() + memory->data_set_bytes() + staging + process_bytes);
}

StatusOr<v1::TrainPlan> PlanJob(const v1::JobSpec& spec, const DataShape& data, const SlotShape& slot) {
  TUTTI_ASSIGN_OR_RETURN(const StepPlanCounts counts, CountSteps({.epochs = spec.train().epochs(),
                                                                  .steps = spec.train().steps(),
                                                                  .global_batch = spec.batch().global(),
                                                                  .data_set_size = data.train_samples}));
  const OpRegistry ops = StandardOps();
  TUTTI_ASSIGN_OR_RETURN(Graphs graphs, BuildGraphs(spec, data, ops));
  const Split split = SplitBatch(spec, slot);
  const TreeReducer tree(static_cast<int32_t>(spec.numerics().shards()), static_cast<int32_t>(spec.resources().ranks()),
                         Rank(0), split.lanes);
  v1::TrainPlan plan;
  TUTTI_ASSIGN_OR_RETURN(*plan.mutable_memory(), PlanBytes(spec, data, graphs, ops, split, tree));
  TUTTI_ASSIGN_OR_RETURN(const double cell_flops,
                         CountFlops(graphs.training, ops, spec.batch().micro(), &graphs.model.layers));
  const int64_t update_bytes = 2 * (plan.memory().weight_bytes() + plan.memory().optimizer_bytes());
  const int64_t sent = tree.BytesSent(ElementCount(plan.memory().weight_bytes() / 4)).value();
  *plan.mutable_step() = PlanTime(spec, slot, split, cell_flops, sent, update_bytes);
  plan.set_parameters(graphs.model.parameter_count());
  plan.set_ranks(spec.resources().ranks());
  plan.set_shards(spec.numerics().shards());
  plan.set_micro_batches(split.micro_batches);
  plan.set_steps(counts.steps);
  plan.set_steps_per_epoch(counts.steps_per_epoch);
  plan.set_samples(counts.samples);
  plan.set_wall_seconds(static_cast<double>(counts.steps) * plan.step().step_ms() / 1e3);
  plan.mutable_layers()->Add(graphs.model.layers.begin(), graphs.model.layers.end());
  AddDecayGroups(spec.optimizer(), graphs.model, &plan);
  AddReasons(spec, graphs.model, split, &plan);
  return plan;
}

Status CheckFits(const v1::JobSpec& spec, const DataShape& data, const SlotShape& slot, const v1::TrainPlan& plan) {
  const v1::MemoryPlan& m = plan.memory();
  if (slot.memory_bytes == 0 || m.resident_bytes() <= slot.memory_bytes) return OkStatus();
  std::string would_fit;
  const auto try_variant = [&](const v1::JobSpec& variant, std::string_view what) {
    const StatusOr<v1::TrainPlan> other = PlanJob(variant, data, slot);
    if (!other.ok() || other->memory().resident_bytes() > slot.memory_bytes) return false;
    would_fit += fmt::format("{} ({})  ·   ", what, MemoryText(other->memory().resident_bytes()));
    return true;
  };
  for (int64_t micro = spec.batch().micro() / 2; micro >= 1; micro /= 2) {
    v1::JobSpec variant = spec;
    variant.mutable_batch()->set_micro(micro);
    if (spec.batch().micro() % micro == 0 && try_variant(variant, fmt::format("batch.micro: {}", micro))) break;
  }
  for (int64_t ranks = spec.resources().ranks() + 1; ranks <= spec.numerics().shards(); ++ranks) {
    v1::JobSpec variant = spec;
    variant.mutable_resources()->set_ranks(ranks);
    if (try_variant(variant, fmt::format("resources.ranks: {}", ranks))) break;
  }
  return ResourceExhausted(
      "does not fit: rank needs {}, slot has {}\n  weights {} · gradients {} · optimizer {} · activations {} · "
      "workspace {} · batches {} · data set {}\nwould fit:  {}1 slot of {}",
      MemoryText(m.resident_bytes()), MemoryText(slot.memory_bytes), MemoryText(m.weight_bytes()),
      MemoryText(m.gradient_bytes()), MemoryText(m.optimizer_bytes()), MemoryText(m.activation_bytes()),
      MemoryText(m.workspace_bytes()), MemoryText(m.batch_bytes()), MemoryText(m.data_set_bytes()), would_fit,
      MemoryText(m.resident_bytes()));
}

}  // namespace tutti
