#include "engine/train/step_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "engine/optim/schedule.h"
#include "engine/passes/memory_plan.h"
#include "engine/runtime/cpu/parallel.h"

namespace tutti {
namespace {

constexpr Bytes kBucketBytes{1 << 20};

bool IsAligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % kTensorAlignment == 0; }

}  // namespace

StepRunner::StepRunner(const v1::RankConfig& config, Executable& executable, RunState& state)
    : config_(config), exe_(executable), state_(state) {
  const TreeReducer& tree = exe_.tree();
  const float* result = exe_.gradient_slot(tree.partial_slots()[0]);
  std::vector<UpdateTensor> tensors;
  for (size_t i = 0; i < exe_.parameters().size(); ++i) {
    const StoredTensor& p = exe_.parameters()[i];
    UpdateTensor& t = tensors.emplace_back();
    t = {.parameter = exe_.parameter_data() + p.offset,
         .gradient = result + p.offset,
         .states = {nullptr, nullptr},
         .elements = p.elements,
         .decay = HasWeightDecay(config.spec().optimizer(), exe_.info(i))};
    for (int s = 0; s < exe_.states(); ++s) t.states[s] = exe_.state_data(s) + p.offset;
  }
  update_ = std::make_unique<UpdateProgram>(config.spec().optimizer(), std::move(tensors));
  Footer::Shape shape{.micro_batches = exe_.step_plan().micro_batches, .statistic_floats = exe_.statistic_elements()};
  if (tree.world_size() > 1) {
    MakeExchanger();
    for (int32_t rank = 0; rank < tree.world_size(); ++rank) shape.sums = std::max(shape.sums, BlocksOf(rank));
  }
  footer_ = std::make_unique<Footer>(tree, shape);
  measures_at_once_ = !exchanger_ && exe_.step_plan().local_cells == 1;
  lanes_.resize(exe_.lanes().lanes());
  for (int lane = 0; lane < exe_.lanes().lanes(); ++lane) {
    lanes_[lane].on_output = [this, lane](size_t external) { OnOutput(lane, external); };
  }
  const auto externals = exe_.training(0).program->externals();
  const auto& dims = externals[exe_.training(0).x].type.dims;
  for (size_t axis = 1; axis < dims.size(); ++axis) sample_elements_ *= dims[axis];
}

StepRunner::~StepRunner() = default;

void StepRunner::MakeExchanger() {
  const TreeReducer& tree = exe_.tree();
  ExchangeOptions options;
  options.comm = &state_.comm;
  options.tree = &tree;
  options.mode = config_.spec().numerics().mode() == v1::NUMERICS_MODE_FAST ? ReduceMode::kFast : ReduceMode::kTree;
  for (int slot = 0; slot < tree.slots(); ++slot) options.slots.push_back(exe_.gradient_slot(slot));
  options.result = options.slots[tree.partial_slots()[0]];
  options.buckets = CutBuckets(exe_.bucket_boundaries(), kBucketBytes);
  gradients_in_bucket_.resize(options.buckets.size());
  for (size_t p = 0; p < exe_.parameters().size(); ++p) {  // ascending in the flat array
    int32_t bucket = 0;
    while (options.buckets[bucket].end <= exe_.parameters()[p].offset) ++bucket;
    bucket_of_.push_back(bucket);
    if (gradients_in_bucket_[bucket]++ == 0) bucket_blocks_.push_back(update_->BlocksOf(static_cast<int>(p)).first);
  }
  bucket_blocks_.push_back(update_->blocks());
  TUTTI_CHECK(bucket_blocks_.size() == options.buckets.size() + 1, "a bucket of no parameter");
  options.on_reduced = [this](int32_t bucket) {
    const ScopedFlushDenormals flush;
    const auto [first, last] = BlocksOf(bucket, exe_.tree().rank().value());
    update_->Measure(first, last, /*threads=*/1);
  };
  missing_ = std::vector<std::atomic<int32_t>>(options.buckets.size());
  exchanger_ = std::make_unique<BucketExchanger>(std::move(options));
}

std::pair<int64_t, int64_t> StepRunner::BlocksOf(int32_t bucket, int32_t rank) const {
  const int64_t first = bucket_blocks_[bucket], blocks = bucket_blocks_[bucket + 1] - first;
  const int64_t world = exe_.tree().world_size();
  return {first + blocks * rank / world, first + blocks * (rank + 1) / world};
}

