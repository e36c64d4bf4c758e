// The listening side: address, token, gRPC server with the services, health and reflection.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "coordinator/core/state.h"
#include "coordinator/rpc/planner.h"
#include "coordinator/store/journal.h"
#include "coordinator/store/series.h"

namespace tutti::coordinator {

struct ServerOptions {
  std::string state_directory;  // locked by the caller
  std::string listen;  // "127.0.0.1:PORT" (0: any), "[::1]:PORT", "localhost:PORT", "unix:PATH"; empty: unix:DIR/socket
  bool reflection = false;
  std::string version;
  Options core;
};

class Server {
 public:
  // Serves on return; the address with the real port stands in state_directory/address. INVALID_ARGUMENT: an address
  // that is not loopback, or malformed. `journal`, `series`, `planner` and `clock` must outlive the server.
  static StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options, Journal* journal, SeriesStore* series,
                                                 const Planner* planner, const Clock* clock);
  ~Server();  // as Shutdown

  const std::string& address() const;
  const std::string& token() const;  // empty on a Unix socket

  // Ends all streams in order, waits for the calls that run, commits what is queued. Agents and ranks go on.
  void Shutdown();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Checks `listen` as Start does, without listening: OK, or why it is refused.
Status CheckListen(const std::string& listen);

}  // namespace tutti::coordinator
