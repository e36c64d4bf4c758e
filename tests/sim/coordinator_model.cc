// The shell of the simulated coordinator: commits rows, performs actions, dies at any of these points.
#include <fmt/core.h>

#include "base/check.h"
#include "tests/sim/world.h"

namespace tutti::coordinator::sim {
namespace {

Options MakeOptions(const Mutations& mutations) {
  Options options;
  options.lease = std::chrono::seconds(3);
  options.victim_window = std::chrono::milliseconds(500);
  options.stall_floor = std::chrono::seconds(8);
  options.phase_limit = std::chrono::seconds(15);
  options.unreachable_after = std::chrono::seconds(10);
  options.max_backoff = std::chrono::seconds(2);
  options.mutations = mutations;
  return options;
}

}  // namespace

void World::StartCoordinator() {
  Rows rows = *journal_->Load();
  state_ = LoadState(MakeOptions(options_.mutations), rows.meta, rows.jobs, rows.nodes);
  ++incarnation_;
  const std::vector<Action> actions = BeginTerm(*state_);
  Trace(fmt::format("coordinator term {}", state_->meta.term()));
  Perform(actions);  // may kill it again: there is no state any more then
}

void World::CrashCoordinator() {
  if (!state_) return;
  Trace("coordinator killed");
  ++stats_.restarts;
  state_.reset();
  std::vector<std::string> connected;
  for (const auto& [stream, node] : streams_) connected.push_back(node);
  for (const std::string& node : connected) Disconnect(node);
  At(Delay(50, 4000), [this] {
    StartCoordinator();
    for (const auto& [name, agent] : agents_) At(Delay(20, 1000), [this, name = name] { Connect(name); });
  });
}

void World::Feed(decltype(Event::what) what) {
  if (!state_) return;
  Perform(Step(*state_, Event{.unix_ms = now_.count() / 1'000'000, .what = std::move(what)}, now_));
}

void World::Tick() {
  At(Millis(100), [this] { Tick(); });
  Feed(tutti::coordinator::Tick{});
}

void World::Perform(const std::vector<Action>& actions) {
  const uint64_t incarnation = incarnation_;
  for (const Action& action : actions) {
    if (const Persist* persist = std::get_if<Persist>(&action)) {
      const bool dies = faults_on_ && incarnation_ > 0 && Chance(0.003);
      if (dies && Chance(0.5)) return CrashCoordinator();  // the commit failed: nothing of it may be seen
      TUTTI_CHECK_OK(journal_->Commit({persist->meta, persist->jobs, persist->nodes}));
      durable_ = *journal_->Load();
      for (const v1::JobRow& row : persist->jobs) {
        const v1::JobStatus& status = row.job().status();
        Trace(fmt::format("durable {} {} g{} step {} durable {} failures {} {}", row.job().id(),
                          v1::JobState_Name(status.state()), status.generation(), status.completed_step(),
                          status.durable_step(), status.failures_size(), status.message()));
      }
      if (dies) return CrashCoordinator();  // committed, and nobody hears of it
    } else if (const SendToAgent* send = std::get_if<SendToAgent>(&action)) {
      if (send->message.has_start()) starts_.push_back(send->message.start());
      for (const v1::StartJob& start : send->message.welcome().desired()) starts_.push_back(start);
      ToAgent(send->stream, send->message);
    } else if (const CloseStream* close = std::get_if<CloseStream>(&action)) {
      if (const auto it = streams_.find(close->stream); it != streams_.end()) {
        const std::string node = it->second;
        Disconnect(node);
        At(Delay(50, 1000), [this, node] { Connect(node); });
      }
    } else if (const Reply* reply = std::get_if<Reply>(&action)) {
      const auto it = submits_.find(reply->request);
      if (it == submits_.end()) continue;
      TUTTI_CHECK(reply->status.ok(), "{}", reply->status.ToString());
      acknowledged_.insert(reply->job.id());
      answered_.insert(it->second);
    } else if (const Record* record = std::get_if<Record>(&action)) {
      series_[record->job_id].push_back(record->record);
    }
    if (!state_ || incarnation != incarnation_) return;
  }
}

}  // namespace tutti::coordinator::sim