int64_t StepRunner::BlocksOf(int32_t rank) const {
  int64_t blocks = 0;
  for (int32_t bucket = 0; bucket < exchanger_->buckets(); ++bucket) {
    const auto [first, last] = BlocksOf(bucket, rank);
    blocks += last - first;
  }
  return blocks;
}

template <typename Copy>
void StepRunner::ForBlocksOf(int32_t rank, Copy copy) {
  size_t at = 0;
  for (int32_t bucket = 0; exchanger_ && bucket < exchanger_->buckets(); ++bucket) {
    const auto [first, last] = BlocksOf(bucket, rank);
    const size_t count = static_cast<size_t>(last - first);
    copy(update_->sums().subspan(static_cast<size_t>(first), count), at);
    at += count;
  }
}

StatusOr<StepOutcome> StepRunner::Run(const Batch& batch, int64_t update, bool checkpoint_slow) {
  StepOutcome outcome;
  for (int lane = 0; lane < exe_.lanes().lanes(); ++lane) {
    HostScalars& scalars = exe_.scalars(lane);
    scalars.seed = config_.spec().train().seed();
    scalars.batch_index = batch.step;
    scalars.inverse_valid = static_cast<float>(1.0 / static_cast<double>(std::max<int64_t>(batch.valid, 1)));
    lanes_[lane].forward = lanes_[lane].backward = Nanos{0};
  }
  RunWaves(batch);
  outcome.timings.forward = MillisBetween(Nanos{0}, lanes_[0].forward);
  outcome.timings.backward = MillisBetween(Nanos{0}, lanes_[0].backward);
  state_.Enter(v1::PHASE_TRAINING, "gradient exchange");
  TUTTI_RETURN_IF_ERROR(Reduce(&outcome.timings));
  const Nanos measured_from = state_.clock.Monotonic();
  Measure();
  const Nanos footer_from = state_.clock.Monotonic();
  outcome.timings.optimizer = MillisBetween(measured_from, footer_from);

  state_.Enter(v1::PHASE_TRAINING, "footer");
  for (int32_t c = 0; c < exe_.step_plan().local_cells; ++c) {
    const Footer::Cell own = footer_->own_cell(c);
    *own.loss_sum = *exe_.cell_loss(c);
    *own.correct = *exe_.cell_correct(c);
    std::copy_n(exe_.cell_statistics(c), exe_.statistic_elements(), own.statistics);
  }
  const int32_t me = exe_.tree().rank().value();
  ForBlocksOf(me, [&](std::span<double> sums, size_t at) { std::ranges::copy(sums, &footer_->own_sums()[at]); });
  const ControlBox* control = state_.control();
  const FooterHeader header{.generation = config_.generation(),
                            .step = batch.step,
                            .valid = batch.valid,
                            .sample_digest = batch.sample_digest,
                            .checkpoint_requests = control == nullptr ? 0 : control->checkpoint_requests(),
                            .intent = control == nullptr ? v1::INTENT_RUN : control->intent(),
                            .checkpoint_slow = checkpoint_slow ? 1 : 0};
  StatusOr<FooterOutcome> footer = footer_->Exchange(state_.comm, header);
  TUTTI_RETURN_IF_ERROR(state_.Collective(footer.status()));
  const Nanos footer_to = state_.clock.Monotonic();
  outcome.footer = *footer;
  outcome.timings.exchange += MillisBetween(footer_from, footer_to);
  outcome.timings.exposed_exchange += MillisBetween(footer_from, footer_to);
  for (int32_t rank = 0; rank < exe_.tree().world_size(); ++rank) {
    ForBlocksOf(rank, [&](std::span<double> sums, size_t at) {
      std::ranges::copy(footer_->SumsOf(rank).subspan(at, sums.size()), sums.begin());
    });
  }
  const GradientMeasure measure = update_->Measured();
  outcome.finite = measure.finite;
  outcome.gradient_norm = measure.norm;
  outcome.learning_rate =
      LearningRate(config_.spec().optimizer(), config_.spec().schedule(), update, exe_.counts().steps);
  if (!outcome.finite) {
    TUTTI_ASSIGN_OR_RETURN(outcome.skip_cause, FindCause(batch, measure));
    return outcome;
  }
  outcome.clipped = ClipScale(config_.spec().optimizer().clip_norm(), measure.norm) < 1;
  Apply(outcome, update);
  outcome.timings.optimizer += MillisBetween(footer_to, state_.clock.Monotonic());
  return outcome;
}

