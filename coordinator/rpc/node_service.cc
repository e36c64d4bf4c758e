#include <algorithm>

#include "coordinator/rpc/convert.h"
#include "coordinator/rpc/services.h"
#include "tutti/v1/api.grpc.pb.h"

namespace tutti::coordinator {
namespace {

constexpr int32_t kDefaultPage = 100;
constexpr int32_t kLargestPage = 1000;

template <typename Function>
grpc::ServerUnaryReactor* OnStrand(const ServiceContext& context, grpc::CallbackServerContext* call,
                                   Function function) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  if (const grpc::Status allowed = context.authenticator->Check(*call); !allowed.ok()) {
    reactor->Finish(allowed);
    return reactor;
  }
  Shell* shell = context.shell;
  const bool taken = shell->TryPost([shell, reactor, function] { reactor->Finish(function(shell->state())); });
  if (!taken) reactor->Finish(ToGrpc(Unavailable("the coordinator is busy: try again")));
  return reactor;
}

class NodeServiceImpl : public v1::NodeService::CallbackService {
 public:
  explicit NodeServiceImpl(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* ListNodes(grpc::CallbackServerContext* call, const v1::ListNodesRequest* request,
                                      v1::ListNodesResponse* response) override {
    return OnStrand(context_, call, [request, response](const State& state) {
      if (request->page_size() < 0)
        return BadRequest({{"page_size", fmt::format("{} is negative", request->page_size())}});
      const int32_t limit = request->page_size() == 0 ? kDefaultPage : std::min(request->page_size(), kLargestPage);
      for (auto it = state.nodes.upper_bound(request->page_token()); it != state.nodes.end(); ++it) {
        if (response->nodes_size() == limit) {
          response->set_next_page_token(response->nodes(limit - 1).name());
          break;
        }
        *response->add_nodes() = DescribeNode(state, it->second);
      }
      return grpc::Status::OK;
    });
  }

  grpc::ServerUnaryReactor* GetNode(grpc::CallbackServerContext* call, const v1::GetNodeRequest* request,
                                    v1::GetNodeResponse* response) override {
    return OnStrand(context_, call, [request, response](const State& state) {
      const auto it = state.nodes.find(request->name());
      if (it == state.nodes.end()) return ToGrpc(NotFound("there is no node '{}'", request->name().substr(0, 64)));
      *response->mutable_node() = DescribeNode(state, it->second);
      return grpc::Status::OK;
    });
  }

 private:
  const ServiceContext context_;
};

class SystemServiceImpl : public v1::SystemService::CallbackService {
 public:
  explicit SystemServiceImpl(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* GetVersion(grpc::CallbackServerContext* call, const v1::GetVersionRequest*,
                                       v1::GetVersionResponse* response) override {
    return OnStrand(context_, call, [this, response](const State& state) {
      response->set_version(context_.version);
      response->set_term(state.meta.term());
      response->set_state_directory(context_.state_directory);
      return grpc::Status::OK;
    });
  }

 private:
  const ServiceContext context_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewNodeService(const ServiceContext& context) {
  return std::make_unique<NodeServiceImpl>(context);
}
std::unique_ptr<grpc::Service> NewSystemService(const ServiceContext& context) {
  return std::make_unique<SystemServiceImpl>(context);
}

}  // namespace tutti::coordinator
