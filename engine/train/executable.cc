#include "engine/train/executable.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/digest.h"
#include "base/process.h"
#include "engine/graph/print.h"
#include "engine/ops/registry.h"
#include "engine/ops/registry_cpu.h"
#include "engine/optim/update.h"
#include "engine/passes/autodiff.h"
#include "engine/passes/fusion.h"
#include "engine/passes/memory_plan.h"

namespace tutti {
namespace {

constexpr int64_t kFloatsPerLine = kTensorAlignment / 4;

int64_t FloatsOf(const CpuLayout& layout) { return AlignUp(layout.bytes) / 4; }

StatusOr<std::unique_ptr<LanePool>> MakeLanes(const v1::RankConfig& config, int32_t local_shards) {
  LaneOptions options;
  options.threads = std::max(config.spec().numerics().threads(), 1);
  options.lanes = LanesOf(config.spec(), local_shards, CoresOf(config));
  const auto& cores = config.cores();
  if (cores.size() >= options.lanes * options.threads) {
    for (int lane = 0; lane < options.lanes; ++lane) {
      const auto first = cores.begin() + lane * options.threads;
      options.cores.emplace_back(first, first + options.threads);
    }
  }
  return LanePool::Create(options);
}

LoaderOptions MakeLoaderOptions(const v1::JobSpec& spec, const TreeReducer& tree) {
  LoaderOptions options;
  options.seed = spec.train().seed();
  options.shuffle = spec.data().shuffle();
  options.normalization = {spec.data().mean(), spec.data().std()};
  options.shards = tree.shards();
  options.first_shard = tree.local_shards().begin;
  options.last_shard = tree.local_shards().end;
  options.threads = std::max(spec.data().threads(), 1);
  options.prefetch = std::max(spec.data().prefetch(), 1);
  return options;
}

}  // namespace

int32_t CoresOf(const v1::RankConfig& config) {
  return config.cores().empty() ? static_cast<int32_t>(AllowedCores().size()) : config.cores_size();
}

StatusOr<std::unique_ptr<Executable>> Executable::Compile(const v1::RankConfig& config, const DataShape& data,
                                                          int64_t process_bytes) {
  const int64_t entry_bytes = ResidentBytes();
  const v1::JobSpec& spec = config.spec();
  std::unique_ptr<Executable> self(new Executable);
  TUTTI_ASSIGN_OR_RETURN(self->counts_, CountSteps({.epochs = spec.train().epochs(),
                                                    .steps = spec.train().steps(),
                                                    .global_batch = spec.batch().global(),
                                                    .data_set_size = data.train_samples}));
  const int32_t shards = static_cast<int32_t>(spec.numerics().shards());
  if (config.world_size() < 1 || config.world_size() > shards || config.rank() < 0 ||
      config.rank() >= config.world_size()) {
    return InvalidArgument("rank {} of {} cannot share {} shards", config.rank(), config.world_size(), shards);
  }
  const int32_t local = ShardsOfRank(shards, config.world_size(), Rank(config.rank())).size();
  TUTTI_ASSIGN_OR_RETURN(self->lanes_, MakeLanes(config, local));
  self->tree_ = std::make_unique<TreeReducer>(shards, config.world_size(), Rank(config.rank()), self->lanes_->lanes());
  self->step_plan_ = MakeStepPlan(spec.batch(), *self->tree_);
  self->loader_options_ = MakeLoaderOptions(spec, *self->tree_);
  self->micro_ = spec.batch().micro();
  for (int64_t dim : data.sample_dims) self->sample_elements_ *= dim;
  self->states_ = static_cast<int>(OptimizerStates(spec.optimizer()).size());
  TUTTI_RETURN_IF_ERROR(self->BuildPrograms(config, data));
  self->LayOut();
  self->FillPlan(spec, config, data, process_bytes + ResidentBytes() - entry_bytes);
  return self;
}

Status Executable::BuildPrograms(const v1::RankConfig& config, const DataShape& data) {
  const v1::JobSpec& spec = config.spec();
  const OpRegistry ops = StandardOps();
  TUTTI_ASSIGN_OR_RETURN(model_, BuildModel(spec, data.sample_dims, micro_, ops));
  TUTTI_ASSIGN_OR_RETURN(const Graph training, BuildTrainingGraph(model_.training, "loss_sum", ops));
  TUTTI_ASSIGN_OR_RETURN(const Graph evaluation, BuildInferenceGraph(model_.evaluation, ops));
  OrderParameters(training);
  TUTTI_RETURN_IF_ERROR(CompileLanes(training, data.eval_samples > 0 ? &evaluation : nullptr, lanes_->threads()));
  kernel_choices_ = training_[0].program->kernel_choices();
  std::string agreed = fmt::format("{}\n{}\nshards {} batch {} threads {} mode {} steps {}\n", Print(training),
                                   Print(evaluation), spec.numerics().shards(), spec.batch().global(),
                                   lanes_->threads(), static_cast<int>(spec.numerics().mode()), counts_.steps);
  for (const std::string& choice : kernel_choices_) agreed += choice + "\n";
  program_hash_ = Xxh3(agreed);
  return OkStatus();
}

// Gradients become ready in the order of their producers: the order of the flat arrays.
void Executable::OrderParameters(const Graph& training) {
  std::vector<std::pair<int32_t, size_t>> ready;
  for (size_t i = 0; i < model_.parameters.size(); ++i) {
    const std::string name = std::string(kGradientPrefix) + model_.parameters[i].name;
    for (const Output& output : training.outputs()) {
      if (output.name == name) ready.emplace_back(training.value(output.value).producer.value(), i);
    }
  }
  TUTTI_CHECK(ready.size() == model_.parameters.size(), "{} gradients for {} parameters", ready.size(),
              model_.parameters.size());
  std::sort(ready.begin(), ready.end());
  for (const auto& [node, index] : ready) {
    info_of_.push_back(index);
    StoredTensor& stored = parameters_.emplace_back();
    stored.name = model_.parameters[index].name;
    stored.dims = model_.parameters[index].type.dims;
  }
}

Status Executable::CompileLanes(const Graph& training, const Graph* evaluation, int threads) {
  const KernelRegistry kernels = StandardCpuKernels();
  const int lanes = lanes_->lanes();
  training_.resize(lanes);
  evaluation_.resize(lanes);
  std::vector<Status> statuses(lanes);
  CompileOptions options;
  options.threads = threads;
  const auto compile = [&](const Graph& graph, BoundProgram* bound) -> Status {
    TUTTI_ASSIGN_OR_RETURN(bound->program, CpuProgram::Compile(graph, kernels, options));
    Name(bound);
    return OkStatus();
  };
  // The first lane's training program decides how parameters are stored; every other program takes that over.
  lanes_->RunAll([&](int lane) {
    if (lane == 0) statuses[0] = compile(training, &training_[0]);
  });
  TUTTI_RETURN_IF_ERROR(statuses[0]);
  for (const ExternalValue& external : training_[0].program->externals()) {
    if (external.value_class == ValueClass::kParameter) options.fixed_layouts[external.name] = external.layout;
  }
  for (StoredTensor& p : parameters_) p.layout = options.fixed_layouts.at(p.name);
  lanes_->RunAll([&](int lane) {
    if (lane != 0) statuses[lane] = compile(training, &training_[lane]);
    if (statuses[lane].ok() && evaluation != nullptr) statuses[lane] = compile(*evaluation, &evaluation_[lane]);
  });
  for (const Status& status : statuses) TUTTI_RETURN_IF_ERROR(status);
  return OkStatus();
}

void Executable::Name(BoundProgram* bound) const {
  const auto externals = bound->program->externals();
  bound->memory.assign(externals.size(), nullptr);
  bound->gradient_of.assign(externals.size(), -1);
  bound->gradient_external.assign(parameters_.size(), -1);
  bound->statistic_external.assign(model_.statistics.size(), -1);
  for (size_t e = 0; e < externals.size(); ++e) {
    const std::string& name = externals[e].name;
    const int index = static_cast<int>(e);
    if (name == "x") bound->x = index;
    if (name == "labels") bound->labels = index;
    if (name == "weights") bound->weights = index;
    if (externals[e].is_output && name == "loss_sum") bound->loss_sum = index;
    if (externals[e].is_output && name == "correct") bound->correct = index;
    for (size_t p = 0; p < parameters_.size(); ++p) {
      if (externals[e].is_output && name == std::string(kGradientPrefix) + parameters_[p].name) {
        bound->gradient_of[e] = static_cast<int>(p);
        bound->gradient_external[p] = index;
      }
    }
    for (size_t s = 0; s < model_.statistics.size(); ++s) {
      if (externals[e].is_output && name == "statistic/" + model_.statistics[s].name) {
        bound->statistic_external[s] = index;
      }
    }
  }
}

int64_t Executable::WorkspaceBytes(int lane) const {
  int64_t bytes = training_[lane].program->workspace_bytes();
  if (evaluation_[lane].program) bytes = std::max(bytes, evaluation_[lane].program->workspace_bytes());
  return bytes;
}

void Executable::LayOut() {
  for (StoredTensor& p : parameters_) {
    p.offset = flat_elements_;
    p.elements = p.layout.bytes / 4;
    flat_elements_ += FloatsOf(p.layout);
    boundaries_.push_back(flat_elements_);
  }
  for (const StatisticInfo& s : model_.statistics) {
    const CpuLayout layout = PlainLayout(s.type);
    statistics_.push_back({s.name, s.type.dims, layout, statistic_elements_, s.type.elements()});
    statistic_elements_ += FloatsOf(layout);
  }
  const int64_t flat_bytes = flat_elements_ * 4;
  layout_.Reserve("parameters", flat_bytes);
  for (int s = 0; s < states_; ++s) layout_.Reserve(fmt::format("optimizer.{}", s), flat_bytes);
  layout_.Reserve("statistics", statistic_elements_ * 4);
  for (int s = 0; s < tree_->slots(); ++s) gradient_layout_.Reserve(fmt::format("gradients.{}", s), flat_bytes);
  cell_stride_ = 2 * kFloatsPerLine + statistic_elements_;
  layout_.Reserve("cells", step_plan_.local_cells * cell_stride_ * 4);
  batch_bytes_ = Loader::BufferBytes(loader_options_, counts_, sample_elements_);
  layout_.Reserve("batches", batch_bytes_);
  for (int lane = 0; lane < lanes_->lanes(); ++lane) {
    if (step_plan_.micro_batches > 1) layout_.Reserve(fmt::format("lane.{}.gradients", lane), flat_bytes);
    layout_.Reserve(fmt::format("lane.{}.scalars", lane), sizeof(HostScalars));
    layout_.Reserve(fmt::format("lane.{}.x", lane), micro_ * sample_elements_ * 4);
    layout_.Reserve(fmt::format("lane.{}.labels", lane), micro_ * 4);
    layout_.Reserve(fmt::format("lane.{}.weights", lane), micro_ * 4);
    layout_.Reserve(fmt::format("lane.{}.result", lane), 2 * kTensorAlignment);
    layout_.Reserve(fmt::format("lane.{}.workspace", lane), WorkspaceBytes(lane));
  }
}

void Executable::FillPlan(const v1::JobSpec& spec, const v1::RankConfig& config, const DataShape& data,
                          int64_t process_bytes) {
  v1::JobSpec sized = spec;
  sized.mutable_resources()->set_ranks(config.world_size());
  const StatusOr<v1::TrainPlan> estimate =
      PlanJob(sized, data, {.cores = static_cast<int32_t>(lanes_->lanes() * lanes_->threads())});
  TUTTI_CHECK_OK(estimate.status());
  plan_ = *estimate;
  plan_.set_exact_bytes(true);
  v1::MemoryPlan& memory = *plan_.mutable_memory();
  memory.Clear();
  for (const ArenaLayout::Region& region : gradient_layout_.regions()) {
    memory.set_gradient_bytes(memory.gradient_bytes() + region.bytes);
  }
  for (const ArenaLayout::Region& region : layout_.regions()) {
    const auto starts = [&](std::string_view prefix) { return region.name.starts_with(prefix); };
    const bool lane = starts("lane.");
    if (starts("parameters")) memory.set_weight_bytes(region.bytes);
    if (starts("optimizer")) memory.set_optimizer_bytes(memory.optimizer_bytes() + region.bytes);
    if (starts("statistics")) memory.set_statistic_bytes(region.bytes);
    if (lane && region.name.ends_with("gradients")) {
      memory.set_gradient_bytes(memory.gradient_bytes() + region.bytes);
    }
    if (starts("batches") || (lane && !region.name.ends_with("gradients") && !region.name.ends_with("workspace"))) {
      memory.set_batch_bytes(memory.batch_bytes() + region.bytes);
    }
    if (starts("cells")) memory.set_communication_bytes(region.bytes);
  }
  for (int lane = 0; lane < lanes_->lanes(); ++lane) {
    const int64_t activations = training_[lane].program->activation_bytes();
    memory.set_activation_bytes(memory.activation_bytes() + activations);
    memory.set_workspace_bytes(memory.workspace_bytes() + WorkspaceBytes(lane) - activations);
  }
  memory.set_data_set_bytes(data.resident_bytes);
  // What compiling does not touch yet: code of the loop, of checkpoints and evaluation, loader threads.
  constexpr int64_t kTouchedLater = 5 << 20;
  SumMemory(sized, layout_.total_bytes() + gradient_layout_.total_bytes(), process_bytes + kTouchedLater, &memory);
}

void Executable::Bind(const Arena& arena) {
  parameter_data_ = arena.Find<float>("parameters");
  for (int s = 0; s < states_; ++s) state_data_.push_back(arena.Find<float>(fmt::format("optimizer.{}", s)));
  statistic_data_ = arena.Find<float>("statistics");
  cells_ = arena.Find<float>("cells");
  batch_memory_ = arena.Find<std::byte>("batches");
  for (int lane = 0; lane < lanes_->lanes(); ++lane) {
    const auto find = [&]<typename T>(std::string_view part, T** out) {
      *out = arena.Find<T>(fmt::format("lane.{}.{}", lane, part));
    };
    if (step_plan_.micro_batches > 1) find("gradients", &lane_gradients_.emplace_back());
    find("scalars", &scalars_.emplace_back());
    find("workspace", &workspaces_.emplace_back());
    CellInputs& inputs = inputs_.emplace_back();
    find("x", &inputs.x);
    find("labels", &inputs.labels);
    find("weights", &inputs.weights);
    float* result = nullptr;
    find("result", &result);
    BindProgram(lane, result, &training_[lane]);
    if (evaluation_[lane].program) BindProgram(lane, result, &evaluation_[lane]);
  }
}

void Executable::BindGradients(char* base) {
  for (const ArenaLayout::Region& region : gradient_layout_.regions()) {
    gradient_slots_.push_back(reinterpret_cast<float*>(base + region.offset));
  }
}

void Executable::BindProgram(int lane, float* result, BoundProgram* bound) {
  const auto externals = bound->program->externals();
  for (size_t e = 0; e < externals.size(); ++e) {
    const std::string& name = externals[e].name;
    if (name == "seed") bound->memory[e] = &scalars_[lane]->seed;
    if (name == "batch_index") bound->memory[e] = &scalars_[lane]->batch_index;
    if (name == "first_row") bound->memory[e] = &scalars_[lane]->first_row;
    if (name == "inverse_valid") bound->memory[e] = &scalars_[lane]->inverse_valid;
    if (externals[e].is_output) continue;
    for (const StoredTensor& p : parameters_) {
      if (name == p.name) bound->memory[e] = parameter_data_ + p.offset;
    }
    for (const StoredTensor& s : statistics_) {
      if (name == s.name) bound->memory[e] = statistic_data_ + s.offset;
    }
  }
  if (bound->x >= 0) bound->memory[bound->x] = inputs_[lane].x;
  bound->memory[bound->labels] = inputs_[lane].labels;
  bound->memory[bound->weights] = inputs_[lane].weights;
  bound->memory[bound->loss_sum] = result;
  bound->memory[bound->correct] = result + kFloatsPerLine;
}

}  // namespace tutti