void StepRunner::RunWaves(const Batch& batch) {
  state_.Enter(v1::PHASE_TRAINING, "forward and backward");
  const StepPlan& plan = exe_.step_plan();
  const int32_t last_lanes = static_cast<int32_t>(plan.waves.back().lanes.size());
  for (size_t b = 0; b < missing_.size(); ++b) missing_[b].store(gradients_in_bucket_[b] * last_lanes);
  for (size_t w = 0; w < plan.waves.size(); ++w) {
    const StepWave& wave = plan.waves[w];
    const bool last = w + 1 == plan.waves.size();
    exe_.lanes().RunAll([&](int lane) {
      if (lane >= static_cast<int>(wave.lanes.size())) return;
      for (const CellCall& call : wave.lanes[lane]) {
        RunCell(lane, call, batch, last && exchanger_ && call.micro_batch + 1 == plan.micro_batches);
      }
    });
    if (!last || !exchanger_) Merge(wave.merges);  // the exchanger does the last ones bucket by bucket
  }
}

void StepRunner::RunCell(int lane, const CellCall& call, const Batch& batch, bool starts_buckets) {
  BoundProgram& bound = exe_.training(lane);
  const Executable::CellInputs staging = exe_.inputs(lane);
  const int64_t rows = config_.spec().batch().micro();
  float* x = batch.x + call.local_row * sample_elements_;
  if (!IsAligned(x)) {
    std::copy_n(x, rows * sample_elements_, staging.x);
    x = staging.x;
  }
  bound.memory[bound.x] = x;
  std::copy_n(batch.labels + call.local_row, rows, staging.labels);
  std::copy_n(batch.weights + call.local_row, rows, staging.weights);
  exe_.scalars(lane).first_row = call.first_row;
  bound.memory[bound.loss_sum] = exe_.cell_loss(call.cell);
  bound.memory[bound.correct] = exe_.cell_correct(call.cell);
  for (size_t s = 0; s < bound.statistic_external.size(); ++s) {
    bound.memory[bound.statistic_external[s]] = exe_.cell_statistics(call.cell) + exe_.statistics()[s].offset;
  }
  float* gradients = call.micro_batch == 0 ? exe_.gradient_slot(call.slot) : exe_.lane_gradient(lane);
  for (size_t p = 0; p < exe_.parameters().size(); ++p) {
    bound.memory[bound.gradient_external[p]] = gradients + exe_.parameters()[p].offset;
  }
  Lane& state = lanes_[lane];
  state.call = &call;
  state.starts_buckets = starts_buckets;
  state.cell_start = state.forward_end = state_.clock.Monotonic();
  CpuProgram::RunOptions options;
  options.on_output = &state.on_output;
  bound.program->Run(bound.memory, exe_.workspace(lane), options);
  state.forward += state.forward_end - state.cell_start;
  state.backward += state_.clock.Monotonic() - state.forward_end;
}

void StepRunner::OnOutput(int lane, size_t external) {
  Lane& state = lanes_[lane];
  const BoundProgram& bound = exe_.training(lane);
  if (static_cast<int>(external) == bound.loss_sum) state.forward_end = state_.clock.Monotonic();
  const int parameter = bound.gradient_of[external];
  if (parameter < 0) return;
  if (state.call->micro_batch > 0) {
    const StoredTensor& p = exe_.parameters()[parameter];
    AddInto(exe_.gradient_slot(state.call->slot) + p.offset, exe_.lane_gradient(lane) + p.offset, p.elements);
  }
  if (measures_at_once_) {
    const auto [first, last] = update_->BlocksOf(parameter);
    update_->Measure(first, last, last - first < 8 ? 1 : exe_.lanes().threads());
  }
  if (!state.starts_buckets) return;
  const int32_t bucket = bucket_of_[parameter];
  if (missing_[bucket].fetch_sub(1) == 1) {
    const std::lock_guard lock(start_mutex_);
    exchanger_->Start(bucket);
  }
}

// Ranges of the flat array are independent, so any split gives the same bits.
void StepRunner::Merge(const std::vector<TreeMerge>& merges) {
  if (merges.empty()) return;
  const int lanes = exe_.lanes().lanes(), threads = exe_.lanes().threads();
  const int64_t parts = static_cast<int64_t>(lanes) * threads;
  const int64_t chunk = AlignUp((exe_.flat_elements() + parts - 1) / parts, 16);
  exe_.lanes().RunAll([&](int lane) {
    ParallelFor(threads, threads, [&](int64_t thread) {
      const int64_t begin = std::min((lane * threads + thread) * chunk, exe_.flat_elements());
      const int64_t count = std::min(chunk, exe_.flat_elements() - begin);
      if (count == 0) return;
      for (const TreeMerge& m : merges) {
        AddInto(exe_.gradient_slot(m.into) + begin, exe_.gradient_slot(m.from) + begin, count);
      }
    });
  });
}

