#include "worker/rank/session.h"

#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>

#include "base/check.h"
#include "base/files.h"
#include "base/framing.h"
#include "base/log.h"
#include "engine/comm/gloo.h"
#include "engine/comm/local.h"
#include "engine/comm/shm.h"

namespace tutti {
namespace {

Millis CollectiveTimeout(const v1::RankConfig& config) {
  const int64_t ms = config.spec().restart().collective_timeout_ms();
  return Millis(ms > 0 ? ms : 30'000);
}

// The one limit of a start: other nodes may still be starting.
Millis StartTimeout(const v1::RankConfig& config) {
  const int64_t ms = config.spec().restart().start_timeout_ms();
  return Millis(ms > 0 ? ms : 120'000);
}

RankExit ExitOf(const Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return RankExit::kNeverFits;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kPermissionDenied:
      return RankExit::kWrongJob;
    default:
      return RankExit::kFailed;
  }
}

bool IsPeersFault(const Status& status) {
  return status.code() == absl::StatusCode::kUnavailable || status.code() == absl::StatusCode::kDeadlineExceeded ||
         status.code() == absl::StatusCode::kAborted;
}

}  // namespace

int32_t BlamedRank(std::string_view message) {
  for (size_t at = message.find("rank "); at != std::string_view::npos; at = message.find("rank ", at + 1)) {
    size_t digit = at + 5;
    int64_t rank = 0;
    const size_t first = digit;
    while (digit < message.size() && digit - first < 7 && std::isdigit(static_cast<unsigned char>(message[digit]))) {
      rank = rank * 10 + (message[digit++] - '0');
    }
    if (digit > first) return static_cast<int32_t>(rank);
  }
  return -1;
}

RankSession::~RankSession() {
  stop_listening_.Reset();  // closes the pipe: wakes the listener
  if (listener_.joinable()) listener_.join();
}

RankExit RankSession::Run() {
  if (Status status = ReadConfig(); !status.ok()) {
    LogError("no usable configuration on the shim's socket: {}", Message(status));
    return RankExit::kWrongJob;
  }
  RankExit exit = RankExit::kFailed;
  const StatusOr<v1::RankResult> result = Train(&exit);
  if (!result.ok()) return ReportFailure(result.status(), exit);
  v1::RankEvent event;
  *event.mutable_result() = *result;
  Emit(std::move(event));
  return RankExit::kDone;
}

Status RankSession::ReadConfig() {
  TUTTI_ASSIGN_OR_RETURN(const std::optional<std::string> frame, ReceiveFrame(socket_));
  if (!frame) return Unavailable("the socket was closed before the configuration came");
  if (!config_.ParseFromString(*frame)) return DataLoss("the first frame is not a RankConfig");
  InitLogging(fmt::format("rank {}", config_.rank()));
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  stop_listening_read_.Reset(pipe_fds[0]);
  stop_listening_.Reset(pipe_fds[1]);
  listener_ = std::thread([this] { Listen(); });
  return OkStatus();
}

StatusOr<v1::RankResult> RankSession::Train(RankExit* exit) {
  LogInfo("generation {}, rank {} of {}, job {}", config_.generation(), config_.rank(), config_.world_size(),
          config_.spec().metadata().name());
  v1::RankEvent starting;
  starting.mutable_heartbeat()->set_phase(v1::PHASE_STARTING);
  Emit(std::move(starting));
  StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(config_);
  if (!trainer.ok()) {
    *exit = ExitOf(trainer.status());
    return trainer.status();
  }
  trainer_ = *std::move(trainer);
  StatusOr<std::unique_ptr<Communicator>> comm = Meet();
  if (!comm.ok()) {
    *exit = IsPeersFault(comm.status()) ? RankExit::kVictim : RankExit::kFailed;
    return comm.status();
  }
  TrainerHooks hooks;
  hooks.control = &control_;
  hooks.emit = [this](v1::RankEvent event) { Emit(std::move(event)); };
  StatusOr<v1::RankResult> result = trainer_->Run(**comm, hooks);
  if (result.ok()) return result;
  if (trainer_->failed_in_collective() && IsPeersFault(result.status())) {
    *exit = RankExit::kVictim;
  } else {
    const RankExit own = ExitOf(result.status());
    *exit = own == RankExit::kNeverFits ? RankExit::kFailed : own;  // a full disk, not a job that is too large
  }
  return result;
}

StatusOr<std::unique_ptr<Communicator>> RankSession::Meet() {
  if (config_.world_size() == 1) return std::move(CreateLocalWorld({.world_size = 1})[0]);
  if (config_.comm() == v1::COMM_BACKEND_GLOO) return MeetOverGloo();
  return AttachShm({.fd = shared_memory_,
                    .rank = Rank(config_.rank()),
                    .world_size = config_.world_size(),
                    .generation = Generation(config_.generation()),
                    .window_bytes = config_.shared_window_bytes(),
                    .timeout = CollectiveTimeout(config_),
                    .attach_timeout = StartTimeout(config_)});
}

StatusOr<std::unique_ptr<Communicator>> RankSession::MeetOverGloo() {
  TUTTI_ASSIGN_OR_RETURN(const std::unique_ptr<GlooEndpoint> endpoint,
                         GlooEndpoint::Create({.address = config_.advertise_address(),
                                               .rank = Rank(config_.rank()),
                                               .world_size = config_.world_size(),
                                               .generation = Generation(config_.generation()),
                                               .timeout = CollectiveTimeout(config_)}));
  const Nanos deadline = SystemClock().Monotonic() + StartTimeout(config_);  // of addresses and connections together
  v1::RankEvent event;
  event.mutable_ready()->set_peer_blob(endpoint->blob());
  Emit(std::move(event));
  std::vector<std::string> blobs;
  {
    std::unique_lock lock(mutex_);
    if (!peers_came_.wait_for(lock, StartTimeout(config_), [this] { return peers_.has_value(); })) {
      return DeadlineExceeded(
          "not all of {} ranks were ready within {} ms (restart.startTimeoutMs): the addresses of the others did not "
          "come",
          config_.world_size(), StartTimeout(config_).count());
    }
    blobs.assign(peers_->blobs().begin(), peers_->blobs().end());
  }
  const auto left = std::chrono::ceil<Millis>(deadline - SystemClock().Monotonic());
  return endpoint->Connect(blobs, std::max(left, Millis(1)));
}

RankExit RankSession::ReportFailure(const Status& status, RankExit exit) {
  v1::RankEvent event;
  v1::RankFailure& failure = *event.mutable_failure();
  failure.set_code(static_cast<int32_t>(status.code()));
  failure.set_message(Message(status));
  failure.set_victim(exit == RankExit::kVictim);
  failure.set_blamed_rank(failure.victim() ? BlamedRank(Message(status)) : -1);
  failure.set_step(trainer_ ? trainer_->step() : 0);
  failure.set_where(trainer_ ? trainer_->where() : "start");
  failure.set_retryable(exit == RankExit::kVictim || exit == RankExit::kFailed);
  LogError("{}{} (in {})", failure.victim() ? "stopped by a peer: " : "", failure.message(), failure.where());
  Emit(std::move(event));
  return exit;
}

void RankSession::Emit(v1::RankEvent event) {
  event.set_generation(config_.generation());
  event.set_rank(config_.rank());
  if (event.unix_ms() == 0) event.set_unix_ms(SystemClock().UnixMillis());
  PrintLine(event);
  Send(event);
}

void RankSession::Send(const v1::RankEvent& event) {
  // A shim that is gone shows as the end of the socket, which the listener handles.
  if (Status status = SendFrame(socket_, event.SerializeAsString()); !status.ok()) {
    LogWarning("event was not delivered: {}", Message(status));
  }
}

void RankSession::PrintLine(const v1::RankEvent& event) {
  if (event.has_notice()) LogWarning("{}", event.notice().message());
  if (event.has_step()) {
    const v1::StepRecord& s = event.step();
    const int64_t every = std::max<int64_t>(config_.spec().train().log_every_steps(), 1);
    if (s.skipped()) LogWarning("step {} skipped: non-finite gradient, {}", s.step(), s.skip_cause());
    if (s.step() % every == 0) {
      LogInfo("step {}  loss {:.4f}  accuracy {:.4f}  {:.0f} samples/s", s.step(), s.loss(), s.accuracy(),
              s.step_ms() > 0 ? 1e3 * static_cast<double>(s.samples()) / s.step_ms() : 0.0);
    }
  }
  if (event.has_evaluation()) {
    LogInfo("evaluation at step {}: loss {:.4f}, accuracy {:.4f} over {} samples", event.evaluation().step(),
            event.evaluation().loss(), event.evaluation().accuracy(), event.evaluation().samples());
  }
  if (event.has_checkpoint()) LogInfo("checkpoint {}", event.checkpoint().path());
}

void RankSession::Listen() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  const UniqueFd terminate(::signalfd(-1, &signals, SFD_CLOEXEC));
  TUTTI_CHECK(terminate.valid(), "signalfd: errno {}", errno);
  for (;;) {
    pollfd fds[3] = {{socket_, POLLIN, 0}, {terminate.get(), POLLIN, 0}, {stop_listening_read_.get(), POLLIN, 0}};
    if (::poll(fds, 3, -1) < 0 && errno != EINTR) return;
    if (fds[2].revents != 0) return;
    if (fds[1].revents != 0) {
      signalfd_siginfo info;
      if (::read(terminate.get(), &info, sizeof info) == sizeof info) OnTerminate();
    }
    if (fds[0].revents == 0) continue;
    const StatusOr<std::optional<std::string>> frame = ReceiveFrame(socket_);
    if (!frame.ok() || !*frame) {
      LogError("the shim is gone: leaving without a checkpoint");
      ::_exit(static_cast<int>(RankExit::kFailed));
    }
    v1::RankCommand command;
    if (command.ParseFromString(**frame)) {
      Obey(command);
    } else {
      LogWarning("a command of the shim could not be read");
    }
  }
}

void RankSession::Obey(const v1::RankCommand& command) {
  if (command.has_peers()) {
    const std::lock_guard lock(mutex_);
    peers_ = command.peers();
    peers_came_.notify_all();
  }
  if (command.has_control()) {
    control_.Raise(command.control().intent());
    if (command.control().checkpoint_now()) control_.RequestCheckpoint();
  }
}

void RankSession::OnTerminate() {
  if (++terminations_ == 1) {
    LogInfo("SIGTERM: checkpoint, then leave");
    control_.Raise(v1::INTENT_YIELD);
    return;
  }
  LogWarning("second SIGTERM: leaving at once");
  ::signal(SIGTERM, SIG_DFL);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  ::raise(SIGTERM);
}

StatusOr<std::string> DryRun(const std::string& path) {
  TUTTI_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxFrameBytes));
  v1::RankConfig config;
  // A RankConfig read as a JobSpec has no data section, and the other way round.
  if (!config.mutable_spec()->ParseFromString(bytes) || !config.spec().has_data()) {
    if (!config.ParseFromString(bytes) || !config.spec().has_data()) {
      return InvalidArgument("{}: found neither a RankConfig nor a JobSpec in binary form", path);
    }
  }
  if (config.world_size() == 0) config.set_world_size(static_cast<int32_t>(config.spec().resources().ranks()));
  TUTTI_ASSIGN_OR_RETURN(const v1::TrainPlan plan, ExactPlan(config));
  std::string json;
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  if (!google::protobuf::util::MessageToJsonString(plan, &json, options).ok()) return Internal("plan has no JSON form");
  return json;
}

}  // namespace tutti
