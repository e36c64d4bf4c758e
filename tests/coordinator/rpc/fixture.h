// A coordinator in this process, served over a Unix socket or loopback, with a real journal in a temporary folder.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/digest.h"
#include "base/files.h"
#include "coordinator/rpc/server.h"
#include "tutti/v1/agent.grpc.pb.h"
#include "tutti/v1/api.grpc.pb.h"

namespace tutti::coordinator {

class FakePlanner : public Planner {
 public:
  StatusOr<v1::TrainPlan> Plan(const v1::JobSpec&, const v1::DataFacts& data, const SlotFacts&) const override {
    if (data.train_samples() == 0) return InvalidArgument("0 steps per epoch: 0 samples < 8");
    v1::TrainPlan plan;
    plan.set_steps(100);
    plan.mutable_memory()->set_resident_bytes(data.resident_bytes());
    return plan;
  }
  Status CheckFits(const v1::JobSpec&, const v1::DataFacts&, const SlotFacts& slot,
                   const v1::TrainPlan& plan) const override {
    if (slot.memory_bytes == 0 || plan.memory().resident_bytes() <= slot.memory_bytes) return OkStatus();
    return ResourceExhausted("rank needs {} bytes, slot has {}", plan.memory().resident_bytes(), slot.memory_bytes);
  }
};

// A journal whose disk can be full.
class FillableJournal : public Journal {
 public:
  explicit FillableJournal(std::unique_ptr<Journal> inner) : inner_(std::move(inner)) {}
  StatusOr<Rows> Load() override { return inner_->Load(); }
  Status Commit(const Rows& rows) override {
    if (full) return ResourceExhausted("no space left on device");
    return inner_->Commit(rows);
  }
  std::atomic<bool> full{false};

 private:
  std::unique_ptr<Journal> inner_;
};

v1::JobSpec ValidSpec(int64_t ranks = 1);

class Coordinator {
 public:
  explicit Coordinator(std::string listen = "", Options core = {}) : listen_(std::move(listen)), core_(core) {
    Start();
  }

  void Start() {
    journal = std::make_unique<FillableJournal>(*OpenSqliteJournal(directory.path()));
    series = *SeriesStore::Open(JoinPath(directory.path(), "series"));
    ServerOptions options{
        .state_directory = directory.path(), .listen = listen_, .reflection = false, .version = "test", .core = core_};
    auto started = Server::Start(options, journal.get(), series.get(), &planner, &SystemClock());
    ASSERT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
  }
  void Stop() {
    server.reset();
    series.reset();
    journal.reset();
  }

  std::shared_ptr<grpc::Channel> Channel() const {
    return grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials());
  }
  std::unique_ptr<v1::JobService::Stub> Jobs() const { return v1::JobService::NewStub(Channel()); }

  TempDirectory directory = *TempDirectory::Create("coordinator");
  FakePlanner planner;
  std::unique_ptr<FillableJournal> journal;
  std::unique_ptr<SeriesStore> series;
  std::unique_ptr<Server> server;

 private:
  const std::string listen_;
  const Options core_;
};

// A call's context with a deadline, and the token where there is one.
class Call : public grpc::ClientContext {
 public:
  explicit Call(const Coordinator* coordinator = nullptr, int seconds = 20) {
    set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
    if (coordinator != nullptr && !coordinator->server->token().empty()) {
      AddMetadata("authorization", "Bearer " + coordinator->server->token());
    }
  }
};

// An agent's side of the stream, driven by the test; it answers log requests from `log`.
class FakeAgent {
 public:
  FakeAgent(const Coordinator& coordinator, const std::string& name, int slots,
            const std::vector<v1::RunningJob>& running = {}, int64_t seen_term = 0, int64_t slot_bytes = 1 << 30)
      : context_(&coordinator, 60),
        stub_(v1::AgentService::NewStub(coordinator.Channel())),
        stream_(stub_->Connect(&context_)) {
    v1::ConnectRequest first;
    v1::Node* node = first.mutable_report()->mutable_node();
    node->set_name(name);
    for (int i = 0; i < slots; ++i) {
      v1::Slot* slot = node->add_slots();
      slot->set_id("cpu" + std::to_string(i));
      slot->set_device(v1::DEVICE_KIND_CPU);
      slot->add_cores(i);
      slot->set_memory_bytes(slot_bytes);
    }
    first.mutable_report()->set_seen_term(seen_term);
    for (const v1::RunningJob& job : running) *first.mutable_report()->add_running() = job;
    Send(first);
    reader_ = std::thread([this] { Read(); });
  }
  ~FakeAgent() {
    context_.TryCancel();
    reader_.join();
  }

  void Send(const v1::ConnectRequest& message) {
    const std::lock_guard lock(write_mutex_);
    stream_->Write(message);
  }

