#include "cli/session.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/files.h"
#include "cli/exit_codes.h"
#include "cli/local_plan.h"
#include "cli/text.h"
#include "engine/checkpoint/verify.h"

namespace tutti::cli {
namespace {

constexpr int kTurnMs = 100;
constexpr Nanos kPatience = std::chrono::seconds(60);  // with an embedded coordinator, which is restarted at once
constexpr Nanos kEndAfterGrace = std::chrono::seconds(20);
constexpr int64_t kCancelDeadlineMs = 5000;
constexpr auto kCreatePoll = std::chrono::milliseconds(20);
constexpr int kCreateAttempts = 3;

// Scripts get one object at the end and nothing else.
bool Structured(const Options& options) {
  return options.format() == Format::kJson || options.format() == Format::kYaml;
}

double Seconds(Nanos time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

StatusOr<UniqueFd> ListenToSignals() {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, signal);
  if (const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0)
    return ErrnoStatus(error, "block signals");
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus(errno, "make a signalfd");
  return fd;
}

Session::Session(const Options& options, const LoadedJob& job, Client* client, Embedded* embedded, UniqueFd signals)
    : options_(options),
      loaded_(job),
      client_(client),
      embedded_(embedded),
      signals_(std::move(signals)),
      terminal_(Structured(options)) {
  facts_.file = options.file;
  facts_.working_directory = AbsolutePath(".").value_or("");
  while (facts_.working_directory.ends_with('/') || facts_.working_directory.ends_with("/."))
    facts_.working_directory.pop_back();
}

StatusOr<v1::CreateJobResponse> Session::Create() {
  v1::CreateJobRequest request;
  request.set_uid(options_.uid.empty() ? NewUlid() : options_.uid);
  *request.mutable_spec() = loaded_.spec;
  request.set_validate_only(options_.dry_run);
  StatusOr<v1::DataFacts> data = InspectData(loaded_.spec);
  if (data.ok()) {
    *request.mutable_data() = *std::move(data);
  } else if (embedded_ != nullptr) {
    return data.status();  // the ranks would run here; on a cluster the files may be elsewhere
  }
  StatusOr<v1::CreateJobResponse> response = Unavailable("not tried");
  for (int attempt = 0; attempt < kCreateAttempts && (response.status().code() == absl::StatusCode::kUnavailable);
       ++attempt) {
    std::future<StatusOr<v1::CreateJobResponse>> call =
        std::async(std::launch::async, [&] { return client_->CreateJob(request); });
    while (call.wait_for(kCreatePoll) != std::future_status::ready) {
      early_interrupts_ += TakeInterrupts();
      if (early_interrupts_ > 1) return Aborted("interrupted before the coordinator answered");
      if (embedded_ != nullptr) TUTTI_RETURN_IF_ERROR(embedded_->Supervise(SystemClock().Monotonic()));
    }
    response = call.get();
    if (embedded_ == nullptr) break;
  }
  return response;
}

std::string Session::WhatWouldFit() const {
  const StatusOr<v1::DataFacts> data = InspectData(loaded_.spec);
  if (!data.ok()) return "";
  const StatusOr<LocalPlan> local = PlanHere(loaded_.spec, *data);
  return !local.ok() || local->fits.ok() ? "" : Message(local->fits) + "\n";
}

int Session::ReportCreateError(const Status& status) {
  fmt::print(stderr, "{}\n", LocateLayerError(loaded_, Message(status)));
  if (status.code() == absl::StatusCode::kResourceExhausted) return kNeverRuns;
  if (early_interrupts_ > 0) return kInterrupted;
  return ExitCodeOf(status);
}

int Session::Run() {
  submit_ = SystemClock().Monotonic();
  submit_unix_ms_ = SystemClock().UnixMillis();
  StatusOr<v1::CreateJobResponse> created = Create();
  if (!created.ok()) return ReportCreateError(created.status());
  OnJob(created->job());
  if (!plan_shown_ && created->has_plan()) {
    plan_shown_ = true;
    progress_.SetTotals(created->plan().steps(), loaded_.spec.train().epochs());
    terminal_.Print(PlanBlock(loaded_.spec, created->plan(), 0));
  }
  for (; early_interrupts_ > 0; --early_interrupts_) Interrupt();
  const Status followed = Follow();
  terminal_.ClearStatus();
  if (!followed.ok()) {
    if (embedded_ != nullptr) {
      facts_.kept = embedded_->KeepAfterStop();
      embedded_->Stop(true);
      fmt::print(stderr, "logs and records kept in {}\n", facts_.kept);
    }
    fmt::print(stderr, "tutti: {}\n", Message(followed));
    return followed.code() == absl::StatusCode::kUnavailable ? kNoCoordinator : kFailed;
  }
  return Finish();
}

Status Session::Follow() {
  TUTTI_ASSIGN_OR_RETURN(const std::unique_ptr<Follower> follower,
                         Follower::Start(client_, job_.id(), embedded_ != nullptr ? kPatience : Nanos(0)));
  while (!ended()) {
    pollfd fds[] = {{signals_.get(), POLLIN, 0}, {follower->wake_fd(), POLLIN, 0}};
    ::poll(fds, 2, kTurnMs);
    for (int i = TakeInterrupts(); i > 0; --i) Interrupt();
    if (embedded_ != nullptr) TUTTI_RETURN_IF_ERROR(embedded_->Supervise(SystemClock().Monotonic()));
    for (const v1::WatchJobsResponse& event : follower->Take()) OnEvent(event);
    if (ended()) break;
    TUTTI_RETURN_IF_ERROR(follower->status());
    if (kill_at_.count() > 0 && SystemClock().Monotonic() >= kill_at_) {
      terminal_.Print("kill   the job did not end within its grace period\n");
      killed_ = true;
    }
    Redraw();
  }
  facts_.wall_seconds = Seconds(SystemClock().Monotonic() - submit_);
  return OkStatus();
}

int Session::TakeInterrupts() {
  int count = 0;
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) count += info.ssi_signo != SIGCHLD ? 1 : 0;
  return count;
}

// Once: checkpoint, then cancel. Twice: kill. Of a job that is not ours: stop following.
void Session::Interrupt() {
  ++interrupts_;
  if (embedded_ == nullptr) {
    terminal_.Print(fmt::format("the job goes on; follow it with: tutti logs -f {}, cancel it with: tutti cancel {}\n",
                                job_.id(), job_.id()));
    detached_ = true;
    return;
  }
  if (interrupts_ > 1) {
    killed_ = true;
    return;
  }
  terminal_.Print("stop   the job writes a checkpoint, then it is cancelled; once more to kill it now\n");
  kill_at_ = SystemClock().Monotonic() + Millis(loaded_.spec.restart().grace_ms()) + kEndAfterGrace;
  cancelling_ = std::async(std::launch::async, [client = client_, id = job_.id()] {
    // Told again while the coordinator is being restarted; when that fails for good the deadline above ends it.
    for (int attempt = 0; attempt < kCreateAttempts; ++attempt) {
      if (client->CancelJob(id, false, kCancelDeadlineMs).status().code() != absl::StatusCode::kUnavailable) return;
    }
  });
}

void Session::OnEvent(const v1::WatchJobsResponse& event) {
  switch (event.event_case()) {
    case v1::WatchJobsResponse::kSnapshot:
      return OnJob(event.snapshot());
    case v1::WatchJobsResponse::kChanged:
      return OnJob(event.changed());
    case v1::WatchJobsResponse::kStep:
      return OnStep(event.step());
    case v1::WatchJobsResponse::kEvaluation:
      if (event.evaluation().step() > last_eval_step_) {
        last_eval_step_ = event.evaluation().step();
        terminal_.Print(EvalLine(event.evaluation()));
      }
      return;
    case v1::WatchJobsResponse::kCheckpoint:
      return terminal_.Print(CheckpointLine(event.checkpoint(), facts_.working_directory));
    case v1::WatchJobsResponse::kNotice:
      return terminal_.Print(fmt::format("{}   {}\n",
                                         event.notice().level() == v1::NOTICE_LEVEL_WARNING ? "warn" : "note",
                                         Printable(event.notice().message())));
    default:
      return;
  }
}

void Session::OnJob(const v1::Job& job) {
  const std::string waited = job_.status().wait_reason();
  job_ = job;
  const v1::JobStatus& status = job_.status();
  if (status.has_plan()) {
    progress_.SetTotals(status.plan().steps(), job_.spec().train().epochs());
    if (!plan_shown_) terminal_.Print(PlanBlock(job_.spec(), status.plan(), 0));
    plan_shown_ = true;
  }
  for (; failures_shown_ < status.failures_size(); ++failures_shown_) {
    const std::string block = FailureBlock(job_, status.failures(failures_shown_));
    terminal_.Print(block);
    if (Structured(options_)) fmt::print(stderr, "{}", block);
  }
  never_runs_ = embedded_ != nullptr && status.state() == v1::JOB_STATE_PENDING && status.reason() == "NeverFits";
  if (status.state() == v1::JOB_STATE_PENDING && !status.wait_reason().empty() && status.wait_reason() != waited &&
      status.reason() != "NoNodes" && !never_runs_) {
    const bool held = embedded_ != nullptr && status.reason() == "InsufficientSlots";
    terminal_.Print(fmt::format("wait   {}{}\n", Printable(status.wait_reason()),
                                held ? " (another run on this machine holds the cores)" : ""));
  }
}

void Session::OnStep(const v1::StepRecord& step) {
  if (facts_.submit_to_first_step_ms < 0) {
    const int64_t first = job_.status().first_step_unix_ms();
    facts_.submit_to_first_step_ms =
        static_cast<double>((first > 0 ? first : SystemClock().UnixMillis()) - submit_unix_ms_);
  }
  if (!run_shown_) {
    run_shown_ = true;
    terminal_.Print(RunLine(job_, facts_.submit_to_first_step_ms));
  }
  progress_.Add(step);
  facts_.last_step = step;
  if (!terminal_.interactive() && progress_.PlainLineDue(job_.spec().train().log_every_steps()))
    terminal_.Print(PlainStepLine(progress_) + "\n");
}

void Session::Redraw() {
  if (!terminal_.interactive() || !progress_.last()) return;
  const size_t width = terminal_.width();
  terminal_.ShowStatus({BarLine(progress_, width), TimeLine(*progress_.last(), width)});
}

void Session::VerifyLedger() {
  if (job_.status().latest_checkpoint().empty()) return;
  const StatusOr<VerifyReport> report = VerifyRun(job_.status().latest_checkpoint(), job_.id());
  RunFacts::Ledger ledger;
  if (!report.ok()) {
    ledger.problem = Message(report.status());
  } else {
    ledger.epochs = report->ledger.epochs;
    ledger.exact = report->exact;
    if (!report->problems.empty()) ledger.problem = report->problems.front();
  }
  facts_.ledger = ledger;
}

int Session::Finish() {
  const v1::JobState state = job_.status().state();
  facts_.samples_per_second = progress_.samples_per_second();
  if (embedded_ != nullptr) {
    const bool failed = state == v1::JOB_STATE_FAILED;
    if (failed) facts_.kept = embedded_->KeepAfterStop();
    embedded_->Stop(killed_);
  }
  if (cancelling_.valid()) cancelling_.wait();
  if (detached_) return kInterrupted;
  if (embedded_ != nullptr && !never_runs_) VerifyLedger();
  if (never_runs_) {
    fmt::print(stderr, "{}\n{}", Printable(job_.status().wait_reason()), WhatWouldFit());
  } else {
    terminal_.Print(DoneBlock(job_, facts_));
  }
  if (Structured(options_)) {
    const std::string result = ResultJson(job_, facts_);
    fmt::print("{}{}", options_.format() == Format::kJson ? result : JsonToYaml(result),
               options_.format() == Format::kJson ? "\n" : "");
  }
  if (never_runs_) return kNeverRuns;
  if (interrupts_ > 0 && state != v1::JOB_STATE_SUCCEEDED) return kInterrupted;
  const bool inexact = facts_.ledger && !facts_.ledger->exact;
  if (inexact) fmt::print(stderr, "tutti: the ledger does not hold: {}\n", facts_.ledger->problem);
  if (state == v1::JOB_STATE_SUCCEEDED) return inexact ? kFailed : kSucceeded;
  return state == v1::JOB_STATE_CANCELLED ? kCancelled : kFailed;
}

}  // namespace tutti::cli
