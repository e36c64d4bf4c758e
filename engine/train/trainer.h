// The training of one rank: data, programs, exchange, footer, update, evaluation, checkpoints, for one generation.
//
//   TUTTI_ASSIGN_OR_RETURN(auto trainer, Trainer::Create(config));       // reads data, compiles, lays out one arena
//   TUTTI_ASSIGN_OR_RETURN(v1::RankResult result, trainer->Run(communicator, hooks));
//
// N trainers live in one process (tests: one thread each, engine/comm's local backend). A trainer is used by one
// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "engine/comm/communicator.h"
#include "tutti/v1/plan.pb.h"
#include "tutti/v1/rank.pb.h"

namespace tutti {

// What people and agents want of a running rank. Any thread may raise it at any time; ranks agree on it in the footer
// (maximum), so one rank that heard is enough. It never falls.
class ControlBox {
 public:
  void Raise(v1::Intent intent);
  void RequestCheckpoint() { checkpoints_.fetch_add(1); }
  v1::Intent intent() const { return static_cast<v1::Intent>(intent_.load()); }
  int64_t checkpoint_requests() const { return checkpoints_.load(); }

 private:
  std::atomic<int> intent_{v1::INTENT_RUN};
  std::atomic<int64_t> checkpoints_{0};
};

struct TrainerHooks {
  std::function<void(v1::RankEvent)> emit;  // called by the training thread; generation and rank are filled in
  const ControlBox* control = nullptr;      // null: run to the end
  const Clock* clock = nullptr;             // null: the system's
};

class Trainer {
 public:
  virtual ~Trainer() = default;
  // `config` is taken as validated. Errors: INVALID_ARGUMENT (model, data: the job is wrong), NOT_FOUND and DATA_LOSS
  // (data files), RESOURCE_EXHAUSTED (memory).
  static StatusOr<std::unique_ptr<Trainer>> Create(const v1::RankConfig& config);

  virtual const v1::TrainPlan& plan() const = 0;  // exact bytes
  // From the checkpoint that the policy names (or from scratch) to the last step, a yield or a cancel. Every outcome
  // that is OK has committed a final checkpoint. Errors of the communicator are returned as they are (caller: this rank
  // is a victim); on an error of its own the trainer calls communicator.Abort first, so that peers end at once.
  virtual StatusOr<v1::RankResult> Run(Communicator& communicator, const TrainerHooks& hooks) = 0;
  // Where Run was when it failed: "all-reduce #31 of step 10,412", and the step in progress.
  virtual std::string where() const = 0;
  virtual int64_t step() const = 0;
  // True when Run's error came out of a collective: a peer's fault, not ours.
  virtual bool failed_in_collective() const = 0;
};

// The plan of tutti-rank --dry: compiles the job for this machine without reading the data set or allocating the arena.
StatusOr<v1::TrainPlan> ExactPlan(const v1::RankConfig& config);

}  // namespace tutti
