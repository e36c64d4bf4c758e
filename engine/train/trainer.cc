#include "engine/train/trainer.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/digest.h"
#include "base/process.h"
#include "engine/comm/shm.h"
#include "engine/data/dataset.h"
#include "engine/runtime/cpu/parallel.h"
#include "engine/train/checkpoints.h"
#include "engine/train/evaluator.h"
#include "engine/train/executable.h"
#include "engine/train/step_runner.h"

namespace tutti {
namespace {

constexpr size_t kStepTimes = 4096;  // newest that the median is taken of

// One call of Trainer::Run. Members are destroyed in reverse order: whoever uses memory or the communicator goes first.
class TrainingRun {
 public:
  struct Parts {
    Executable& exe;
    const Arena& arena;
    const Dataset& train;
    const Dataset* eval;
  };
  TrainingRun(const v1::RankConfig& config, const Parts& parts, RunState& state)
      : config_(config),
        spec_(config.spec()),
        exe_(parts.exe),
        arena_(parts.arena),
        train_(parts.train),
        eval_(parts.eval),
        state_(state) {}

  StatusOr<v1::RankResult> Run() {
    StatusOr<v1::RankResult> result = RunSteps();
    if (!result.ok() && checkpoints_) checkpoints_->Abort();
    return result;
  }

 private:
  StatusOr<v1::RankResult> RunSteps();
  Status Prepare();
  Status PlaceGradients();
  Status AnnounceStart(const std::string& resumed_from);
  StatusOr<uint64_t> AgreedWeightsDigest();
  // Completes the next step; sets leave_ where all ranks agreed to stop after it.
  Status Step();
  Status Count(const StepOutcome& outcome, const Batch& batch, v1::StepRecord* record);
  Status Evaluate();
  StatusOr<v1::RankResult> Finish();
  bool EvaluationDue(int64_t step) const;

