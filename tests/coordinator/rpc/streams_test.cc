#include <gmock/gmock.h>

#include "tests/coordinator/rpc/fixture.h"

namespace tutti::coordinator {
namespace {

TEST(WatchJobs, SnapshotSyncedChangesAndResume) {
  const Coordinator c;
  const std::string first = CreateOk(c, "u-1");
  Call call;
  const auto stream = c.Jobs()->WatchJobs(&call, {});
  v1::WatchJobsResponse event;
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_EQ(event.snapshot().id(), first);
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_TRUE(event.synced());
  const std::string token = event.resume_token();
  const std::string second = CreateOk(c, "u-2");
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_EQ(event.changed().id(), second);
  call.TryCancel();

  v1::WatchJobsRequest request;
  request.set_resume_token(token);
  Call again;
  const auto resumed = c.Jobs()->WatchJobs(&again, request);
  ASSERT_TRUE(resumed->Read(&event));
  EXPECT_TRUE(event.synced());
  ASSERT_TRUE(resumed->Read(&event));
  EXPECT_EQ(event.changed().id(), second) << "what changed since the token";
  again.TryCancel();
}

TEST(WatchJobs, TooOldOrForeignTokensAreOutOfRange) {
  Options options;
  options.changes_kept = 2;
  const Coordinator c("", options);
  for (int i = 0; i < 6; ++i) CreateOk(c, "u-" + std::to_string(i));
  for (const auto& [token, code] :
       std::vector<std::pair<std::string, grpc::StatusCode>>{{"1", grpc::StatusCode::OUT_OF_RANGE},
                                                             {"999999", grpc::StatusCode::OUT_OF_RANGE},
                                                             {"x", grpc::StatusCode::INVALID_ARGUMENT}}) {
    v1::WatchJobsRequest request;
    request.set_resume_token(token);
    Call call;
    const auto stream = c.Jobs()->WatchJobs(&call, request);
    v1::WatchJobsResponse event;
    EXPECT_FALSE(stream->Read(&event));
    EXPECT_EQ(stream->Finish().error_code(), code) << token;
  }
}

TEST(WatchJobs, WithAnIdShowsStepsAndTheEnd) {
  const Coordinator c;
  FakeAgent agent(c, "a", 1);
  const std::string id = CreateOk(c, "u-1");
  const v1::StartJob start = agent.WaitForStart();
  v1::WatchJobsRequest request;
  request.set_id(id);
  Call call;
  const auto stream = c.Jobs()->WatchJobs(&call, request);
  v1::WatchJobsResponse event;
  while (stream->Read(&event) && !event.synced()) {
  }
  for (int step = 1; step <= 50; ++step) agent.Step(start, step);
  v1::RankEvent evaluation;
  evaluation.mutable_evaluation()->set_accuracy(0.9);
  agent.Rank(start, evaluation);
  agent.Finish(start);
  int64_t last_step = 0;
  bool evaluated = false, done = false;
  while (!done && stream->Read(&event)) {
    if (event.has_step()) {
      EXPECT_GT(event.step().step(), last_step);
      EXPECT_FALSE(evaluated) << "a step keeps its place before what follows it";
      last_step = event.step().step();
    }
    evaluated |= event.has_evaluation();
    done = event.has_changed() && event.changed().status().state() == v1::JOB_STATE_SUCCEEDED;
  }
  EXPECT_TRUE(done);
  EXPECT_TRUE(evaluated);
  EXPECT_EQ(last_step, 50) << "the newest step is always shown";
  call.TryCancel();
}

TEST(ReadMetrics, HasEachStepOnceAfterARestartToo) {
  Coordinator c;
  const std::string id = CreateOk(c, "u-1");
  {
    FakeAgent agent(c, "a", 1);
    const v1::StartJob start = agent.WaitForStart();
    for (int step = 1; step <= 3000; ++step) agent.Step(start, step);
    agent.Finish(start);
    WaitForJob(c, id, InState(v1::JOB_STATE_SUCCEEDED));
  }
  c.Stop();
  c.Start();
  v1::ReadMetricsRequest request;
  request.set_id(id);
  request.set_after_step(10);
  Call call;
  const auto stream = c.Jobs()->ReadMetrics(&call, request);
  v1::ReadMetricsResponse response;
  int64_t last = 10;
  while (stream->Read(&response)) {
    for (const v1::StepRecord& step : response.steps()) ASSERT_EQ(step.step(), ++last);
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(last, 3000);
}

std::string ReadAll(const Coordinator& c, const v1::ReadLogsRequest& request, size_t* largest = nullptr) {
  Call call;
  const auto stream = c.Jobs()->ReadLogs(&call, request);
  v1::ReadLogsResponse response;
  std::string text;
  while (stream->Read(&response)) {
    text += response.data();
    if (largest != nullptr) *largest = std::max(*largest, response.data().size());
  }
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return text;
}

// API-01: a log of any size comes in chunks.
TEST(ReadLogs, ComeInChunksFromAnyOffset) {
  const Coordinator c;
  FakeAgent agent(c, "a", 1);
  const std::string id = CreateOk(c, "u-1");
  agent.WaitForStart();
  std::string log;
  for (int line = 0; log.size() < (10 << 20); ++line) log += fmt::format("line {}\n", line);
  agent.SetLog(log, true);
  v1::ReadLogsRequest request;
  request.set_id(id);
  size_t largest = 0;
  EXPECT_EQ(ReadAll(c, request, &largest), log);
  EXPECT_LE(largest, size_t{256} << 10);
  request.set_offset(-100);
  EXPECT_EQ(ReadAll(c, request), log.substr(log.size() - 100));
  request.set_offset(static_cast<int64_t>(log.size()) - 7);
  EXPECT_EQ(ReadAll(c, request), log.substr(log.size() - 7));
}

TEST(ReadLogs, FollowUntilTheRankHasEnded) {
  const Coordinator c;
  FakeAgent agent(c, "a", 1);
  const std::string id = CreateOk(c, "u-1");
  agent.WaitForStart();
  agent.SetLog("hello\n", false);
  v1::ReadLogsRequest request;
  request.set_id(id);
  request.set_follow(true);
  Call call;
  const auto stream = c.Jobs()->ReadLogs(&call, request);
  v1::ReadLogsResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.data(), "hello\n");
  EXPECT_EQ(response.next_offset(), 6);
  EXPECT_EQ(response.generation(), 1);
  agent.SetLog("hello\nworld\n", true);
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.data(), "world\n");
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(ReadLogs, WrongRanksGenerationsAndAbsentNodesAreSaid) {
  const Coordinator c;
  const std::string id = CreateOk(c, "u-1");
  const auto code = [&](int32_t rank, int64_t generation) {
    v1::ReadLogsRequest request;
    request.set_id(id);
    request.set_rank(rank);
    request.set_generation(generation);
    Call call;
    const auto stream = c.Jobs()->ReadLogs(&call, request);
    v1::ReadLogsResponse response;
    EXPECT_FALSE(stream->Read(&response));
    return stream->Finish().error_code();
  };
  EXPECT_EQ(code(0, 0), grpc::StatusCode::FAILED_PRECONDITION) << "has not started";
  {
    FakeAgent agent(c, "a", 1);
    agent.WaitForStart();
    EXPECT_EQ(code(1, 0), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(code(-1, 0), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(code(0, 2), grpc::StatusCode::INVALID_ARGUMENT);
  }
  v1::GetNodeRequest request;
  request.set_name("a");
  v1::GetNodeResponse node;
  do {
    Call call;
    ASSERT_TRUE(v1::NodeService::NewStub(c.Channel())->GetNode(&call, request, &node).ok());
  } while (node.node().state() != v1::NODE_STATE_SUSPECTED);
  EXPECT_EQ(node.node().slots(0).job_id(), id) << "its rank goes on";
  EXPECT_EQ(code(0, 0), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace tutti::coordinator
