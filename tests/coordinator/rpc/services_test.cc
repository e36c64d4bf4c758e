#include <gmock/gmock.h>
#include <sys/stat.h>

#include <set>

#include "tests/coordinator/rpc/fixture.h"
#include "tutti/v1/rpc_status.pb.h"

namespace tutti::coordinator {

v1::JobSpec ValidSpec(int64_t ranks) {
  v1::JobSpec spec;
  spec.mutable_metadata()->set_name("tiny");
  (*spec.mutable_metadata()->mutable_labels())["team"] = "vision";
  (*spec.mutable_metadata()->mutable_labels())["stage"] = "test";
  spec.mutable_model()->add_layers()->mutable_flatten();
  spec.mutable_model()->add_layers()->mutable_dense()->set_units(10);
  spec.mutable_model()->set_loss(v1::LOSS_SOFTMAX_CROSS_ENTROPY);
  spec.mutable_data()->mutable_train()->set_format(v1::DATA_FORMAT_IDX);
  spec.mutable_data()->mutable_train()->set_images("/data/images");
  spec.mutable_data()->mutable_train()->set_labels("/data/labels");
  spec.mutable_data()->set_std(1);
  spec.mutable_data()->set_classes(10);
  spec.mutable_data()->set_threads(1);
  spec.mutable_data()->set_prefetch(2);
  spec.mutable_batch()->set_global(8 * ranks);
  spec.mutable_batch()->set_micro(8);
  spec.mutable_numerics()->set_shards(ranks);
  spec.mutable_numerics()->set_threads(1);
  spec.mutable_numerics()->set_mode(v1::NUMERICS_MODE_EXACT);
  spec.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
  spec.mutable_optimizer()->set_learning_rate(0.1);
  spec.mutable_schedule()->set_kind(v1::SCHEDULE_KIND_CONSTANT);
  spec.mutable_train()->set_steps(100);
  spec.mutable_train()->set_max_skipped_steps(10);
  spec.mutable_train()->set_log_every_steps(100);
  spec.mutable_resources()->set_ranks(ranks);
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CPU);
  spec.mutable_checkpoint()->set_directory("/runs/tiny");
  spec.mutable_checkpoint()->set_keep(2);
  spec.mutable_checkpoint()->set_resume(v1::RESUME_MODE_AUTO);
  spec.mutable_checkpoint()->set_on_error(v1::DISK_FULL_POLICY_FAIL);
  spec.mutable_restart()->set_max_user_failures(3);
  spec.mutable_restart()->set_max_node_failures(10);
  spec.mutable_restart()->set_backoff_ms(100);
  spec.mutable_restart()->set_grace_ms(1000);
  spec.mutable_restart()->set_collective_timeout_ms(30000);
  return spec;
}

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