Status StepRunner::Reduce(StepTimings* timings) {
  if (!exchanger_) return OkStatus();
  StatusOr<BucketExchanger::Timings> exchanged = exchanger_->WaitAll();
  TUTTI_RETURN_IF_ERROR(state_.Collective(exchanged.status()));
  timings->exchange = static_cast<double>(exchanged->busy_ns) / 1e6;
  timings->exposed_exchange = static_cast<double>(exchanged->exposed_ns) / 1e6;
  return OkStatus();
}

void StepRunner::Measure() {
  if (measures_at_once_ || exchanger_) return;  // done where the numbers came into being
  const int64_t blocks = update_->blocks(), lanes = exe_.lanes().lanes();
  exe_.lanes().RunAll(
      [&](int lane) { update_->Measure(blocks * lane / lanes, blocks * (lane + 1) / lanes, exe_.lanes().threads()); });
}

void StepRunner::Apply(const StepOutcome& outcome, int64_t update) {
  const UpdateScalars scalars{
      .update = update,
      .learning_rate = outcome.learning_rate,
      .gradient_scale = ClipScale(config_.spec().optimizer().clip_norm(), outcome.gradient_norm)};
  const int64_t blocks = update_->blocks(), lanes = exe_.lanes().lanes();
  exe_.lanes().RunAll([&](int lane) {
    update_->Apply(blocks * lane / lanes, blocks * (lane + 1) / lanes, scalars, exe_.lanes().threads());
  });
  for (size_t s = 0; s < exe_.statistics().size(); ++s) {
    const StatisticInfo& info = exe_.model().statistics[s];
    const StoredTensor& tensor = exe_.statistics()[s];
    const double n = static_cast<double>(info.samples_per_cell);
    const double unbiased = info.is_variance ? n / (n - 1) : 1;
    float* running = exe_.statistic_data() + tensor.offset;
    for (int64_t c = 0; c < tensor.elements; ++c) {
      const double value = footer_->StatisticMean(tensor.offset + c) * unbiased;
      running[c] = static_cast<float>((1 - info.momentum) * running[c] + info.momentum * value);
    }
  }
}

StatusOr<std::string> StepRunner::FindCause(const Batch& batch, const GradientMeasure& measure) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t found[2] = {kNone, 0};  // shard, parameter (in the model's order)
  for (const StepWave& wave : exe_.step_plan().waves) {
    for (const auto& lane_calls : wave.lanes) {
      for (const CellCall& call : lane_calls) {
        if (found[0] != kNone) continue;
        exe_.lanes().RunAll([&](int lane) {
          if (lane == 0) RunCell(0, call, batch, /*starts_buckets=*/false);
        });
        const float* gradients = call.micro_batch == 0 ? exe_.gradient_slot(call.slot) : exe_.lane_gradient(0);
        for (size_t p = exe_.parameters().size(); p-- > 0;) {  // last ready first: the model's first layers
          const StoredTensor& t = exe_.parameters()[p];
          const float* g = gradients + t.offset;
          if (found[0] == kNone && !std::all_of(g, g + t.elements, [](float v) { return std::isfinite(v); })) {
            found[0] = call.shard;
            found[1] = static_cast<int64_t>(p);
          }
        }
      }
    }
  }
  std::vector<int64_t> all(2 * exe_.tree().world_size());
  TUTTI_RETURN_IF_ERROR(state_.Collective(state_.comm.AllGather(found, all.data(), ElementCount(2), CommType::kI64)));
  int32_t first = 0;
  for (int32_t rank = 1; rank < exe_.tree().world_size(); ++rank) {
    if (all[2 * rank] < all[2 * first]) first = rank;
  }
  if (all[2 * first] == kNone) {
    const int bad = std::max(measure.first_bad_tensor, 0);
    return fmt::format("the sum over shards overflowed, {}", exe_.parameters()[bad].name);
  }
  return fmt::format("rank {}, shard {}, {}", first, all[2 * first], exe_.parameters()[all[2 * first + 1]].name);
}

}  // namespace tutti