  const v1::RankConfig& config_;
  const v1::JobSpec& spec_;
  Executable& exe_;
  const Arena& arena_;
  std::optional<Arena> own_gradients_;  // where no window is shared with the peers
  char* gradients_ = nullptr;
  const Dataset& train_;
  const Dataset* eval_;
  RunState& state_;
  std::optional<Checkpoints> checkpoints_;
  std::unique_ptr<Loader> loader_;
  std::optional<StepRunner> runner_;
  std::optional<Evaluator> evaluator_;
  Progress progress_;
  std::vector<float> step_times_;    // ring of kStepTimes
  int64_t steps_done_ = 0;           // by this generation
  int64_t checkpoint_requests_ = 0;  // served
  bool checkpoint_due_ = false;      // stays while a rank is slow to write the last one: all ranks wait alike
  bool checkpoint_slow_ = false;
  std::optional<v1::FinishReason> leave_;
};

StatusOr<v1::RankResult> TrainingRun::RunSteps() {
  const ScopedFlushDenormals flush;
  omp_set_num_threads(1);  // of this thread: packing weights must not start a second team beside the lanes'
  TUTTI_RETURN_IF_ERROR(Prepare());
  const int64_t total = exe_.counts().steps;
  // A generation that left before an evaluation that was due owes it to the next.
  if (progress_.step > 0 && EvaluationDue(progress_.step) && progress_.evaluation.step() != progress_.step) {
    TUTTI_RETURN_IF_ERROR(Evaluate());
  }
  checkpoint_due_ = false;
  while (progress_.step < total && !leave_) {
    TUTTI_RETURN_IF_ERROR(Step());
    if (!leave_ && EvaluationDue(progress_.step)) TUTTI_RETURN_IF_ERROR(Evaluate());
    const int64_t every = spec_.checkpoint().every_steps();
    checkpoint_due_ |= every > 0 && progress_.step % every == 0;
    if (checkpoint_due_ && !checkpoint_slow_ && progress_.step < total && !leave_) {
      checkpoints_->Begin(progress_, /*is_final=*/false);
      checkpoint_due_ = false;
    }
    TUTTI_RETURN_IF_ERROR(checkpoints_->Poll());
    state_.BeatIfDue();
  }
  return Finish();
}

Status TrainingRun::Prepare() {
  state_.Enter(v1::PHASE_MEETING, "comparison of programs");
  TUTTI_RETURN_IF_ERROR(state_.Collective(CompareSequenceHash(
      state_.comm, exe_.program_hash(),
      fmt::format("job {} generation {} ({})", config_.job_id(), config_.generation(), spec_.metadata().name()))));
  TUTTI_RETURN_IF_ERROR(PlaceGradients());
  checkpoints_.emplace(config_, exe_, train_, state_);
  std::string resumed_from;
  TUTTI_RETURN_IF_ERROR(checkpoints_->Start(&progress_, &resumed_from));
  TUTTI_ASSIGN_OR_RETURN(loader_, Loader::Create(train_, exe_.loader_options(), exe_.counts(),
                                                 {exe_.batch_memory(), static_cast<size_t>(exe_.batch_bytes())}));
  loader_->Seek(progress_.step);
  runner_.emplace(config_, exe_, state_);
  if (eval_ != nullptr) evaluator_.emplace(config_, *eval_, exe_, state_);
  step_times_.reserve(kStepTimes);
  state_.set_step(progress_.step);
  return AnnounceStart(resumed_from);
}

// In memory that all ranks of the host share gradients are summed where they lie; elsewhere they are copied out and in.
Status TrainingRun::PlaceGradients() {
  constexpr uintptr_t kPage = 4096;
  const size_t bytes = static_cast<size_t>(exe_.gradient_layout().total_bytes());
  const std::span<std::byte> window = ShmWindow(state_.comm);
  const size_t skip = (kPage - reinterpret_cast<uintptr_t>(window.data()) % kPage) % kPage;
  if (skip + bytes <= window.size()) {
    gradients_ = reinterpret_cast<char*>(window.data()) + skip;
    std::memset(gradients_, 0, bytes);  // takes the pages now, not in the step loop
  } else {
    TUTTI_ASSIGN_OR_RETURN(own_gradients_, Arena::Create(exe_.gradient_layout()));
    gradients_ = own_gradients_->data();
  }
  exe_.BindGradients(gradients_);
  return OkStatus();
}

Status TrainingRun::AnnounceStart(const std::string& resumed_from) {
  TUTTI_ASSIGN_OR_RETURN(const uint64_t digest, AgreedWeightsDigest());
  v1::RankEvent event;
  v1::RankStarted& started = *event.mutable_started();
  started.set_resumed_step(progress_.step);
  started.set_resumed_from(resumed_from);
  *started.mutable_plan() = exe_.plan();
  started.mutable_kernel_choices()->Add(exe_.kernel_choices().begin(), exe_.kernel_choices().end());
  started.set_data_digest(DigestText(train_.digest()));
  started.set_weights_digest(DigestText(digest));
  state_.Emit(std::move(event));
  return OkStatus();
}

// XXH3 of the parameters as they lie in memory, equal on every rank or an error that names one that differs.
StatusOr<uint64_t> TrainingRun::AgreedWeightsDigest() {
  state_.Enter(v1::PHASE_MEETING, "comparison of weights");
  const uint64_t own = Xxh3(exe_.parameter_data(), exe_.flat_elements() * sizeof(float));
  std::vector<uint64_t> all(config_.world_size());
  TUTTI_RETURN_IF_ERROR(state_.Collective(state_.comm.AllGather(&own, all.data(), ElementCount(1), CommType::kI64)));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != own) {
      return Internal("weights differ: digest {:016x} on rank {}, {:016x} on rank {}", own, config_.rank(), all[rank],
                      rank);
    }
  }
  return own;
}

bool TrainingRun::EvaluationDue(int64_t step) const {
  if (!evaluator_) return false;
  const int64_t every = spec_.train().evaluate_every_steps();
  if (every > 0 && step % every == 0) return true;
  return spec_.train().evaluate_at_end() && step == exe_.counts().steps;
}