grpc::Status Create(const Coordinator& c, const std::string& uid, const v1::JobSpec& spec,
                    v1::CreateJobResponse* response) {
  v1::CreateJobRequest request;
  request.set_uid(uid);
  *request.mutable_spec() = spec;
  request.mutable_data()->set_train_samples(1000);
  Call call(&c);
  return c.Jobs()->CreateJob(&call, request, response);
}
std::string CreateOk(const Coordinator& c, const std::string& uid, const v1::JobSpec& spec = ValidSpec()) {
  v1::CreateJobResponse response;
  const grpc::Status status = Create(c, uid, spec, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.job().id();
}
v1::Job Get(const Coordinator& c, const std::string& id) {
  v1::GetJobRequest request;
  request.set_id(id);
  v1::GetJobResponse response;
  Call call(&c);
  const grpc::Status status = c.Jobs()->GetJob(&call, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.job();
}
// Follows the job until `wanted` holds; the deadline of the call bounds it.
v1::Job WaitForJob(const Coordinator& c, const std::string& id, const std::function<bool(const v1::Job&)>& wanted) {
  v1::WatchJobsRequest request;
  request.set_id(id);
  Call call(&c);
  const auto stream = c.Jobs()->WatchJobs(&call, request);
  v1::WatchJobsResponse response;
  v1::Job last;
  while (stream->Read(&response)) {
    if (response.has_snapshot()) last = response.snapshot();
    if (response.has_changed()) last = response.changed();
    if (wanted(last)) {
      call.TryCancel();
      return last;
    }
  }
  ADD_FAILURE() << "the job never came there: " << last.status().ShortDebugString();
  return last;
}
auto InState(v1::JobState state) {
  return [state](const v1::Job& job) { return job.status().state() == state; };
}

TEST(CreateJob, IsIdempotentByUidAndDigest) {
  const Coordinator c;
  v1::CreateJobResponse first, second;
  ASSERT_TRUE(Create(c, "u-1", ValidSpec(), &first).ok());
  EXPECT_EQ(first.plan().steps(), 100);
  EXPECT_EQ(first.job().status().state(), v1::JOB_STATE_PENDING);
  EXPECT_THAT(first.job().status().wait_reason(), HasSubstr("no node has registered yet"));
  ASSERT_TRUE(Create(c, "u-1", ValidSpec(), &second).ok());
  EXPECT_EQ(second.job().id(), first.job().id());
  v1::JobSpec other = ValidSpec();
  other.mutable_train()->set_steps(7);
  EXPECT_EQ(Create(c, "u-1", other, &second).error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

TEST(CreateJob, MistakesComeAllAtOnceWithTheirFields) {
  const Coordinator c;
  v1::JobSpec spec = ValidSpec();
  spec.mutable_batch()->set_global(9);
  spec.mutable_optimizer()->set_learning_rate(-1);
  spec.mutable_metadata()->set_name("x;touch pwned.txt");  // SEC-03
  v1::CreateJobResponse response;
  const grpc::Status status = Create(c, "no spaces please", spec, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  google::rpc::BadRequest bad;
  ASSERT_TRUE(details.details(0).UnpackTo(&bad));
  std::set<std::string> fields;
  for (const auto& violation : bad.field_violations()) fields.insert(violation.field());
  for (const char* field : {"uid", "metadata.name", "spec.optimizer.learningRate"})
    EXPECT_TRUE(fields.contains(field)) << field;
  EXPECT_GE(fields.size(), 4u) << status.error_message();
}

// API-01
TEST(CreateJob, TooLargeASpecIsRefusedWithLimitAndSizeAndOthersAreServed) {
  const Coordinator c;
  v1::JobSpec spec = ValidSpec();
  spec.mutable_checkpoint()->set_directory(std::string(5 << 20, 'x'));
  v1::CreateJobResponse response;
  const grpc::Status status = Create(c, "u-1", spec, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("at most 1048576 are allowed"));
  EXPECT_NE(CreateOk(c, "u-2"), "");
}

TEST(CreateJob, ValidateOnlyPlansAndChangesNothing) {
  const Coordinator c;
  v1::CreateJobRequest request;
  *request.mutable_spec() = ValidSpec();
  request.set_validate_only(true);
  request.mutable_data()->set_train_samples(1000);
  v1::CreateJobResponse response;
  Call call;
  ASSERT_TRUE(c.Jobs()->CreateJob(&call, request, &response).ok());
  EXPECT_EQ(response.plan().steps(), 100);
  EXPECT_EQ(response.job().id(), "");
  v1::ListJobsResponse list;
  Call list_call;
  ASSERT_TRUE(c.Jobs()->ListJobs(&list_call, {}, &list).ok());
  EXPECT_THAT(list.jobs(), SizeIs(0));
}

TEST(CreateJob, DrivesAnAgentFromSubmitToSuccess) {
  const Coordinator c;
  FakeAgent agent(c, "a", 2);
  agent.WaitFor([](const auto& message) { return message.has_welcome(); });
  const auto before = std::chrono::steady_clock::now();
  const std::string id = CreateOk(c, "u-1", ValidSpec(2));
  const v1::StartJob start = agent.WaitForStart();
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - before).count();
  RecordProperty("submit_to_start_ms", std::to_string(ms));
  fmt::print("submit to StartJob at the agent: {:.1f} ms\n", ms);
  EXPECT_EQ(start.assignment().job_id(), id);
  agent.Step(start, 1);
  agent.Finish(start);
  EXPECT_EQ(WaitForJob(c, id, InState(v1::JOB_STATE_SUCCEEDED)).status().weights_sha256(), "abc");
  EXPECT_TRUE(agent.WaitFor([](const auto& message) { return message.has_revoke(); }).revoke().forget());
}

// SCH-02
TEST(PlanJob, SaysWhatNeverRunsAndWhatDoesNotFit) {
  const Coordinator c;
  FakeAgent agent(c, "a", 2);
  agent.WaitFor([](const auto& message) { return message.has_welcome(); });
  v1::PlanJobRequest request;
  *request.mutable_spec() = ValidSpec(5);
  v1::PlanJobResponse response;
  Call without_data;
  EXPECT_EQ(c.Jobs()->PlanJob(&without_data, request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.mutable_data()->set_train_samples(1000);
  Call call;
  ASSERT_TRUE(c.Jobs()->PlanJob(&call, request, &response).ok());
  EXPECT_FALSE(response.can_ever_run());
  EXPECT_EQ(response.reason(), "can never run: needs 5, total 2");
  *request.mutable_spec() = ValidSpec(1);
  request.mutable_data()->set_resident_bytes(int64_t{2} << 30);
  Call too_big;
  ASSERT_TRUE(c.Jobs()->PlanJob(&too_big, request, &response).ok());
  EXPECT_FALSE(response.fits());
  EXPECT_THAT(response.reason(), HasSubstr("slot has 1073741824"));
}

// API-01: a list of any length comes in pages.
TEST(ListJobs, PagesAndFilters) {
  const Coordinator c;
  std::vector<std::string> ids;
  for (int i = 0; i < 25; ++i) {
    v1::JobSpec spec = ValidSpec();
    spec.mutable_metadata()->set_name(i % 5 == 0 ? "fifth" : "other");
    ids.push_back(CreateOk(c, "u-" + std::to_string(i), spec));
  }
  v1::ListJobsRequest request;
  request.set_page_size(10);
  std::vector<std::string> seen;
  int pages = 0;
  do {
    v1::ListJobsResponse response;
    Call call;
    ASSERT_TRUE(c.Jobs()->ListJobs(&call, request, &response).ok());
    for (const v1::Job& job : response.jobs()) seen.push_back(job.id());
    request.set_page_token(response.next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(pages, 3);
  EXPECT_EQ(seen, std::vector<std::string>(ids.rbegin(), ids.rend())) << "newest first, each once";

  request = {};
  request.set_filter("state=PENDING,name=fifth,label.team=vision");
  v1::ListJobsResponse response;
  Call call;
  ASSERT_TRUE(c.Jobs()->ListJobs(&call, request, &response).ok());
  EXPECT_THAT(response.jobs(), SizeIs(5));
  request.set_filter("colour=red");
  Call bad;
  EXPECT_EQ(c.Jobs()->ListJobs(&bad, request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(GetJob, ByIdPrefixAndName) {
  const Coordinator c;
  const std::string old = CreateOk(c, "u-1"), id = CreateOk(c, "u-2");
  EXPECT_EQ(Get(c, id).uid(), "u-2");
  EXPECT_EQ(Get(c, "tiny").uid(), "u-2") << "the newest of that name";
  EXPECT_EQ(Get(c, old).uid(), "u-1");
  std::string lower = id;
  for (char& letter : lower) letter = static_cast<char>(std::tolower(letter));
  EXPECT_EQ(Get(c, lower).uid(), "u-2");
  v1::GetJobResponse response;
  for (const auto& [key, code] : std::vector<std::pair<std::string, grpc::StatusCode>>{
           {"", grpc::StatusCode::INVALID_ARGUMENT},
           {"../../etc/passwd", grpc::StatusCode::NOT_FOUND},  // SEC-02
           {id.substr(0, 4), grpc::StatusCode::INVALID_ARGUMENT}}) {
    v1::GetJobRequest request;
    request.set_id(key);
    Call call;
    EXPECT_EQ(c.Jobs()->GetJob(&call, request, &response).error_code(), code) << key;
  }
}

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

TEST(DiskFull, SubmitsAreRefusedAndRunningJobsGoOn) {
  const Coordinator c;
  FakeAgent agent(c, "a", 1);
  const std::string id = CreateOk(c, "u-1");
  const v1::StartJob start = agent.WaitForStart();
  c.journal->full = true;
  v1::CreateJobResponse response;
  const grpc::Status refused = Create(c, "u-2", ValidSpec(), &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("no space left on device"));
  agent.Step(start, 1);
  agent.Finish(start);
  c.journal->full = false;
  WaitForJob(c, id, InState(v1::JOB_STATE_SUCCEEDED));
  const std::string second = CreateOk(c, "u-2");
  EXPECT_EQ(agent.WaitForStart().assignment().job_id(), second) << "the refused submit left nothing behind";
  v1::ListJobsResponse list;
  Call call;
  ASSERT_TRUE(c.Jobs()->ListJobs(&call, {}, &list).ok());
  EXPECT_THAT(list.jobs(), SizeIs(2));
}

TEST(Restart, JobsAreStillThereAndStreamsEndInOrder) {
  Coordinator c;
  const std::string id = CreateOk(c, "u-1");
  FakeAgent agent(c, "a", 1);
  const v1::StartJob start = agent.WaitForStart();
  Call call;
  const auto watch = c.Jobs()->WatchJobs(&call, {});
  v1::WatchJobsResponse event;
  ASSERT_TRUE(watch->Read(&event));
  const auto before = std::chrono::steady_clock::now();
  c.Stop();  // with streams open
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(4));
  while (watch->Read(&event)) {
  }
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(agent.WaitForEnd().error_code(), grpc::StatusCode::UNAVAILABLE);
  c.Start();
  EXPECT_EQ(Get(c, id).status().generation(), 1);
  v1::RunningJob running;
  running.set_job_id(id);
  running.set_generation(1);
  *running.mutable_assignment() = start.assignment();
  *running.mutable_spec() = start.spec();
  running.set_uid("u-1");
  FakeAgent again(c, "a", 1, {running}, 1);
  const auto welcome = again.WaitFor([](const auto& message) { return message.has_welcome(); }).welcome();
  EXPECT_EQ(welcome.term(), 2);
  EXPECT_THAT(welcome.desired(), SizeIs(1));
  again.Finish(start);
  EXPECT_EQ(WaitForJob(c, id, InState(v1::JOB_STATE_SUCCEEDED)).status().attempts(), 1);
}

// ---- Who may call

TEST(Security, OnlyLoopbackAndUnixSocketsAreServed) {  // SEC-01
  for (const char* listen : {"", "127.0.0.1:0", "localhost:7070", "[::1]:0", "unix:/tmp/x"})
    EXPECT_TRUE(CheckListen(listen).ok()) << listen;
  for (const char* listen : {"0.0.0.0:7070", "[::]:7070", "192.168.1.5:7070", "example.org:7070", ":7070", "127.0.0.1",
                             "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1.evil.org:70"}) {
    EXPECT_EQ(CheckListen(listen).code(), absl::StatusCode::kInvalidArgument) << listen;
  }
  EXPECT_THAT(Message(CheckListen("0.0.0.0:7070")), HasSubstr("anyone who reaches the port could run code as you"));
}

// Each call without the token, by name; the streaming ones through their first read.
template <typename Request, typename Stub, typename Method>
grpc::StatusCode Unary(Stub* stub, Method method, const std::string& token) {
  Request request;
  auto response = [&] {
    if constexpr (std::is_same_v<Request, v1::CreateJobRequest>) return v1::CreateJobResponse();
    if constexpr (std::is_same_v<Request, v1::GetJobRequest>) return v1::GetJobResponse();
    if constexpr (std::is_same_v<Request, v1::ListJobsRequest>) return v1::ListJobsResponse();
    if constexpr (std::is_same_v<Request, v1::CancelJobRequest>) return v1::CancelJobResponse();
    if constexpr (std::is_same_v<Request, v1::PlanJobRequest>) return v1::PlanJobResponse();
    if constexpr (std::is_same_v<Request, v1::ListNodesRequest>) return v1::ListNodesResponse();
    if constexpr (std::is_same_v<Request, v1::GetNodeRequest>) return v1::GetNodeResponse();
    if constexpr (std::is_same_v<Request, v1::GetVersionRequest>) return v1::GetVersionResponse();
  }();
  Call call;
  if (!token.empty()) call.AddMetadata("authorization", "Bearer " + token);
  return (stub->*method)(&call, request, &response).error_code();
}
template <typename Request, typename Response, typename Method>
grpc::StatusCode Streaming(v1::JobService::Stub* stub, Method method) {
  Call call;
  const auto stream = (stub->*method)(&call, Request());
  Response response;
  while (stream->Read(&response)) {
  }
  return stream->Finish().error_code();
}

TEST(Security, EveryMethodAsksForTheToken) {  // SEC-01
  const Coordinator c("127.0.0.1:0");
  const auto jobs = c.Jobs();
  const auto nodes = v1::NodeService::NewStub(c.Channel());
  const auto system = v1::SystemService::NewStub(c.Channel());
  const auto agents = v1::AgentService::NewStub(c.Channel());
  std::multiset<grpc::StatusCode> codes;
  using J = v1::JobService::Stub;
  for (const std::string& token : {std::string(), std::string(64, '0')}) {
    codes.insert(Unary<v1::CreateJobRequest>(jobs.get(), &J::CreateJob, token));
    codes.insert(Unary<v1::GetJobRequest>(jobs.get(), &J::GetJob, token));
    codes.insert(Unary<v1::ListJobsRequest>(jobs.get(), &J::ListJobs, token));
    codes.insert(Unary<v1::CancelJobRequest>(jobs.get(), &J::CancelJob, token));
    codes.insert(Unary<v1::PlanJobRequest>(jobs.get(), &J::PlanJob, token));
    codes.insert(Unary<v1::ListNodesRequest>(nodes.get(), &v1::NodeService::Stub::ListNodes, token));
    codes.insert(Unary<v1::GetNodeRequest>(nodes.get(), &v1::NodeService::Stub::GetNode, token));
    codes.insert(Unary<v1::GetVersionRequest>(system.get(), &v1::SystemService::Stub::GetVersion, token));
  }
  codes.insert(Streaming<v1::WatchJobsRequest, v1::WatchJobsResponse>(jobs.get(), &J::WatchJobs));
  codes.insert(Streaming<v1::ReadLogsRequest, v1::ReadLogsResponse>(jobs.get(), &J::ReadLogs));
  codes.insert(Streaming<v1::ReadMetricsRequest, v1::ReadMetricsResponse>(jobs.get(), &J::ReadMetrics));
  Call call;
  const auto stream = agents->Connect(&call);
  v1::ConnectResponse response;
  EXPECT_FALSE(stream->Read(&response));
  codes.insert(stream->Finish().error_code());
  EXPECT_EQ(codes.count(grpc::StatusCode::UNAUTHENTICATED), codes.size());
  // 12 methods exist: a new one must be asked here too.
  int methods = 0;
  for (const auto* file : {v1::CreateJobRequest::descriptor()->file(), v1::ConnectRequest::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) methods += file->service(i)->method_count();
  }
  EXPECT_EQ(methods, 12);
  EXPECT_NE(CreateOk(c, "u-1"), "") << "and with the token they answer";
}

TEST(Security, TheTokenIsPrivateAndKept) {
  Coordinator c("127.0.0.1:0");
  const std::string path = JoinPath(c.directory.path(), "token");
  struct stat info = {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_THAT(c.server->token(), SizeIs(64));
  EXPECT_EQ(*ReadFile(JoinPath(c.directory.path(), "address")), c.server->address() + "\n");
  const std::string token = c.server->token();
  c.Stop();
  c.Start();
  EXPECT_EQ(c.server->token(), token);
  c.Stop();
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  const auto journal = NewMemoryJournal();
  const auto series = *SeriesStore::Open(JoinPath(c.directory.path(), "series"));
  const ServerOptions options{
      .state_directory = c.directory.path(), .listen = "127.0.0.1:0", .reflection = false, .version = "", .core = {}};
  EXPECT_EQ(Server::Start(options, journal.get(), series.get(), &c.planner, &SystemClock()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Security, ASocketInAnOpenFolderIsRefused) {
  const TempDirectory folder = *TempDirectory::Create("open");
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  const auto journal = NewMemoryJournal();
  const auto series = *SeriesStore::Open(JoinPath(folder.path(), "series"));
  const FakePlanner planner;
  const ServerOptions options{.state_directory = folder.path(),
                              .listen = "unix:" + folder.path() + "/s",
                              .reflection = false,
                              .version = "",
                              .core = {}};
  const Status status = Server::Start(options, journal.get(), series.get(), &planner, &SystemClock()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(status), HasSubstr("chmod 700"));
}

// ---- Agents

TEST(Agents, TheFirstMessageMustBeAReport) {
  const Coordinator c;
  Call call;
  const auto stub = v1::AgentService::NewStub(c.Channel());
  const auto stream = stub->Connect(&call);
  v1::ConnectRequest message;
  message.mutable_heartbeat();
  stream->Write(message);
  v1::ConnectResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

// API-02: pings far faster than any client of ours sends them.
TEST(Agents, EagerKeepaliveIsNoReasonToHangUp) {
  const Coordinator c;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  const auto channel = grpc::CreateCustomChannel(c.server->address(), grpc::InsecureChannelCredentials(), arguments);
  ASSERT_TRUE(channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10)));
  // A connection that the server ends leaves READY.
  EXPECT_FALSE(channel->WaitForStateChange(GRPC_CHANNEL_READY,
                                           std::chrono::system_clock::now() + std::chrono::milliseconds(1500)));
}

}  // namespace
}  // namespace tutti::coordinator
