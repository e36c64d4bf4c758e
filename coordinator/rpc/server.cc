#include "coordinator/rpc/server.h"

#include <grpc/support/time.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <vector>

#include "base/files.h"
#include "base/log.h"
#include "coordinator/rpc/services.h"

namespace tutti::coordinator {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;  // an agent's report of a full node; specs have a limit of their own
constexpr size_t kBackgroundCapacity = 1024;

bool IsUnix(const std::string& listen) { return listen.starts_with("unix:"); }

// Makes the socket's folder private, or refuses one that is not: whoever can reach the socket runs code as us.
Status PrepareSocket(const std::string& path) {
  if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path)) {
    return InvalidArgument("--listen unix:{}: a socket's path has 1 to {} bytes", path,
                           sizeof(sockaddr_un::sun_path) - 1);
  }
  const std::string folder = Dirname(path);
  TUTTI_RETURN_IF_ERROR(MakeDirectories(folder, 0700));
  struct stat info = {};
  if (::stat(folder.c_str(), &info) != 0) return ErrnoStatus(errno, folder);
  if ((info.st_mode & 077) != 0) {
    return FailedPrecondition(
        "--listen unix:{}: folder {} is open to others (mode {:o}); whoever reaches the socket runs code as you: "
        "chmod 700",
        path, folder, info.st_mode & 0777);
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT)
    return ErrnoStatus(errno, path);  // of a predecessor: the state lock is ours
  return OkStatus();
}

// A watched server must see the pings of agents and clients as welcome, however often they come.
void SetKeepalive(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1'000);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // two coordinators on one port would share its clients
}

}  // namespace

Status CheckListen(const std::string& listen) {
  if (listen.empty() || IsUnix(listen)) return OkStatus();
  const size_t colon = listen.rfind(':');
  const std::string host = listen.substr(0, colon);
  const std::string port = colon == listen.npos ? "" : listen.substr(colon + 1);
  const bool digits = !port.empty() && port.size() <= 5 &&
                      std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || std::stoi(port) > 65535) {
    return InvalidArgument("--listen {}: expected 127.0.0.1:PORT (0: any free one) or unix:PATH", listen);
  }
  if (host == "127.0.0.1" || host == "localhost" || host == "[::1]") return OkStatus();
  return InvalidArgument(
      "--listen {}: only loopback addresses (127.0.0.1, [::1], localhost) and unix:PATH are served: off loopback "
      "anyone who reaches the port could run code as you, and encrypted, mutually authenticated connections are not "
      "there yet. For other machines forward the port over SSH",
      listen);
}

struct Server::Impl {
  std::string address;
  std::string token;
  std::unique_ptr<Authenticator> authenticator;
  std::unique_ptr<Shell> shell;
  std::unique_ptr<Strand> background;  // ends before the shell: it posts there
  std::vector<std::unique_ptr<grpc::Service>> services;
  std::unique_ptr<grpc::Server> server;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { Shutdown(); }
const std::string& Server::address() const { return impl_->address; }
const std::string& Server::token() const { return impl_->token; }

StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, Journal* journal, SeriesStore* series,
                                                const Planner* planner, const Clock* clock) {
  TUTTI_RETURN_IF_ERROR(CheckListen(options.listen));
  const std::string listen =
      options.listen.empty() ? "unix:" + JoinPath(options.state_directory, "socket") : options.listen;
  auto impl = std::make_unique<Impl>();
  if (IsUnix(listen)) {
    TUTTI_RETURN_IF_ERROR(PrepareSocket(listen.substr(5)));
  } else {
    TUTTI_ASSIGN_OR_RETURN(impl->token, LoadOrMakeToken(options.state_directory));
  }
  impl->authenticator = std::make_unique<Authenticator>(impl->token);
  TUTTI_ASSIGN_OR_RETURN(impl->shell, Shell::Create(options.core, journal, series, clock));
  impl->background = std::make_unique<Strand>(std::chrono::hours(1), kBackgroundCapacity, [](size_t) {});

  const ServiceContext context{.shell = impl->shell.get(),
                               .background = impl->background.get(),
                               .planner = planner,
                               .authenticator = impl->authenticator.get(),
                               .version = options.version,
                               .state_directory = options.state_directory};
  impl->services.push_back(NewJobService(context));
  impl->services.push_back(NewNodeService(context));
  impl->services.push_back(NewSystemService(context));
  impl->services.push_back(NewAgentService(context));
  grpc::EnableDefaultHealthCheckService(true);
  if (options.reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetKeepalive(&builder);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  for (const auto& service : impl->services) builder.RegisterService(service.get());
  int port = 0;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || (port == 0 && !IsUnix(listen))) {
    return Unavailable("cannot listen on {}: the address is in use or not this machine's", listen);
  }
  impl->address = IsUnix(listen) ? listen : fmt::format("{}:{}", listen.substr(0, listen.rfind(':')), port);
  TUTTI_RETURN_IF_ERROR(WriteFileAtomic(JoinPath(options.state_directory, "address"), impl->address + "\n", 0600));
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

void Server::Shutdown() {
  if (impl_->server == nullptr) return;
  impl_->shell->Post([shell = impl_->shell.get()] { shell->CloseAll(); });
  impl_->server->Shutdown(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(5, GPR_TIMESPAN)));
  impl_->server.reset();
  impl_->background.reset();
  impl_->shell.reset();  // runs what is still queued, and commits it
  impl_->services.clear();
}

}  // namespace tutti::coordinator
