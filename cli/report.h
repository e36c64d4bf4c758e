// The blocks that a run prints, and the one JSON object that it ends with, from the messages alone. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tutti/v1/cluster.pb.h"
#include "tutti/v1/job.pb.h"
#include "tutti/v1/plan.pb.h"

namespace tutti::cli {

// What the command line itself found out.
struct RunFacts {
  std::string file;  // of the job, for "how to run it again"
  double wall_seconds = 0;
  double submit_to_first_step_ms = -1;  // -1: no step was seen
  double samples_per_second = 0;        // seen while following
  std::optional<v1::StepRecord> last_step;
  struct Ledger {
    int64_t epochs = 0;
    bool exact = false;
    std::string problem;  // first one; empty with exact
  };
  std::optional<Ledger> ledger;   // absent: there was no checkpoint to verify
  std::string kept;               // folder with logs that stays; empty: none
  std::string working_directory;  // paths below it are shown relative to it
};

// "plan   name: 421,642 parameters, ..." with three lines; `slot_bytes` 0: not known.
std::string PlanBlock(const v1::JobSpec& spec, const v1::TrainPlan& plan, int64_t slot_bytes);
// "       decay     0.01 on 4 tensors (421,376 parameters), none on 6 (266: biases and normalisation)";
// empty where nothing is decayed.
std::string DecayLine(const v1::TrainPlan& plan);
// "run    job 01JD3... on 1 node: rank 0 cores 0, rank 1 cores 1 · first step after 180 ms". Once a rank has compiled, a
// second line has its exact bytes: what PlanBlock says before is a bound.
std::string RunLine(const v1::Job& job, double first_step_ms);
std::string EvalLine(const v1::EvalRecord& evaluation);
std::string CheckpointLine(const v1::CheckpointRecord& checkpoint, const std::string& working_directory);
// RECOVERING or FAILED, cause, victims, last lines, next, try.
std::string FailureBlock(const v1::Job& job, const v1::Failure& failure);
// "done   SUCCEEDED in 47.9 s ..." with checkpoint and plan against measurement; also for FAILED and CANCELLED.
std::string DoneBlock(const v1::Job& job, const RunFacts& facts);
// One line, the field names of docs: job, name, state, attempts, ... Numbers that are not finite are null.
std::string ResultJson(const v1::Job& job, const RunFacts& facts);

std::string StateWord(v1::JobState state);  // "SUCCEEDED"
bool IsTerminal(v1::JobState state);

}  // namespace tutti::cli
