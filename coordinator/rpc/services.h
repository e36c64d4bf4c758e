// The services that clients and agents call, on gRPC's callback API. Each method authenticates, then works on the
// shell's strand.
#pragma once

#include <memory>
#include <string>

#include "coordinator/rpc/auth.h"
#include "coordinator/rpc/planner.h"
#include "coordinator/rpc/shell.h"

namespace grpc {
class Service;
}

namespace tutti::coordinator {

struct ServiceContext {
  Shell* shell = nullptr;
  Strand* background = nullptr;  // planning and file reading: never on the shell's strand
  const Planner* planner = nullptr;
  const Authenticator* authenticator = nullptr;
  std::string version;
  std::string state_directory;
};

std::unique_ptr<grpc::Service> NewJobService(const ServiceContext& context);
std::unique_ptr<grpc::Service> NewNodeService(const ServiceContext& context);
std::unique_ptr<grpc::Service> NewSystemService(const ServiceContext& context);
std::unique_ptr<grpc::Service> NewAgentService(const ServiceContext& context);

}  // namespace tutti::coordinator
