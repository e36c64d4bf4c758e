// One rank's job, compiled: programs of every lane, stored layouts, the arena's regions and what is bound where.
// Nothing here decides anything once training runs.
//
// Gradients, parameters and optimizer state are flat arrays of one order: that in which backward completes the
// gradients, each tensor in its stored layout at a multiple of 64 bytes. A bucket of the exchange is therefore a range
// of floats.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/comm/exchange.h"
#include "engine/comm/tree_reduce.h"
#include "engine/data/loader.h"
#include "engine/nn/model.h"
#include "engine/plan/plan.h"
#include "engine/runtime/arena.h"
#include "engine/runtime/cpu/program.h"
#include "engine/runtime/lanes.h"
#include "engine/train/step_plan.h"
#include "tutti/v1/rank.pb.h"

namespace tutti {

struct StoredTensor {
  std::string name;
  std::vector<int64_t> dims;
  CpuLayout layout;
  int64_t offset = 0;    // floats, in the flat array
  int64_t elements = 0;  // stored, padding included
};

// A program with the memory of its externals.
struct BoundProgram {
  std::unique_ptr<CpuProgram> program;
  std::vector<void*> memory;            // by external
  std::vector<int> gradient_of;         // by external: index of the parameter whose gradient it is, or -1
  std::vector<int> gradient_external;   // by parameter
  std::vector<int> statistic_external;  // by statistic (training program: the cell's value)
  int x = -1, labels = -1, weights = -1, loss_sum = -1, correct = -1;
};

// Written by the host before each call; each is bound as a tensor of its own.
struct HostScalars {
  alignas(64) uint64_t seed = 0;
  alignas(64) int64_t batch_index = 0;
  alignas(64) int64_t first_row = 0;
  alignas(64) float inverse_valid = 0;
};

class Executable {
 public:
  // Compiles for this machine; allocates no training memory. `process_bytes`: resident before the data sets were
  // opened, to which what compiling adds is counted. INVALID_ARGUMENT: the model or the batch is wrong.
  static StatusOr<std::unique_ptr<Executable>> Compile(const v1::RankConfig& config, const DataShape& data,
                                                       int64_t process_bytes);

  const Model& model() const { return model_; }
  const StepPlanCounts& counts() const { return counts_; }
  const LoaderOptions& loader_options() const { return loader_options_; }
  const TreeReducer& tree() const { return *tree_; }
  const StepPlan& step_plan() const { return step_plan_; }
  LanePool& lanes() { return *lanes_; }
  // The arena in two parts: gradients lie where peers can reach them, if there is such a place.
  const ArenaLayout& arena_layout() const { return layout_; }
  const ArenaLayout& gradient_layout() const { return gradient_layout_; }
  const v1::TrainPlan& plan() const { return plan_; }
  const std::vector<std::string>& kernel_choices() const { return kernel_choices_; }
  // Digest of all that ranks must agree on: graphs, layouts, tree, batch split.
  uint64_t program_hash() const { return program_hash_; }

  const std::vector<StoredTensor>& parameters() const { return parameters_; }  // order of the flat arrays
  const std::vector<StoredTensor>& statistics() const { return statistics_; }
  const ParameterInfo& info(size_t parameter) const { return model_.parameters[info_of_[parameter]]; }
  int64_t flat_elements() const { return flat_elements_; }
  std::span<const int64_t> bucket_boundaries() const { return boundaries_; }
  int64_t statistic_elements() const { return statistic_elements_; }  // floats of the flat statistics, gaps included

  // Binds everything to `arena`, which must be made from arena_layout(). Once.
  void Bind(const Arena& arena);
  // `base` has gradient_layout().total_bytes(), zero-filled. Once, before the first step.
  void BindGradients(char* base);
  BoundProgram& training(int lane) { return training_[lane]; }
  BoundProgram& evaluation(int lane) { return evaluation_[lane]; }  // no program where the job does not evaluate
  HostScalars& scalars(int lane) { return *scalars_[lane]; }
  void* workspace(int lane) { return workspaces_[lane]; }
  float* gradient_slot(int slot) { return gradient_slots_[slot]; }
  float* lane_gradient(int lane) { return lane_gradients_[lane]; }  // of micro-batches after the first
  float* parameter_data() { return parameter_data_; }
  float* state_data(int state) { return state_data_[state]; }
  int states() const { return states_; }
  float* statistic_data() { return statistic_data_; }
  // A cell's results: loss_sum, correct, then its statistics as statistics() lays them out.
  float* cell_loss(int cell) { return cells_ + cell * cell_stride_; }
  float* cell_correct(int cell) { return cell_loss(cell) + 16; }
  float* cell_statistics(int cell) { return cell_loss(cell) + 32; }
  struct CellInputs {
    float* x;
    int32_t* labels;
    float* weights;
  };
  CellInputs inputs(int lane) { return inputs_[lane]; }  // aligned staging for one cell
  std::byte* batch_memory() { return batch_memory_; }
  int64_t batch_bytes() const { return batch_bytes_; }

 private:
  Executable() = default;
  Status BuildPrograms(const v1::RankConfig& config, const DataShape& data);
  Status CompileLanes(const Graph& training, const Graph* evaluation, int threads);
  int64_t WorkspaceBytes(int lane) const;
  void OrderParameters(const Graph& training);
  void LayOut();
  void FillPlan(const v1::JobSpec& spec, const v1::RankConfig& config, const DataShape& data, int64_t process_bytes);
  void Name(BoundProgram* program) const;
  void BindProgram(int lane, float* result, BoundProgram* program);

  Model model_;
  StepPlanCounts counts_;
  LoaderOptions loader_options_;
  std::unique_ptr<TreeReducer> tree_;
  StepPlan step_plan_;
  std::unique_ptr<LanePool> lanes_;
  std::vector<BoundProgram> training_, evaluation_;  // by lane; destroyed before the lanes that made them
  std::vector<StoredTensor> parameters_, statistics_;
  std::vector<size_t> info_of_;
  std::vector<int64_t> boundaries_;
  int64_t flat_elements_ = 0, statistic_elements_ = 0, cell_stride_ = 0, batch_bytes_ = 0, micro_ = 0,
          sample_elements_ = 1;
  int states_ = 0;
  ArenaLayout layout_, gradient_layout_;
  v1::TrainPlan plan_;
  std::vector<std::string> kernel_choices_;
  uint64_t program_hash_ = 0;

  std::vector<HostScalars*> scalars_;
  std::vector<void*> workspaces_;
  std::vector<float*> gradient_slots_, lane_gradients_, state_data_;
  float *parameter_data_ = nullptr, *statistic_data_ = nullptr, *cells_ = nullptr;
  std::vector<CellInputs> inputs_;
  std::byte* batch_memory_ = nullptr;
};

// Number of cores that this rank may use.
int32_t CoresOf(const v1::RankConfig& config);

}  // namespace tutti
