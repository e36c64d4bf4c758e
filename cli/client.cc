#include "cli/client.h"

#include <grpc/support/time.h>
#include <grpcpp/grpcpp.h>

#include "tutti/v1/api.grpc.pb.h"

namespace tutti::cli {
namespace {

constexpr int kMaxReceiveBytes = 64 << 20;
constexpr int kReconnectMs = 20;  // an embedded coordinator appears within some tens of milliseconds
constexpr int kMaxReconnectMs = 1000;
constexpr int kConnectTimeoutMs = 5000;

std::shared_ptr<grpc::Channel> Connect(const Target& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, target.wait_for_start ? 2 * kReconnectMs : kMaxReconnectMs);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target.address, grpc::InsecureChannelCredentials(), arguments);
}

Status FromGrpc(const grpc::Status& status, const Target& target) {
  if (status.ok()) return OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      return Unavailable("cannot reach the coordinator at {}: {}", target.address, status.error_message());
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return DeadlineExceeded("the coordinator at {} did not answer in time", target.address);
    case grpc::StatusCode::UNAUTHENTICATED:
      return Unauthenticated(
          "the coordinator at {} refused: {}; give its token with --token-file FILE or TUTTI_TOKEN_FILE",
          target.address, status.error_message());
    default:
      return Status(code, status.error_message());
  }
}

}  // namespace

struct Client::Stubs {
  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel) : jobs(channel), nodes(channel), version(channel) {}
  v1::JobService::Stub jobs;
  v1::NodeService::Stub nodes;
  v1::SystemService::Stub version;
};

namespace {

void Prepare(grpc::ClientContext* context, const Target& target) {
  context->set_wait_for_ready(target.wait_for_start);
  if (!target.token.empty()) context->AddMetadata("authorization", "Bearer " + target.token);
}

// One unary call of `stub`'s `method` within `deadline_ms`.
template <typename Stub, typename Request, typename Response>
StatusOr<Response> Call(Stub* stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                        const Target& target, const Request& request, int64_t deadline_ms = kCallDeadlineMs) {
  grpc::ClientContext context;
  Prepare(&context, target);
  context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(deadline_ms, GPR_TIMESPAN)));
  Response response;
  if (const grpc::Status status = (stub->*method)(&context, request, &response); !status.ok())
    return FromGrpc(status, target);
  return response;
}

}  // namespace

void StreamStopper::Stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  if (cancel_) cancel_();
}

bool StreamStopper::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

void StreamStopper::Set(std::function<void()> cancel) {
  const std::lock_guard lock(mutex_);
  cancel_ = std::move(cancel);
  if (stopped_ && cancel_) cancel_();
}

Client::Client(const Target& target) : target_(target), stubs_(std::make_unique<Stubs>(Connect(target))) {}
Client::~Client() = default;

StatusOr<v1::CreateJobResponse> Client::CreateJob(const v1::CreateJobRequest& request) {
  return Call(&stubs_->jobs, &v1::JobService::Stub::CreateJob, target_, request);
}

StatusOr<v1::Job> Client::GetJob(const std::string& id) {
  v1::GetJobRequest request;
  request.set_id(id);
  TUTTI_ASSIGN_OR_RETURN(v1::GetJobResponse response,
                         Call(&stubs_->jobs, &v1::JobService::Stub::GetJob, target_, request));
  return std::move(*response.mutable_job());
}

StatusOr<v1::ListJobsResponse> Client::ListJobs(const v1::ListJobsRequest& request) {
  return Call(&stubs_->jobs, &v1::JobService::Stub::ListJobs, target_, request);
}

StatusOr<v1::Job> Client::CancelJob(const std::string& id, bool force, int64_t deadline_ms) {
  v1::CancelJobRequest request;
  request.set_id(id);
  request.set_force(force);
  TUTTI_ASSIGN_OR_RETURN(v1::CancelJobResponse response,
                         Call(&stubs_->jobs, &v1::JobService::Stub::CancelJob, target_, request, deadline_ms));
  return std::move(*response.mutable_job());
}

StatusOr<v1::PlanJobResponse> Client::PlanJob(const v1::PlanJobRequest& request) {
  return Call(&stubs_->jobs, &v1::JobService::Stub::PlanJob, target_, request);
}

StatusOr<v1::ListNodesResponse> Client::ListNodes(const v1::ListNodesRequest& request) {
  return Call(&stubs_->nodes, &v1::NodeService::Stub::ListNodes, target_, request);
}

StatusOr<v1::Node> Client::GetNode(const std::string& name) {
  v1::GetNodeRequest request;
  request.set_name(name);
  TUTTI_ASSIGN_OR_RETURN(v1::GetNodeResponse response,
                         Call(&stubs_->nodes, &v1::NodeService::Stub::GetNode, target_, request));
  return std::move(*response.mutable_node());
}

StatusOr<v1::GetVersionResponse> Client::GetVersion() {
  return Call(&stubs_->version, &v1::SystemService::Stub::GetVersion, target_, v1::GetVersionRequest());
}

Status Client::WatchJobs(const v1::WatchJobsRequest& request, StreamStopper* stopper,
                         const std::function<bool(const v1::WatchJobsResponse&)>& on_event) {
  grpc::ClientContext context;
  Prepare(&context, target_);
  stopper->Set([&] { context.TryCancel(); });
  const auto reader = stubs_->jobs.WatchJobs(&context, request);
  v1::WatchJobsResponse event;
  bool wanted = true;
  while (wanted && reader->Read(&event)) wanted = on_event(event);
  if (!wanted) context.TryCancel();
  const grpc::Status status = reader->Finish();
  stopper->Set(nullptr);
  return !wanted || stopper->stopped() ? OkStatus() : FromGrpc(status, target_);
}

Status Client::ReadLogs(const v1::ReadLogsRequest& request, StreamStopper* stopper,
                        const std::function<bool(const v1::ReadLogsResponse&)>& on_chunk) {
  grpc::ClientContext context;
  Prepare(&context, target_);
  stopper->Set([&] { context.TryCancel(); });
  const auto reader = stubs_->jobs.ReadLogs(&context, request);
  v1::ReadLogsResponse chunk;
  bool wanted = true;
  while (wanted && reader->Read(&chunk)) wanted = on_chunk(chunk);
  if (!wanted) context.TryCancel();
  const grpc::Status status = reader->Finish();
  stopper->Set(nullptr);
  return !wanted || stopper->stopped() ? OkStatus() : FromGrpc(status, target_);
}

}  // namespace tutti::cli
