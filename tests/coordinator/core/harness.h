// Drives the core by hand: feeds events, remembers what it did.
#pragma once

#include <fmt/core.h>

#include <string>
#include <vector>

#include "coordinator/core/core.h"

namespace tutti::coordinator {

class Harness {
 public:
  explicit Harness(Options options = {}) : state(LoadState(options, {}, {}, {})) { Keep(BeginTerm(state)); }

  // The coordinator is killed and started again on what it persisted.
  void Restart() {
    std::vector<v1::JobRow> job_rows;
    std::vector<v1::NodeRow> node_rows;
    for (auto& [id, row] : jobs) job_rows.push_back(row);
    for (auto& [name, row] : nodes) node_rows.push_back(row);
    state = LoadState(state.options, meta, job_rows, node_rows);
    Keep(BeginTerm(state));
  }

  void Feed(decltype(Event::what) what) {
    Keep(Step(state, Event{.unix_ms = now.count() / 1'000'000, .what = std::move(what)}, now));
  }

  void Advance(Nanos by, Nanos tick = std::chrono::milliseconds(100)) {
    for (Nanos done{0}; done < by; done += tick) {
      now += tick;
      if (heartbeats) {
        for (const auto& [stream, node] : std::map(state.node_of_stream)) Said(stream, {});
      }
      Feed(Tick{});
    }
  }

  uint64_t Connect(const std::string& node, int slots, const std::vector<v1::RunningJob>& running = {},
                   int64_t seen_term = 0) {
    v1::AgentReport report;
    report.mutable_node()->set_name(node);
    report.set_seen_term(seen_term);
    for (int i = 0; i < slots; ++i) {
      v1::Slot* slot = report.mutable_node()->add_slots();
      slot->set_id(fmt::format("cpu{}", i));
      slot->set_device(v1::DEVICE_KIND_CPU);
      slot->add_cores(i);
    }
    for (const v1::RunningJob& job : running) *report.add_running() = job;
    Feed(AgentConnected{++streams, report});
    return streams;
  }

  std::string Create(const std::string& uid, int64_t ranks, int max_user_failures = 3) {
    CreateJob event;
    event.request = ++requests;
    event.id = fmt::format("JOB{:05}", event.request);
    event.uid = uid;
    event.digest = fmt::format("{}:{}", uid, ranks);
    event.spec.mutable_resources()->set_ranks(ranks);
    event.spec.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
    event.spec.mutable_restart()->set_max_user_failures(max_user_failures);
    event.spec.mutable_restart()->set_max_node_failures(10);
    event.spec.mutable_restart()->set_backoff_ms(1000);
    event.spec.mutable_restart()->set_grace_ms(5000);
    for (const int code : {2, 3}) event.spec.mutable_restart()->add_no_retry_exit_codes(code);
    event.plan.set_steps(100);
    event.has_plan = true;
    Feed(event);
    return replies.back().job.id();
  }

