// Failures: which end was the cause, what follows from it.
#include <fmt/core.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "coordinator/core/stepper.h"

namespace tutti::coordinator {
namespace {

constexpr int64_t kFailureGraceMs = 3000;  // survivors of a failed generation have nothing to save
constexpr int kFailuresKept = 100;

std::string_view SignalName(int signal) {
  switch (signal) {
    case 4:
      return " (illegal instruction)";
    case 6:
      return " (abort)";
    case 7:
      return " (bus error)";
    case 8:
      return " (arithmetic error)";
    case 11:
      return " (segmentation fault)";
    case 15:
      return " (termination)";
    default:
      return "";
  }
}

bool IsCause(const v1::RankStatus& rank) { return !rank.victim() && !rank.stopped_by_us(); }

std::string TryHint(const JobEntry& entry, const v1::Failure& failure) {
  const std::string logs = failure.rank() >= 0 ? fmt::format("tutti logs {} --rank {} --generation {}",
                                                             entry.job().id(), failure.rank(), failure.generation())
                                               : fmt::format("tutti describe job {}", entry.job().id());
  if (failure.signal() == 9) {
    return fmt::format("if it was memory: a smaller batch.micro (now {}) lowers it; {}",
                       entry.job().spec().batch().micro(), logs);
  }
  if (failure.kind() == v1::FAILURE_KIND_NODE) return fmt::format("look at node {}; {}", failure.node(), logs);
  return logs;
}

// Restarts are counted apart: what the job's own ranks did, and what nodes did to it.
struct Budget {
  bool node = false;
  std::string_view name;
  int32_t allowed = 0;
  int32_t used = 0;
};

Budget BudgetOf(const v1::JobStatus& status, const v1::RestartPolicy& policy, const v1::Failure& failure) {
  if (failure.kind() == v1::FAILURE_KIND_NODE)
    return {true, "node-failure", policy.max_node_failures(), status.node_failures()};
  return {false, "user-failure", policy.max_user_failures(), status.user_failures()};
}

// Empty where a restart is due. What nodes do to a job is bounded by their own budget alone: neither exit codes nor
// attempts without progress speak of it.
std::string WhyNoRestart(const JobEntry& entry, const v1::Failure& failure, const Budget& budget, int idle_attempts,
                         std::string* reason) {
  const auto& codes = entry.job().spec().restart().no_retry_exit_codes();
  const bool by_code =
      failure.exit_code() != 0 && std::find(codes.begin(), codes.end(), failure.exit_code()) != codes.end();
  if (!budget.node && by_code)
    return fmt::format("no restart: exit code {} says that it would fail again", failure.exit_code());
  if (!budget.node && entry.row.no_retry()) return "no restart: the rank says that it would fail again";
  if (budget.used >= budget.allowed) {
    return fmt::format("no restart: {} of {} {} restarts used", budget.used, budget.allowed, budget.name);
  }
  if (budget.node || entry.row.idle_failures() < idle_attempts) return "";
  *reason = "NoProgress";
  return fmt::format("no restart: no progress in {} attempts", entry.row.idle_failures());
}

std::string_view ReasonWord(v1::FailureKind kind) {
  switch (kind) {
    case v1::FAILURE_KIND_NODE:
      return "NodeLost";
    case v1::FAILURE_KIND_STALL:
      return "Stalled";
    default:
      return "RankFailed";
  }
}

}  // namespace

std::string DescribeEnd(const v1::RankStatus& rank) {
  std::string how;
  if (rank.signal() == 9) {
    how = rank.message().empty() ? "killed by signal 9, cause unknown, possibly memory" : "killed by signal 9";
  } else if (rank.signal() != 0) {
    how = fmt::format("killed by signal {}{}", rank.signal(), SignalName(rank.signal()));
  } else if (rank.exit_code() != 0) {
    how = fmt::format("exit code {}", rank.exit_code());
  } else if (rank.state() == v1::RANK_STATE_EXITED && rank.message().empty()) {
    how = "exit code 0 before the last step";
  }
  if (rank.message().empty()) return how;
  return how.empty() ? rank.message() : fmt::format("{}: {}", how, rank.message());
}

// `rank` ended badly by itself, or said that it will.
void Stepper::BadEnd(JobEntry& entry, int32_t rank) {
  const auto& known = entry.row.bad_ends();
  if (std::find(known.begin(), known.end(), rank) == known.end()) entry.row.add_bad_ends(rank);
  MarkJob(entry);
  if (entry.row.final_complete() || entry.status().cancel_requested()) return;
  SetState(entry, v1::JOB_STATE_RECOVERING);
  if (state_.options.mutations.terminal_while_alive) return Finish(entry, v1::JOB_STATE_FAILED, "RankFailed", "");
  if (entry.stopping) return;
  if (!FindRank(entry, rank)->victim()) return StopGeneration(entry, v1::INTENT_UNSPECIFIED, kFailureGraceMs);
  if (entry.victim_deadline.count() == 0) entry.victim_deadline = state_.now + state_.options.victim_window;
}

// A cause that is no rank's own end. The caller settles.
void Stepper::OutsideFailure(JobEntry& entry, v1::Failure failure) {
  bool explained = entry.row.has_outside();
  for (const int32_t rank : entry.row.bad_ends()) explained |= IsCause(*FindRank(entry, rank));
  if (!explained) *entry.row.mutable_outside() = std::move(failure);
  MarkJob(entry);
  if (entry.row.final_complete() || entry.status().cancel_requested()) return;
  SetState(entry, v1::JOB_STATE_RECOVERING);
  if (!entry.stopping) StopGeneration(entry, v1::INTENT_UNSPECIFIED, kFailureGraceMs);
}

void Stepper::StopGeneration(JobEntry& entry, v1::Intent intent, int64_t grace_ms) {
  entry.stopping = intent == v1::INTENT_UNSPECIFIED;
  entry.stop_intent = intent;
  entry.victim_deadline = entry.stop_deadline = Nanos(0);
  for (const v1::Share& share : entry.row.shares()) {
    if (share.ended() || share.generation() > entry.status().generation()) continue;
    SendRevoke(share.node(), entry, entry.status().generation(), intent, grace_ms, false);
  }
}

void Stepper::Settle(JobEntry& entry) {
  if (!IsActive(entry)) return;
  const bool early = state_.options.mutations.restart_before_ended && entry.row.bad_ends_size() > 0;
  for (const v1::Share& share : entry.row.shares()) {
    const bool newest = share.generation() == entry.status().generation();
    if (newest && !share.ended() && !share.lost() && !early) return;
  }
  if (entry.row.final_complete() && !state_.options.mutations.forget_final) {
    Finish(entry, v1::JOB_STATE_SUCCEEDED, "Completed", "");
  } else if (entry.status().cancel_requested()) {
    Finish(entry, v1::JOB_STATE_CANCELLED, "Cancelled",
           fmt::format("cancelled after step {}, durable {}", WithCommas(entry.status().completed_step()),
                       WithCommas(entry.status().durable_step())));
  } else {
    Fail(entry);
  }
}

// Ranks that did not come where the first to end gave up waiting for addresses; empty: that is not what happened.
std::vector<int32_t> Stepper::NeverReady(const JobEntry& entry) {
  const v1::JobStatus& status = entry.status();
  std::vector<int32_t> missing;
  if (entry.peers.empty() || entry.row.bad_ends_size() == 0) return missing;
  if (!status.ranks(entry.row.bad_ends(0)).victim()) return missing;
  for (int32_t rank = 0; rank < status.ranks_size(); ++rank) {
    if (!entry.peers.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

v1::Failure Stepper::ChooseCause(const JobEntry& entry) const {
  const v1::JobStatus& status = entry.status();
  if (entry.row.has_outside()) return entry.row.outside();
  const auto of_rank = [&](int32_t number, std::string cause) {
    const v1::RankStatus& rank = status.ranks(number);
    v1::Failure failure;
    failure.set_rank(number);
    failure.set_node(rank.node());
    failure.set_kind(v1::FAILURE_KIND_USER);
    failure.set_cause(std::move(cause));
    failure.set_exit_code(rank.exit_code());
    failure.set_signal(rank.signal());
    failure.set_where(rank.where());
    *failure.mutable_last_lines() = rank.last_lines();
    return failure;
  };
  for (const int32_t number : entry.row.bad_ends()) {
    if (!IsCause(status.ranks(number)) && !state_.options.mutations.blame_first_end) continue;
    return of_rank(number, DescribeEnd(status.ranks(number)));
  }
  if (const int32_t blamed = entry.row.blamed_rank() - 1; blamed >= 0 && blamed < status.ranks_size()) {
    v1::Failure failure = of_rank(blamed, "made no progress: other ranks waited for it in vain");
    failure.set_kind(v1::FAILURE_KIND_STALL);
    for (const int32_t number : entry.row.bad_ends()) {
      if (!status.ranks(number).victim()) continue;
      failure.set_where(status.ranks(number).where());
      break;
    }
    return failure;
  }
  if (const std::vector<int32_t> missing = NeverReady(entry); !missing.empty()) {
    std::string names;
    for (const int32_t number : missing) {
      names += fmt::format("{}rank {} on {}", names.empty() ? "" : ", ", number, status.ranks(number).node());
    }
    v1::Failure failure =
        of_rank(missing[0],
                fmt::format("did not start in time: expected {} ranks, arrived {}, missing {}; {}", status.ranks_size(),
                            entry.peers.size(), names, status.ranks(entry.row.bad_ends(0)).message()));
    failure.set_kind(v1::FAILURE_KIND_STALL);
    return failure;
  }
  v1::Failure failure;
  failure.set_rank(-1);
  failure.set_kind(v1::FAILURE_KIND_NODE);
  if (entry.row.bad_ends_size() > 0) {
    const v1::RankStatus& first = status.ranks(entry.row.bad_ends(0));
    failure.set_node(first.node());
    failure.set_cause(first.victim() ? fmt::format("rank {} lost its peers ({}); none of them says why", first.rank(),
                                                   first.message())
                                     : fmt::format("the ranks on node {} were stopped there", first.node()));
  } else {
    failure.set_cause("its ranks left before the last step without an error");
  }
  return failure;
}

// No rank of the newest generation is alive, and it did not end well: a restart, or the end of the job.
void Stepper::Fail(JobEntry& entry) {
  v1::JobStatus* status = StatusOf(entry);
  v1::Failure failure = ChooseCause(entry);
  failure.set_generation(status->generation());
  failure.set_completed_step(status->completed_step());
  failure.set_durable_step(status->durable_step());
  failure.set_step(status->completed_step() + 1);
  failure.set_unix_ms(unix_ms_);
  for (const v1::RankStatus& rank : status->ranks()) {
    const bool bad = rank.victim() || rank.stopped_by_us() || rank.state() == v1::RANK_STATE_LOST;
    if (rank.rank() != failure.rank() && bad) failure.add_victims(rank.rank());
  }
  failure.set_try_hint(TryHint(entry, failure));

  const bool progress =
      entry.row.best_step() > entry.row.start_best_step() || status->durable_step() > entry.row.start_durable_step();
  entry.row.set_idle_failures(progress ? 0 : entry.row.idle_failures() + 1);
  const v1::RestartPolicy& policy = entry.job().spec().restart();
  const Budget budget = BudgetOf(*status, policy, failure);
  std::string reason(ReasonWord(failure.kind()));
  const std::string end = WhyNoRestart(entry, failure, budget, state_.options.idle_attempts, &reason);
  Nanos backoff{0};
  if (end.empty()) {
    if (!progress) {
      backoff = Millis(policy.backoff_ms()) * (int64_t{1} << std::min(entry.row.idle_failures() - 1, 20));
      backoff = std::min(backoff, state_.options.max_backoff);
    }
    budget.node ? status->set_node_failures(budget.used + 1) : status->set_user_failures(budget.used + 1);
    failure.set_next(fmt::format(
        "generation {} from step {}{} ({} of {} {} restarts used)", status->generation() + 1,
        WithCommas(status->durable_step()),
        backoff.count() > 0 ? fmt::format(" in {:.1f} s", std::chrono::duration<double>(backoff).count()) : "",
        budget.used + 1, budget.allowed, budget.name));
  } else {
    failure.set_next(end);
  }
  const std::string message = failure.rank() >= 0
                                  ? fmt::format("rank {} on {}: {}", failure.rank(), failure.node(), failure.cause())
                                  : failure.cause();
  if (status->failures_size() >= kFailuresKept) status->mutable_failures()->DeleteSubrange(0, 1);
  *status->add_failures() = std::move(failure);

  if (!end.empty()) return Finish(entry, v1::JOB_STATE_FAILED, reason, fmt::format("{}; {}", message, end));
  entry.row.set_concluded_generation(status->generation());
  status->clear_last_step();
  entry.not_before = state_.now + backoff;
  entry.stopping = false;
  SetState(entry, v1::JOB_STATE_RECOVERING);
  status->set_reason(reason);
  status->set_message(message);
  MarkJob(entry);
  Forget(entry);
  state_.schedule_due = true;
}

}  // namespace tutti::coordinator