Status TrainingRun::Step() {
  const Nanos start = state_.clock.Monotonic();
  state_.set_step(progress_.step + 1);
  state_.Enter(v1::PHASE_TRAINING, "wait for data");
  v1::RankEvent event;
  v1::StepRecord& record = *event.mutable_step();
  record.set_start_unix_ms(static_cast<double>(state_.clock.UnixMillis()));
  TUTTI_ASSIGN_OR_RETURN(const Batch* batch, loader_->Next());
  TUTTI_CHECK(batch->step == progress_.step + 1, "loader is at step {}, expected {}", batch->step, progress_.step + 1);
  record.set_data_wait_ms(MillisBetween(start, state_.clock.Monotonic()));
  TUTTI_ASSIGN_OR_RETURN(StepOutcome outcome, runner_->Run(*batch, progress_.update + 1, checkpoints_->slow()));
  const Status counted = Count(outcome, *batch, &record);
  const double step_ms = MillisBetween(start, state_.clock.Monotonic());
  record.set_step_ms(step_ms);
  if (step_times_.size() < kStepTimes) {
    step_times_.push_back(static_cast<float>(step_ms));
  } else {
    step_times_[steps_done_ % kStepTimes] = static_cast<float>(step_ms);
  }
  ++steps_done_;
  if (state_.is_root()) state_.Emit(std::move(event));
  TUTTI_RETURN_IF_ERROR(counted);
  if (outcome.footer.intent >= v1::INTENT_YIELD) {
    leave_ = outcome.footer.intent == v1::INTENT_CANCEL ? v1::FINISH_REASON_CANCELLED : v1::FINISH_REASON_YIELDED;
  }
  checkpoint_due_ |= outcome.footer.checkpoint_requests > checkpoint_requests_;
  checkpoint_slow_ = outcome.footer.checkpoint_slow;
  checkpoint_requests_ = std::max(checkpoint_requests_, outcome.footer.checkpoint_requests);
  return OkStatus();
}

Status TrainingRun::Count(const StepOutcome& outcome, const Batch& batch, v1::StepRecord* record) {
  const bool skipped = !outcome.finite;
  progress_.step = batch.step;
  progress_.ledger.Append(batch.step, batch.sample_digest, batch.valid);
  progress_.update += skipped ? 0 : 1;
  progress_.skipped_in_row = skipped ? progress_.skipped_in_row + 1 : 0;
  const double valid = static_cast<double>(std::max<int64_t>(batch.valid, 1));
  record->set_step(batch.step);
  record->set_update(progress_.update);
  record->set_loss(outcome.footer.loss_sum / valid);
  record->set_samples(batch.valid);
  record->set_accuracy(static_cast<double>(outcome.footer.correct) / valid);
  record->set_learning_rate(outcome.learning_rate);
  record->set_gradient_norm(outcome.gradient_norm);
  record->set_clipped(outcome.clipped);
  record->set_skipped(skipped);
  record->set_skip_cause(outcome.skip_cause);
  record->set_forward_ms(outcome.timings.forward);
  record->set_backward_ms(outcome.timings.backward);
  record->set_exchange_ms(outcome.timings.exchange);
  record->set_exposed_exchange_ms(outcome.timings.exposed_exchange);
  record->set_optimizer_ms(outcome.timings.optimizer);
  record->set_sample_digest(batch.sample_digest);
  record->set_epoch(batch.epoch);
  record->set_resident_bytes(PeakResidentBytes());
  if (progress_.skipped_in_row > spec_.train().max_skipped_steps()) {
    return FailedPrecondition(
        "{} steps in a row had a non-finite gradient (train.max_skipped_steps is {}); the last: step {}, {}. A lower "
        "learning rate or optimizer.clip_norm may help",
        progress_.skipped_in_row, spec_.train().max_skipped_steps(), batch.step, outcome.skip_cause);
  }
  return OkStatus();
}

Status TrainingRun::Evaluate() {
  TUTTI_ASSIGN_OR_RETURN(progress_.evaluation, evaluator_->Run(progress_.step));
  const double accuracy = progress_.evaluation.accuracy();
  if (progress_.best_step == 0 || accuracy > progress_.best_metric) {
    progress_.best_step = progress_.step;
    progress_.best_metric = accuracy;
    checkpoint_due_ |= spec_.checkpoint().keep_best();  // what is best must be there to be kept
  }
  if (!state_.is_root()) return OkStatus();
  v1::RankEvent event;
  *event.mutable_evaluation() = progress_.evaluation;
  state_.Emit(std::move(event));
  return OkStatus();
}

