#include <algorithm>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "coordinator/core/cluster.h"
#include "coordinator/rpc/convert.h"
#include "coordinator/rpc/job_streams.h"
#include "coordinator/rpc/services.h"
#include "tutti/v1/api.grpc.pb.h"

namespace tutti::coordinator {
namespace {

constexpr int32_t kDefaultPage = 50;
constexpr int32_t kLargestPage = 1000;
constexpr size_t kPageBytes = 2 << 20;  // clients receive at most 4 MiB unless told otherwise

grpc::Status Busy() { return ToGrpc(Unavailable("the coordinator is busy: try again")); }

// What the least of the best slots that could hold all ranks has: a plan that fits it can be placed as a gang. As in
// placement, a slot of unknown memory holds anything.
SlotFacts SlotOfGang(const State& state, const v1::JobSpec& spec) {
  constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  SlotFacts facts;
  std::vector<int64_t> memory;
  for (const auto& [name, entry] : state.nodes) {
    if (entry.node.state() == v1::NODE_STATE_LOST) continue;
    for (const v1::Slot& slot : entry.node.slots()) {
      if (slot.device() != spec.resources().device() || slot.cores_size() < spec.resources().cores_per_rank()) continue;
      memory.push_back(slot.memory_bytes() > 0 ? slot.memory_bytes() : kUnknown);
      if (facts.cores == 0 || slot.cores_size() < facts.cores) facts.cores = slot.cores_size();
    }
  }
  std::ranges::sort(memory, std::greater<>());
  const size_t ranks = static_cast<size_t>(std::max<int64_t>(1, spec.resources().ranks()));
  if (!memory.empty()) facts.memory_bytes = memory[std::min(ranks, memory.size()) - 1];
  if (facts.memory_bytes == kUnknown) facts.memory_bytes = 0;
  return facts;
}

// Ids ascend with creation and the newest comes first: the token is the id before which the next page begins.
void FillPage(const State& state, const v1::ListJobsRequest& request, const JobFilter& filter,
              v1::ListJobsResponse* response) {
  const int32_t asked = request.page_size() == 0 ? kDefaultPage : request.page_size();
  const int32_t limit = std::min(asked, kLargestPage);
  size_t bytes = 0;
  auto it = request.page_token().empty() ? state.jobs.end() : state.jobs.lower_bound(request.page_token());
  while (it != state.jobs.begin()) {
    --it;
    if (!Matches(filter, it->second.job())) continue;
    bytes += it->second.job().ByteSizeLong();
    if (response->jobs_size() >= limit || (response->jobs_size() > 0 && bytes > kPageBytes)) {
      response->set_next_page_token(response->jobs(response->jobs_size() - 1).id());
      return;
    }
    *response->add_jobs() = it->second.job();
  }
}

class JobServiceImpl : public v1::JobService::CallbackService {
 public:
  explicit JobServiceImpl(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* CreateJob(grpc::CallbackServerContext* call, const v1::CreateJobRequest* request,
                                      v1::CreateJobResponse* response) override {
    grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
    if (grpc::Status allowed = context_.authenticator->Check(*call); !allowed.ok()) return Finished(reactor, allowed);
    if (const auto wrong = CheckCreate(*request); !wrong.empty()) return Finished(reactor, BadRequest(wrong));
    const bool taken = context_.shell->TryPost([this, reactor, request, response] {
      const State& state = context_.shell->state();
      const bool known = state.job_of_uid.contains(request->uid()) && !request->validate_only();
      if (known || !request->has_data()) return Decide(reactor, request, response, nullptr);
      const SlotFacts slot = SlotOfGang(state, request->spec());
      const bool planned = context_.background->TryPost([this, reactor, request, response, slot] {
        const auto plan = context_.planner->Plan(request->spec(), request->data(), slot);
        if (!plan.ok()) return reactor->Finish(ToGrpc(plan.status()));
        const Status fits = context_.planner->CheckFits(request->spec(), request->data(), slot, *plan);
        if (!fits.ok()) return reactor->Finish(ToGrpc(fits));
        auto shared = std::make_shared<v1::TrainPlan>(*plan);
        context_.shell->Post(
            [this, reactor, request, response, shared] { Decide(reactor, request, response, shared.get()); });
      });
      if (!planned) reactor->Finish(Busy());
    });
    if (!taken) reactor->Finish(Busy());
    return reactor;
  }

  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* call, const v1::GetJobRequest* request,
                                   v1::GetJobResponse* response) override {
    return OnStrand(call, [request, response](const State& state) {
      const StatusOr<const JobEntry*> job = FindJob(state, request->id());
      if (job.ok()) *response->mutable_job() = (*job)->job();
      return ToGrpc(job.status());
    });
  }

  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* call, const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override {
    return OnStrand(call, [request, response](const State& state) {
      if (request->page_size() < 0)
        return BadRequest({{"page_size", fmt::format("{} is negative", request->page_size())}});
      const StatusOr<JobFilter> filter = ParseFilter(request->filter());
      if (!filter.ok()) return BadRequest({{"filter", Message(filter.status())}});
      FillPage(state, *request, *filter, response);
      return grpc::Status::OK;
    });
  }

  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* call, const v1::CancelJobRequest* request,
                                      v1::CancelJobResponse* response) override {
    grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
    if (grpc::Status allowed = context_.authenticator->Check(*call); !allowed.ok()) return Finished(reactor, allowed);
    const bool taken = context_.shell->TryPost([this, reactor, request, response] {
      const StatusOr<const JobEntry*> job = FindJob(context_.shell->state(), request->id());
      if (!job.ok()) return reactor->Finish(ToGrpc(job.status()));
      const tutti::coordinator::CancelJob event{.request = 0, .id = (*job)->job().id(), .force = request->force()};
      context_.shell->Cancel(event, [reactor, response](const Reply& reply) {
        if (reply.status.ok()) *response->mutable_job() = reply.job;
        reactor->Finish(ToGrpc(reply.status));
      });
    });
    if (!taken) reactor->Finish(Busy());
    return reactor;
  }

