// Follows one job from submission to its end: prints what happens, answers signals, ends with the result.
#pragma once

#include <future>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "cli/client.h"
#include "cli/embedded.h"
#include "cli/follow.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/terminal.h"

namespace tutti::cli {

class Session {
 public:
  // `embedded` null: the job is a cluster's, and an interrupt only stops following it. `signals` is a signalfd.
  Session(const Options& options, const LoadedJob& job, Client* client, Embedded* embedded, UniqueFd signals);

  // Submits, follows, prints; returns the exit code.
  int Run();

 private:
  StatusOr<v1::CreateJobResponse> Create();
  Status Follow();
  int TakeInterrupts();  // signals since the last call that ask to end
  void Interrupt();
  void OnEvent(const v1::WatchJobsResponse& event);
  void OnJob(const v1::Job& job);
  void OnStep(const v1::StepRecord& step);
  void Redraw();
  void VerifyLedger();
  int Finish();
  int ReportCreateError(const Status& status);
  std::string WhatWouldFit() const;  // empty: memory of this machine is not the reason
  bool ended() const { return IsTerminal(job_.status().state()) || killed_ || detached_ || never_runs_; }

  const Options& options_;
  const LoadedJob& loaded_;
  Client* const client_;
  Embedded* const embedded_;
  UniqueFd signals_;
  Terminal terminal_;
  ProgressTracker progress_;
  RunFacts facts_;
  v1::Job job_;
  int64_t submit_unix_ms_ = 0;
  Nanos submit_{0};
  Nanos kill_at_{0};          // 0: no interrupt yet
  int early_interrupts_ = 0;  // before there was a job to cancel
  int interrupts_ = 0;
  int failures_shown_ = 0;
  bool plan_shown_ = false, run_shown_ = false;
  bool killed_ = false, detached_ = false, never_runs_ = false;
  int64_t last_eval_step_ = -1;
  std::future<void> cancelling_;
};

// Blocks SIGINT, SIGTERM, SIGHUP and SIGCHLD, ignores SIGPIPE. Before any thread starts.
StatusOr<UniqueFd> ListenToSignals();

}  // namespace tutti::cli