StatusOr<v1::RankResult> TrainingRun::Finish() {
  TUTTI_RETURN_IF_ERROR(AgreedWeightsDigest().status());
  checkpoints_->Begin(progress_, /*is_final=*/true);
  TUTTI_ASSIGN_OR_RETURN(const CheckpointResult checkpoint, checkpoints_->Finish());
  v1::RankResult result;
  result.set_reason(leave_.value_or(v1::FINISH_REASON_COMPLETED));
  result.set_last_step(progress_.step);
  result.set_weights_sha256(checkpoint.weights_sha256);
  result.set_final_checkpoint(checkpoint.path);
  TUTTI_ASSIGN_OR_RETURN(const int64_t arena_bytes, arena_.MeasureResidentBytes());
  TUTTI_ASSIGN_OR_RETURN(const int64_t gradient_bytes,
                         CountResidentBytes(gradients_, exe_.gradient_layout().total_bytes()));
  result.set_measured_arena_bytes(arena_bytes + gradient_bytes);
  result.set_measured_resident_bytes(PeakResidentBytes());
  *result.mutable_plan() = exe_.plan();
  if (!step_times_.empty()) {
    const auto middle = step_times_.begin() + static_cast<int64_t>(step_times_.size() / 2);
    std::nth_element(step_times_.begin(), middle, step_times_.end());
    result.set_median_step_ms(*middle);
  }
  result.set_samples(progress_.ledger.samples());
  state_.Enter(v1::PHASE_FINISHED, "end");
  return result;
}

class RankTrainer : public Trainer {
 public:
  explicit RankTrainer(const v1::RankConfig& config) : config_(config) {}

  Status Open() {
    const int64_t process_bytes = ResidentBytes();
    const v1::Data& data = config_.spec().data();
    TUTTI_ASSIGN_OR_RETURN(train_, OpenDataset(data.train(), data.classes()));
    DataShape shape{.sample_dims = train_->sample_shape(),
                    .train_samples = train_->size(),
                    .resident_bytes = train_->memory_bytes()};
    if (data.has_eval()) {
      TUTTI_ASSIGN_OR_RETURN(eval_, OpenDataset(data.eval(), data.classes()));
      if (eval_->sample_shape() != train_->sample_shape()) {
        return InvalidArgument("data.eval: its samples have another shape than those of data.train");
      }
      shape.eval_samples = eval_->size();
      shape.resident_bytes += eval_->memory_bytes();
    }
    TUTTI_ASSIGN_OR_RETURN(exe_, Executable::Compile(config_, shape, process_bytes));
    TUTTI_ASSIGN_OR_RETURN(arena_, Arena::Create(exe_->arena_layout()));
    exe_->Bind(*arena_);
    return OkStatus();
  }

  const v1::TrainPlan& plan() const override { return exe_->plan(); }

  StatusOr<v1::RankResult> Run(Communicator& communicator, const TrainerHooks& hooks) override {
    RunState state(config_, communicator, hooks);
    StatusOr<v1::RankResult> result = TrainingRun(config_, {*exe_, *arena_, *train_, eval_.get()}, state).Run();
    failed_in_collective_ = state.failed_in_collective();
    where_ = state.Where();
    step_ = state.step();
    if (!result.ok() && !failed_in_collective_) {
      communicator.Abort(fmt::format("rank {}: {}", config_.rank(), Message(result.status())));
    }
    return result;
  }

  std::string where() const override { return where_; }
  int64_t step() const override { return step_; }
  bool failed_in_collective() const override { return failed_in_collective_; }

 private:
  const v1::RankConfig config_;
  std::unique_ptr<Dataset> train_, eval_;
  std::optional<Arena> arena_;
  std::unique_ptr<Executable> exe_;
  std::string where_ = "start";
  int64_t step_ = 0;
  bool failed_in_collective_ = false;
};

}  // namespace

StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const v1::RankConfig& config) {
  auto trainer = std::make_unique<RankTrainer>(config);
  TUTTI_RETURN_IF_ERROR(trainer->Open());
  return trainer;
}

StatusOr<v1::TrainPlan> ExactPlan(const v1::RankConfig& config) {
  const v1::Data& data = config.spec().data();
  TUTTI_ASSIGN_OR_RETURN(const DatasetShape train, InspectDataset(data.train()));
  DataShape shape{.sample_dims = train.sample_shape, .train_samples = train.size, .resident_bytes = train.memory_bytes};
  if (data.has_eval()) {
    TUTTI_ASSIGN_OR_RETURN(const DatasetShape eval, InspectDataset(data.eval()));
    shape.eval_samples = eval.size;
    shape.resident_bytes += eval.memory_bytes;
  }
  TUTTI_ASSIGN_OR_RETURN(const std::unique_ptr<Executable> exe, Executable::Compile(config, shape, ResidentBytes()));
  return exe->plan();
}

}  // namespace tutti