  // The first message that `wanted` accepts, taken out; fails the test after 20 s.
  v1::ConnectResponse WaitFor(const std::function<bool(const v1::ConnectResponse&)>& wanted) {
    std::unique_lock lock(mutex_);
    v1::ConnectResponse found;
    const bool there = changed_.wait_for(lock, std::chrono::seconds(20), [&] {
      for (auto it = received_.begin(); it != received_.end(); ++it) {
        if (!wanted(*it)) continue;
        found = *it;
        received_.erase(it);
        return true;
      }
      return false;
    });
    EXPECT_TRUE(there) << "the agent waits in vain";
    return found;
  }
  v1::StartJob WaitForStart() {
    return WaitFor([](const auto& message) { return message.has_start(); }).start();
  }
  grpc::Status WaitForEnd() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20), [&] { return ended_; }));
    return status_;
  }

  void Rank(const v1::StartJob& start, v1::RankEvent event) {
    event.set_generation(start.assignment().generation());
    v1::ConnectRequest message;
    message.mutable_event()->set_job_id(start.assignment().job_id());
    message.mutable_event()->set_sequence(++sequence_);
    *message.mutable_event()->mutable_event() = std::move(event);
    Send(message);
  }
  void Step(const v1::StartJob& start, int64_t step) {
    v1::RankEvent event;
    event.mutable_step()->set_step(step);
    event.mutable_step()->set_loss(1.0 / static_cast<double>(step));
    Rank(start, event);
  }
  // Rank 0 says that it is done, all ranks leave.
  void Finish(const v1::StartJob& start) {
    v1::RankEvent event;
    event.mutable_result()->set_reason(v1::FINISH_REASON_COMPLETED);
    event.mutable_result()->set_weights_sha256("abc");
    Rank(start, event);
    for (int64_t rank = 0; rank < start.spec().resources().ranks(); ++rank) Exit(start, static_cast<int32_t>(rank), 0);
    Ended(start);
  }
  void Exit(const v1::StartJob& start, int32_t rank, int code) {
    v1::ConnectRequest message;
    message.mutable_exited()->set_job_id(start.assignment().job_id());
    message.mutable_exited()->set_sequence(++sequence_);
    message.mutable_exited()->mutable_status()->set_rank(rank);
    message.mutable_exited()->mutable_status()->set_generation(start.assignment().generation());
    message.mutable_exited()->mutable_status()->set_exit_code(code);
    Send(message);
  }
  void Ended(const v1::StartJob& start) {
    v1::ConnectRequest message;
    message.mutable_ended()->set_job_id(start.assignment().job_id());
    message.mutable_ended()->set_generation(start.assignment().generation());
    Send(message);
  }

  void SetLog(std::string log, bool ended) {
    const std::lock_guard lock(mutex_);
    log_ = std::move(log);
    log_ended_ = ended;
  }

 private:
  void Read() {
    v1::ConnectResponse message;
    while (stream_->Read(&message)) {
      if (message.has_read_log()) {
        AnswerLog(message.read_log());
        continue;
      }
      {
        const std::lock_guard lock(mutex_);
        received_.push_back(message);
      }
      changed_.notify_all();
    }
    {
      const std::lock_guard lock(mutex_);
      status_ = stream_->Finish();
      ended_ = true;
    }
    changed_.notify_all();
  }
  void AnswerLog(const v1::ReadLog& request) {
    v1::ConnectRequest answer;
    v1::LogChunk* chunk = answer.mutable_log();
    chunk->set_request_id(request.request_id());
    {
      const std::lock_guard lock(mutex_);
      const int64_t size = static_cast<int64_t>(log_.size());
      const int64_t begin =
          request.offset() < 0 ? std::max<int64_t>(0, size + request.offset()) : std::min(request.offset(), size);
      chunk->set_offset(begin);
      chunk->set_size(size);
      chunk->set_data(log_.substr(begin, request.max_bytes()));
      chunk->set_ended(log_ended_);
    }
    Send(answer);
  }

  Call context_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ConnectRequest, v1::ConnectResponse>> stream_;
  std::mutex write_mutex_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::ConnectResponse> received_;
  std::string log_;
  bool log_ended_ = false;
  bool ended_ = false;
  grpc::Status status_;
  int64_t sequence_ = 0;
  std::thread reader_;
};

// support.cc
grpc::Status Create(const Coordinator& c, const std::string& uid, const v1::JobSpec& spec,
                    v1::CreateJobResponse* response);
std::string CreateOk(const Coordinator& c, const std::string& uid, const v1::JobSpec& spec = ValidSpec());
v1::Job Get(const Coordinator& c, const std::string& id);
// Follows the job until `wanted` holds; the deadline of the call bounds it.
v1::Job WaitForJob(const Coordinator& c, const std::string& id, const std::function<bool(const v1::Job&)>& wanted);
std::function<bool(const v1::Job&)> InState(v1::JobState state);

}  // namespace tutti::coordinator
