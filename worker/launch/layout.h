// What an agent keeps on disk, and under which names. One folder per run, where a run is one generation of a job on
// this node:
//
//   <state>/jobs/<job>/<generation>/
//     record.pb     StartJob: what was asked for; there before anything is started
//     shim.lock     flock held from before the shim is started until it has ended: free means that no shim lives
//     shim.sock     where the shim listens
//     shim.log      the shim's own lines
//     events.bin    ShimEvent frames, sequence 1, 2, ... (worker/shim/event_log.h)
//     rank-N.log    output of rank N
//     rank-N.pid    "PID START_TICKS" while rank N may be alive
//     exit-N.pb     RankStatus of rank N once it ended
//     forgotten     the coordinator keeps the outcome: only logs are of interest now
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tutti/v1/agent.pb.h"
#include "worker/agent/run_key.h"

namespace tutti::worker {

inline constexpr char kRecordFile[] = "record.pb";
inline constexpr char kShimLockFile[] = "shim.lock";
inline constexpr char kShimSocketFile[] = "shim.sock";
inline constexpr char kShimLogFile[] = "shim.log";
inline constexpr char kEventsFile[] = "events.bin";
inline constexpr char kForgottenFile[] = "forgotten";
std::string RankLogFile(int32_t rank);  // "rank-3.log"
std::string RankPidFile(int32_t rank);
std::string RankExitFile(int32_t rank);

std::string JobsDirectory(const std::string& state_directory);
std::string RunDirectory(const std::string& state_directory, const RunKey& key);
// Relative to JobsDirectory, for OpenBeneath. INVALID_ARGUMENT for a bad job id, generation or rank.
StatusOr<std::string> RankLogPath(const RunKey& key, int32_t rank);

// Replaces a file at once and without fsync: whole in the eyes of every process, whoever of us is killed. What it says
// (pids, exit codes, records of runs) is about processes, which a power loss ends as well.
Status ReplaceFile(const std::string& path, std::string_view content, int mode = 0600);

// Makes the run's folder with its record.
Status WriteRecord(const std::string& run_directory, const v1::StartJob& start);
StatusOr<v1::StartJob> ReadRecord(const std::string& run_directory);
Status MarkForgotten(const std::string& run_directory);

// Every run that has a record and is not forgotten, in key order. A folder whose record is damaged is left alone and
// described in
// `*problems`.
StatusOr<std::vector<v1::StartJob>> ListRuns(const std::string& state_directory, std::vector<std::string>* problems);

// Removes the oldest jobs all of whose runs are forgotten, so that at most `keep` of those stay.
Status SweepForgotten(const std::string& state_directory, size_t keep);

}  // namespace tutti::worker
