#include "worker/shim/recover.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <map>

#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "worker/launch/layout.h"
#include "worker/shim/cgroup.h"

namespace tutti::worker {
namespace {

constexpr int kExitCodeNotStarted = 127;
constexpr int kExitCodeUnknown = 255;

// Kills the rank's group if the process that the shim started is still the one of that number. True: it was alive.
bool KillLeftover(const std::string& pid_path) {
  const auto text = ReadFile(pid_path, 256);
  int pid = 0;
  long long ticks = 0;
  if (!text.ok() || std::sscanf(text->c_str(), "%d %lld", &pid, &ticks) != 2) return false;
  const auto now = ProcessStartTicks(pid);
  if (!now.ok() || *now != ticks) return false;
  ::kill(-pid, SIGKILL);
  return true;
}

v1::RankStatus LostStatus(const std::string& directory, const v1::RankStatus& known) {
  v1::RankStatus status = known;
  const bool started = FileExists(JoinPath(directory, RankPidFile(status.rank())));
  const bool killed = KillLeftover(JoinPath(directory, RankPidFile(status.rank())));
  status.set_state(v1::RANK_STATE_LOST);
  status.set_message(!started ? "was not started: its agent or shim ended first"
                     : killed ? "its shim ended unexpectedly: the rank was killed"
                              : "its shim ended unexpectedly: how the rank ended is not known");
  // Never 0: that would be a rank that ended well.
  if (killed) status.set_signal(SIGKILL);
  if (!killed) status.set_exit_code(started ? kExitCodeUnknown : kExitCodeNotStarted);
  status.set_retryable(true);
  status.set_end_unix_ms(SystemClock().UnixMillis());
  return status;
}

}  // namespace

StatusOr<v1::ShimState> StateFromDisk(const std::string& run_directory, const v1::StartJob& start,
                                      const std::string& node) {
  std::map<int32_t, v1::RankStatus> ranks;
  for (const v1::NodeShare& share : start.assignment().nodes()) {
    if (share.node() != node) continue;
    for (int i = 0; i < share.slots_size(); ++i) {
      v1::RankStatus& status = ranks[share.first_rank() + i];
      status.set_rank(share.first_rank() + i);
      status.set_node(node);
      status.set_generation(start.assignment().generation());
      status.set_state(v1::RANK_STATE_ASSIGNED);
    }
  }
  v1::ShimState state;
  const std::string path = JoinPath(run_directory, kEventsFile);
  if (FileExists(path)) {
    TUTTI_ASSIGN_OR_RETURN(EventReader reader, EventReader::Open(path));
    while (true) {
      TUTTI_ASSIGN_OR_RETURN(const auto event, reader.Next());
      if (!event) break;
      state.set_last_sequence(event->sequence());
      if (event->has_exited()) ranks[event->exited().rank()] = event->exited();
      if (event->all_exited()) state.set_all_exited(true);
      if (event->has_rank_event() && event->rank_event().has_ready()) {
        v1::RankReadyReport* report = state.add_ready();
        report->set_rank(event->rank_event().rank());
        report->set_blob(event->rank_event().ready().peer_blob());
      }
    }
  }
  for (const auto& [rank, status] : ranks) *state.add_ranks() = status;
  state.set_intent(v1::INTENT_RUN);
  return state;
}

Status RecoverRun(const std::string& run_directory, const v1::StartJob& start, const std::string& node) {
  TUTTI_ASSIGN_OR_RETURN(EventLog log, EventLog::Open(JoinPath(run_directory, kEventsFile)));
  TUTTI_ASSIGN_OR_RETURN(const v1::ShimState state, StateFromDisk(run_directory, start, node));
  for (const v1::RankStatus& rank : state.ranks()) {
    RankCgroup::RemoveLeftover(
        RankCgroup::Name(start.assignment().job_id(), start.assignment().generation(), rank.rank()));
  }
  if (state.all_exited()) return OkStatus();
  for (const v1::RankStatus& rank : state.ranks()) {
    if (rank.state() == v1::RANK_STATE_EXITED || rank.state() == v1::RANK_STATE_LOST) continue;
    v1::ShimEvent event;
    *event.mutable_exited() = LostStatus(run_directory, rank);
    LogWarning("{}: rank {} {}", ToString(KeyOf(start.assignment())), rank.rank(), event.exited().message());
    log.Append(std::move(event));
  }
  v1::ShimEvent end;
  end.set_all_exited(true);
  log.Append(std::move(end));
  TUTTI_RETURN_IF_ERROR(log.Flush());
  return log.Sync();
}

}  // namespace tutti::worker
