#include "engine/train/checkpoints.h"

#include <algorithm>

#include "base/check.h"
#include "engine/optim/update.h"

namespace tutti {
namespace {

constexpr Nanos kSlowCheckpoint = std::chrono::seconds(5);  // far below the time limit of collectives
constexpr std::string_view kStatisticPrefix = "statistic/";

std::string StateName(const StoredTensor& parameter, std::string_view state) {
  return fmt::format("optimizer/{}/{}", parameter.name, state);
}

// The tensor `name` of `loaded` with the shape that the model has.
StatusOr<const LoadedTensor*> Find(const LoadedCheckpoint& loaded, const std::string& name,
                                   const std::vector<int64_t>& dims) {
  const auto it = loaded.tensors.find(name);
  if (it == loaded.tensors.end()) {
    return FailedPrecondition("checkpoint {} has no tensor {}: it is of another model or optimizer", loaded.info.path,
                              name);
  }
  if (it->second.shape != dims) {
    return FailedPrecondition("checkpoint {}: tensor {} has another shape than the model", loaded.info.path, name);
  }
  return &it->second;
}

}  // namespace

Checkpoints::Checkpoints(const v1::RankConfig& config, Executable& executable, const Dataset& dataset, RunState& state)
    : config_(config),
      exe_(executable),
      state_(state),
      data_digest_(dataset.digest()),
      self_{config.job_id(), Generation(config.generation())} {}

Checkpoints::~Checkpoints() = default;

Status Checkpoints::Start(Progress* progress, std::string* resumed_from) {
  TUTTI_ASSIGN_OR_RETURN(*resumed_from, AgreeOnFolder());
  progress->ledger.Reserve(exe_.counts().steps);
  if (resumed_from->empty()) {
    Initialise();
  } else {
    TUTTI_RETURN_IF_ERROR(Load(*resumed_from, progress));
    progress->ledger.Reserve(exe_.counts().steps);
  }
  base_step_ = progress->step;
  return CreateWriter();
}

StatusOr<std::optional<CheckpointInfo>> Checkpoints::Decide() {
  std::vector<std::string> notices;
  auto start = store_->FindStart(config_.spec().checkpoint(), self_, &notices);
  for (std::string& notice : notices) state_.Notice(v1::NOTICE_LEVEL_WARNING, std::move(notice));
  return start;
}

StatusOr<std::string> Checkpoints::AgreeOnFolder() {
  state_.Enter(v1::PHASE_STARTING, "choice of the checkpoint");
  TUTTI_ASSIGN_OR_RETURN(store_, CheckpointStore::Open(config_.spec().checkpoint().directory()));
  std::string folder;
  if (state_.is_root()) {
    TUTTI_ASSIGN_OR_RETURN(const std::optional<CheckpointInfo> start, Decide());
    if (start) folder = start->path;
  }
  int64_t length = static_cast<int64_t>(folder.size());
  TUTTI_RETURN_IF_ERROR(state_.Collective(state_.comm.Broadcast(&length, ElementCount(1), CommType::kI64, Rank(0))));
  folder.resize(length);
  if (length > 0) {
    TUTTI_RETURN_IF_ERROR(
        state_.Collective(state_.comm.Broadcast(folder.data(), ElementCount(length), CommType::kU8, Rank(0))));
  }
  return folder;
}

void Checkpoints::Initialise() {
  std::vector<float> plain;
  for (size_t i = 0; i < exe_.parameters().size(); ++i) {
    const StoredTensor& p = exe_.parameters()[i];
    plain.resize(exe_.info(i).type.elements());
    InitialValues(exe_.info(i), config_.spec().train().seed(), plain);
    PackFromPlain(plain.data(), p.layout, exe_.parameter_data() + p.offset);
  }
  for (size_t i = 0; i < exe_.statistics().size(); ++i) {
    const StoredTensor& s = exe_.statistics()[i];
    std::fill_n(exe_.statistic_data() + s.offset, s.elements, exe_.model().statistics[i].initial);
  }
}

Status Checkpoints::Load(const std::string& folder, Progress* progress) {
  TUTTI_ASSIGN_OR_RETURN(LoadedCheckpoint loaded, LoadCheckpoint(folder));
  const v1::Manifest& manifest = *loaded.info.manifest;
  TUTTI_RETURN_IF_ERROR(CheckResumable(manifest, config_.spec(), data_digest_));
  const auto states = OptimizerStates(config_.spec().optimizer());
  for (const StoredTensor& p : exe_.parameters()) {
    TUTTI_ASSIGN_OR_RETURN(const LoadedTensor* tensor, Find(loaded, p.name, p.dims));
    PackFromPlain(tensor->data.data(), p.layout, exe_.parameter_data() + p.offset);
    for (size_t s = 0; s < states.size(); ++s) {
      TUTTI_ASSIGN_OR_RETURN(const LoadedTensor* state, Find(loaded, StateName(p, states[s]), p.dims));
      PackFromPlain(state->data.data(), p.layout, exe_.state_data(static_cast<int>(s)) + p.offset);
    }
  }
  for (const StoredTensor& s : exe_.statistics()) {
    TUTTI_ASSIGN_OR_RETURN(const LoadedTensor* tensor, Find(loaded, std::string(kStatisticPrefix) + s.name, s.dims));
    std::copy(tensor->data.begin(), tensor->data.end(), exe_.statistic_data() + s.offset);
  }
  const v1::Optimizer &before = manifest.spec().optimizer(), &now = config_.spec().optimizer();
  if (state_.is_root() && before.learning_rate() != now.learning_rate()) {
    state_.Notice(
        v1::NOTICE_LEVEL_WARNING,
        fmt::format("learning rate: the checkpoint was trained with {}, the job file says {}: the job file's holds",
                    before.learning_rate(), now.learning_rate()));
  }
  progress->step = manifest.step();
  progress->update = manifest.update();
  progress->skipped_in_row = manifest.skipped_in_row();
  progress->best_step = manifest.best_step();
  progress->best_metric = manifest.best_metric();
  progress->evaluation = manifest.evaluation();
  progress->ledger = std::move(loaded.ledger);
  return OkStatus();
}

std::vector<TensorRef> Checkpoints::Tensors() {
  std::vector<TensorRef> refs;
  const auto add = [&](std::string name, v1::TensorRole role, const StoredTensor& t, const float* stored) {
    const CpuLayout layout = t.layout;
    refs.push_back(
        {std::move(name), role, t.dims, [stored, layout](float* plain) { UnpackToPlain(stored, layout, plain); }});
  };
  const auto states = OptimizerStates(config_.spec().optimizer());
  for (const StoredTensor& p : exe_.parameters()) {
    add(p.name, v1::TENSOR_ROLE_PARAMETER, p, exe_.parameter_data() + p.offset);
    for (size_t s = 0; s < states.size(); ++s) {
      add(StateName(p, states[s]), v1::TENSOR_ROLE_OPTIMIZER_STATE, p, exe_.state_data(static_cast<int>(s)) + p.offset);
    }
  }
  for (const StoredTensor& s : exe_.statistics()) {
    add(std::string(kStatisticPrefix) + s.name, v1::TENSOR_ROLE_STATISTIC, s, exe_.statistic_data() + s.offset);
  }
  return refs;
}

Status Checkpoints::CreateWriter() {
  AsyncCheckpointWriter::Options options;
  options.self = self_;
  options.rank = Rank(config_.rank());
  options.world_size = config_.world_size();
  options.retention = {.keep = std::max<int64_t>(config_.spec().checkpoint().keep(), 2),
                       .best_step = std::nullopt,
                       .base = Step(base_step_)};
  options.clock = &state_.clock;
  TUTTI_ASSIGN_OR_RETURN(writer_, AsyncCheckpointWriter::Create(*store_, options, Tensors()));
  return OkStatus();
}

v1::Manifest Checkpoints::MakeManifest(const Progress& progress) const {
  v1::Manifest manifest;
  manifest.set_step(progress.step);
  manifest.set_update(progress.update);
  manifest.set_position(exe_.counts().ConsumedAfter(progress.step));
  manifest.set_data_digest(DigestText(data_digest_));
  manifest.set_data_set_size(exe_.counts().data_set_size);
  *manifest.mutable_spec() = config_.spec();
  *manifest.mutable_bases() = config_.bases();
  v1::GenerationBase* own = manifest.add_bases();
  own->set_generation(config_.generation());
  own->set_base_step(base_step_);
  manifest.mutable_kernel_choices()->Add(exe_.kernel_choices().begin(), exe_.kernel_choices().end());
  manifest.set_best_metric(progress.best_metric);
  manifest.set_best_step(progress.best_step);
  if (progress.evaluation.step() == progress.step) *manifest.mutable_evaluation() = progress.evaluation;
  manifest.set_skipped_in_row(progress.skipped_in_row);
  return manifest;
}

bool Checkpoints::slow() const { return writer_->busy() && state_.clock.Monotonic() - begun_ > kSlowCheckpoint; }

void Checkpoints::Begin(const Progress& progress, bool is_final) {
  if (is_final) final_step_ = progress.step;
  if (config_.spec().checkpoint().keep_best() && progress.best_step > 0) writer_->SetBest(progress.best_step);
  writer_->Begin(MakeManifest(progress), progress.ledger, is_final);
  begun_ = state_.clock.Monotonic();
}

Status Checkpoints::Report(const CheckpointResult& result, bool is_final) {
  const bool may_go_on = config_.spec().checkpoint().on_error() == v1::DISK_FULL_POLICY_CONTINUE && !is_final &&
                         result.status.code() != absl::StatusCode::kAborted;
  for (const std::string& notice : result.notices) state_.Notice(v1::NOTICE_LEVEL_WARNING, notice);
  if (!result.status.ok()) {
    if (!may_go_on) return Annotate(result.status, fmt::format("checkpoint of step {}", result.step.value()));
    state_.Notice(v1::NOTICE_LEVEL_WARNING, fmt::format("checkpoint of step {} was not written: {}",
                                                        result.step.value(), Message(result.status)));
    return OkStatus();
  }
  if (!state_.is_root()) return OkStatus();
  v1::RankEvent event;
  v1::CheckpointRecord& record = *event.mutable_checkpoint();
  record.set_step(result.step.value());
  record.set_path(result.path);
  record.set_weights_sha256(result.weights_sha256);
  record.set_bytes(result.bytes);
  record.set_seconds(result.seconds);
  record.set_is_final(is_final);
  state_.Emit(std::move(event));
  return OkStatus();
}

Status Checkpoints::Poll() {
  while (std::optional<CheckpointResult> result = writer_->Poll()) {
    const bool is_final = result->step.value() == final_step_;
    if (is_final) final_ = *result;
    TUTTI_RETURN_IF_ERROR(Report(*result, is_final));
  }
  return OkStatus();
}

StatusOr<CheckpointResult> Checkpoints::Finish() {
  state_.Enter(v1::PHASE_CHECKPOINTING, "final checkpoint");
  TUTTI_RETURN_IF_ERROR(Poll());
  if (final_) return *std::move(final_);
  std::optional<CheckpointResult> result = writer_->Finish();
  TUTTI_CHECK(result.has_value() && result->step.value() == final_step_, "no final checkpoint of step {}", final_step_);
  TUTTI_RETURN_IF_ERROR(Report(*result, /*is_final=*/true));
  return *std::move(result);
}

void Checkpoints::Abort() {
  if (writer_) writer_->Abort();
}

}  // namespace tutti