  void Said(uint64_t stream, v1::ConnectRequest message) {
    if (message.message_case() == v1::ConnectRequest::MESSAGE_NOT_SET) message.mutable_heartbeat();
    Feed(AgentSaid{stream, std::move(message)});
  }
  v1::RankEvent Event_(int64_t generation, int32_t rank) {
    v1::RankEvent event;
    event.set_generation(generation);
    event.set_rank(rank);
    return event;
  }
  void Rank(uint64_t stream, const std::string& job, const v1::RankEvent& event) {
    v1::ConnectRequest message;
    message.mutable_event()->set_job_id(job);
    message.mutable_event()->set_sequence(++sequence);
    *message.mutable_event()->mutable_event() = event;
    Said(stream, message);
  }
  void Started(uint64_t stream, const std::string& job, int64_t generation, int64_t resumed = 0) {
    v1::RankEvent event = Event_(generation, 0);
    event.mutable_started()->set_resumed_step(resumed);
    Rank(stream, job, event);
  }
  void TrainStep(uint64_t stream, const std::string& job, int64_t generation, int64_t step) {
    v1::RankEvent event = Event_(generation, 0);
    event.mutable_step()->set_step(step);
    event.mutable_step()->set_step_ms(10);
    Rank(stream, job, event);
  }
  void Checkpoint(uint64_t stream, const std::string& job, int64_t generation, int64_t step, bool is_final = false) {
    v1::RankEvent event = Event_(generation, 0);
    event.mutable_checkpoint()->set_step(step);
    event.mutable_checkpoint()->set_path(fmt::format("/ckpt/step-{}", step));
    event.mutable_checkpoint()->set_is_final(is_final);
    event.mutable_checkpoint()->set_weights_sha256("abc");
    Rank(stream, job, event);
  }
  void Completed(uint64_t stream, const std::string& job, int64_t generation) {
    v1::RankEvent event = Event_(generation, 0);
    event.mutable_result()->set_reason(v1::FINISH_REASON_COMPLETED);
    event.mutable_result()->set_weights_sha256("abc");
    Rank(stream, job, event);
  }
  void Victim(uint64_t stream, const std::string& job, int64_t generation, int32_t rank, int32_t blamed) {
    v1::RankEvent event = Event_(generation, rank);
    event.mutable_failure()->set_victim(true);
    event.mutable_failure()->set_blamed_rank(blamed);
    event.mutable_failure()->set_message("connection lost");
    event.mutable_failure()->set_where("all-reduce #3 of step 8");
    Rank(stream, job, event);
  }
  struct End {
    int code = 0;
    int signal = 0;
    bool by_us = false;
    std::vector<std::string> lines = {};
    std::string message = "";
  };
  void Exit(uint64_t stream, const std::string& job, int64_t generation, int32_t rank, const End& end) {
    v1::ConnectRequest message;
    message.mutable_exited()->set_job_id(job);
    message.mutable_exited()->set_sequence(++sequence);
    v1::RankStatus* status = message.mutable_exited()->mutable_status();
    status->set_rank(rank);
    status->set_generation(generation);
    status->set_exit_code(end.code);
    status->set_signal(end.signal);
    status->set_stopped_by_us(end.by_us);
    status->set_message(end.message);
    for (const std::string& line : end.lines) status->add_last_lines(line);
    Said(stream, message);
  }
  void Ended(uint64_t stream, const std::string& job, int64_t generation) {
    v1::ConnectRequest message;
    message.mutable_ended()->set_job_id(job);
    message.mutable_ended()->set_generation(generation);
    Said(stream, message);
  }

  const v1::JobStatus& Status(const std::string& job) const { return state.jobs.at(job).status(); }

  // The messages to agents since the last call, by kind.
  std::vector<v1::ConnectResponse> TakeSent() { return std::exchange(sent, {}); }
  static std::vector<v1::Revoke> Revokes(const std::vector<v1::ConnectResponse>& messages) {
    std::vector<v1::Revoke> out;
    for (const auto& message : messages) {
      if (message.has_revoke()) out.push_back(message.revoke());
    }
    return out;
  }
  static std::vector<v1::StartJob> Starts(const std::vector<v1::ConnectResponse>& messages) {
    std::vector<v1::StartJob> out;
    for (const auto& message : messages) {
      if (message.has_start()) out.push_back(message.start());
      for (const auto& start : message.welcome().desired()) out.push_back(start);
    }
    return out;
  }
  static v1::RunningJob Running(const v1::StartJob& start, bool ended = false) {
    v1::RunningJob running;
    running.set_job_id(start.assignment().job_id());
    running.set_generation(start.assignment().generation());
    *running.mutable_assignment() = start.assignment();
    *running.mutable_spec() = start.spec();
    running.set_uid(start.uid());
    running.set_ended(ended);
    return running;
  }

  State state;
  Nanos now{std::chrono::hours(5)};
  bool heartbeats = true;
  std::map<std::string, v1::JobRow> jobs;  // as persisted
  std::map<std::string, v1::NodeRow> nodes;
  v1::MetaRow meta;
  std::vector<v1::ConnectResponse> sent;
  std::vector<Reply> replies;
  std::vector<Record> records;
  std::vector<CloseStream> closed;
  uint64_t streams = 0, requests = 0;
  int64_t sequence = 0;

 private:
  void Keep(const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      if (const auto* persist = std::get_if<Persist>(&action)) {
        for (const v1::JobRow& row : persist->jobs) jobs[row.job().id()] = row;
        for (const v1::NodeRow& row : persist->nodes) nodes[row.node().name()] = row;
        meta = persist->meta;
      }
      if (const auto* send = std::get_if<SendToAgent>(&action)) sent.push_back(send->message);
      if (const auto* reply = std::get_if<Reply>(&action)) replies.push_back(*reply);
      if (const auto* record = std::get_if<Record>(&action)) records.push_back(*record);
      if (const auto* close = std::get_if<CloseStream>(&action)) closed.push_back(*close);
    }
  }
};

}  // namespace tutti::coordinator
