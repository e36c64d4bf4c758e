#include <gmock/gmock.h>

#include <set>

#include "tests/coordinator/rpc/fixture.h"
#include "tutti/v1/rpc_status.pb.h"

namespace tutti::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

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

// What no node can hold is not found out by crashing, whichever came first: the job or the node.
TEST(Memory, JobWaitsForANodeThatHoldsItsPlan) {
  const Coordinator c;
  v1::CreateJobRequest request;
  request.set_uid("u-1");
  *request.mutable_spec() = ValidSpec();
  request.mutable_data()->set_train_samples(1000);
  request.mutable_data()->set_resident_bytes(int64_t{2} << 30);
  v1::CreateJobResponse response;
  Call call;
  ASSERT_TRUE(c.Jobs()->CreateJob(&call, request, &response).ok());
  const FakeAgent small(c, "a", 2);
  const v1::Job waiting =
      WaitForJob(c, response.job().id(), [](const v1::Job& job) { return job.status().reason() == "NeverFits"; });
  EXPECT_EQ(
      waiting.status().wait_reason(),
      "can never run: needs 1, each with 2.0 GiB of memory; 0 have it, 2 do not (the largest of them has 1.0 GiB)");
  FakeAgent large(c, "b", 1, {}, 0, int64_t{4} << 30);
  EXPECT_EQ(large.WaitForStart().assignment().job_id(), response.job().id());
  // What one slot of the cluster can hold is taken, what none can is refused at once; smaller slots do not matter.
  Call fits, never;
  request.set_uid("u-2");
  EXPECT_TRUE(c.Jobs()->CreateJob(&fits, request, &response).ok());
  const std::string second = response.job().id();
  request.set_uid("u-3");
  request.mutable_data()->set_resident_bytes(int64_t{5} << 30);
  EXPECT_EQ(c.Jobs()->CreateJob(&never, request, &response).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  // A slot whose memory nobody knows may hold anything.
  FakeAgent unknown(c, "c", 1, {}, 0, 0);
  EXPECT_EQ(unknown.WaitForStart().assignment().job_id(), second);
  Call perhaps;
  EXPECT_TRUE(c.Jobs()->CreateJob(&perhaps, request, &response).ok());
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

}  // namespace
}  // namespace tutti::coordinator
