#include <gmock/gmock.h>
#include <sys/stat.h>

#include <set>

#include "tests/coordinator/rpc/fixture.h"

namespace tutti::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

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
