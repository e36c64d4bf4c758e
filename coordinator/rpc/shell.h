// The shell around the core: feeds it events, commits its rows, then performs its actions. Everything behind `strand`
// runs on one thread. Disk full: what is not committed is withheld and tried again at each tick; requests that wait for
// it are refused meanwhile. Any other failure of the journal ends the process: what is on disk is not known then.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/clock.h"
#include "coordinator/core/core.h"
#include "coordinator/rpc/strand.h"
#include "coordinator/store/journal.h"
#include "coordinator/store/series.h"

namespace tutti::coordinator {

// An agent's stream. Called on the strand.
class AgentSink {
 public:
  virtual ~AgentSink() = default;
  virtual void Send(v1::ConnectResponse message) = 0;
  virtual void Close(const Status& status) = 0;
};

// Whoever follows changes: told on the strand, after each batch that changed something and at each tick.
class Follower {
 public:
  virtual ~Follower() = default;
  virtual void OnRecord(const std::string& job_id, const v1::SeriesRecord& record) = 0;
  virtual void OnBatch(const State& state) = 0;
  virtual void OnLog(const v1::LogChunk& chunk) = 0;
  virtual void Close(const Status& status) = 0;
};

class Shell {
 public:
  // `journal` and `series` must outlive the shell. Takes the next term at once: fails when it cannot be persisted.
  static StatusOr<std::unique_ptr<Shell>> Create(const Options& options, Journal* journal, SeriesStore* series,
                                                 const Clock* clock);
  ~Shell();

  // From any thread. False: too much is queued, UNAVAILABLE.
  bool TryPost(Strand::Task task) { return strand_->TryPost(std::move(task)); }
  void Post(Strand::Task task) { strand_->Post(std::move(task)); }

  // The rest only on the strand.
  const State& state() const { return state_; }
  const SeriesStore& series() const { return *series_; }  // Read from any thread
  const Clock& clock() const { return *clock_; }
  void Apply(decltype(Event::what) what);
  void Create(CreateJob event, std::function<void(const Reply&)> done);
  void Cancel(CancelJob event, std::function<void(const Reply&)> done);

  uint64_t AddAgent(AgentSink* sink);  // the number of its stream
  void RemoveAgent(uint64_t stream);
  AgentSink* FindAgent(uint64_t stream) const;
  void AddFollower(Follower* follower) { followers_.insert(follower); }
  void RemoveFollower(Follower* follower) { followers_.erase(follower); }
  void RouteLog(const v1::LogChunk& chunk);
  std::string NewRequestId() { return std::to_string(++next_request_); }

  // Ends every stream with UNAVAILABLE; those that come later too.
  void CloseAll();
  bool closing() const { return closing_; }

 private:
  Shell(State state, Journal* journal, SeriesStore* series, const Clock* clock);
  void AfterBatch(size_t tasks);
  void Take(std::vector<Action> actions);
  void Commit();
  void RefuseWaiting(const Status& status);
  void Perform();
  bool PerformOne(Action& action);  // false: try again later

  State state_;
  Journal* const journal_;
  SeriesStore* const series_;
  const Clock* const clock_;
  std::map<std::string, v1::JobRow> job_rows_;  // not committed yet
  std::map<std::string, v1::NodeRow> node_rows_;
  bool uncommitted_ = false;
  bool disk_full_ = false;
  std::deque<Action> actions_;  // not performed yet
  Nanos last_tick_{0};
  std::map<uint64_t, std::function<void(const Reply&)>> waiting_;
  std::map<uint64_t, AgentSink*> agents_;
  std::set<Follower*> followers_;
  uint64_t next_request_ = 0;
  uint64_t next_stream_ = 0;
  bool closing_ = false;
  std::unique_ptr<Strand> strand_;  // last: its thread ends first
};

}  // namespace tutti::coordinator