  grpc::ServerUnaryReactor* PlanJob(grpc::CallbackServerContext* call, const v1::PlanJobRequest* request,
                                    v1::PlanJobResponse* response) override {
    grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
    if (grpc::Status allowed = context_.authenticator->Check(*call); !allowed.ok()) return Finished(reactor, allowed);
    auto wrong = CheckSpec(request->has_spec() ? &request->spec() : nullptr);
    if (!request->has_data()) wrong.push_back({"data", "missing: read it from the headers of the data sets"});
    if (!wrong.empty()) return Finished(reactor, BadRequest(wrong));
    const bool taken = context_.shell->TryPost([this, reactor, request, response] {
      const State& state = context_.shell->state();
      const SlotFacts slot = SlotOfGang(state, request->spec());
      const std::vector<Decision> decisions = Schedule(ViewCluster(state), {RequestOf("", request->spec(), 0)});
      response->set_can_ever_run(decisions.front().can_ever_run);
      response->set_reason(decisions.front().message);
      const bool planned = context_.background->TryPost([this, reactor, request, response, slot] {
        const auto plan = context_.planner->Plan(request->spec(), request->data(), slot);
        if (!plan.ok()) return reactor->Finish(ToGrpc(plan.status()));
        *response->mutable_plan() = *plan;
        const Status fits = context_.planner->CheckFits(request->spec(), request->data(), slot, *plan);
        response->set_fits(fits.ok());
        if (!fits.ok()) {
          response->set_can_ever_run(false);
          response->set_reason(Message(fits));
        }
        reactor->Finish(grpc::Status::OK);
      });
      if (!planned) reactor->Finish(Busy());
    });
    if (!taken) reactor->Finish(Busy());
    return reactor;
  }

  grpc::ServerWriteReactor<v1::WatchJobsResponse>* WatchJobs(grpc::CallbackServerContext* call,
                                                             const v1::WatchJobsRequest* request) override {
    return NewWatchCall(context_.shell, *request, context_.authenticator->Check(*call));
  }
  grpc::ServerWriteReactor<v1::ReadLogsResponse>* ReadLogs(grpc::CallbackServerContext* call,
                                                           const v1::ReadLogsRequest* request) override {
    return NewLogsCall(context_.shell, *request, context_.authenticator->Check(*call));
  }
  grpc::ServerWriteReactor<v1::ReadMetricsResponse>* ReadMetrics(grpc::CallbackServerContext* call,
                                                                 const v1::ReadMetricsRequest* request) override {
    return NewMetricsCall(context_.shell, context_.background, *request, context_.authenticator->Check(*call));
  }

 private:
  static grpc::ServerUnaryReactor* Finished(grpc::ServerUnaryReactor* reactor, const grpc::Status& status) {
    reactor->Finish(status);
    return reactor;
  }

  template <typename Function>
  grpc::ServerUnaryReactor* OnStrand(grpc::CallbackServerContext* call, Function function) {
    grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
    if (grpc::Status allowed = context_.authenticator->Check(*call); !allowed.ok()) return Finished(reactor, allowed);
    const bool taken =
        context_.shell->TryPost([this, reactor, function] { reactor->Finish(function(context_.shell->state())); });
    if (!taken) reactor->Finish(Busy());
    return reactor;
  }

  // On the strand: `plan` is nullptr where none could be made.
  void Decide(grpc::ServerUnaryReactor* reactor, const v1::CreateJobRequest* request, v1::CreateJobResponse* response,
              const v1::TrainPlan* plan) {
    if (plan != nullptr) *response->mutable_plan() = *plan;
    if (request->validate_only()) {
      *response->mutable_job()->mutable_spec() = request->spec();
      response->mutable_job()->set_uid(request->uid());
      return reactor->Finish(grpc::Status::OK);
    }
    tutti::coordinator::CreateJob event;
    event.id = NextId();
    event.uid = request->uid();
    event.digest = SpecDigest(request->spec());
    event.spec = request->spec();
    event.has_plan = plan != nullptr;
    if (plan != nullptr) event.plan = *plan;
    context_.shell->Create(std::move(event), [reactor, response](const Reply& reply) {
      if (reply.status.ok()) {
        *response->mutable_job() = reply.job;
        *response->mutable_plan() = reply.job.status().plan();
      }
      reactor->Finish(ToGrpc(reply.status));
    });
  }

  // Ids ascend with creation: two of one millisecond, or a clock that was set back, must not turn the queue around.
  std::string NextId() const {
    std::string id = NewUlid();
    const State& state = context_.shell->state();
    if (state.jobs.empty() || id > state.jobs.rbegin()->first) return id;
    static constexpr std::string_view kAlphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    id = state.jobs.rbegin()->first;
    for (size_t i = id.size(); i-- > 0;) {
      const size_t digit = kAlphabet.find(id[i]);
      if (digit + 1 < kAlphabet.size()) {
        id[i] = kAlphabet[digit + 1];
        break;
      }
      id[i] = kAlphabet[0];
    }
    return id;
  }

  const ServiceContext context_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewJobService(const ServiceContext& context) {
  return std::make_unique<JobServiceImpl>(context);
}

}  // namespace tutti::coordinator
