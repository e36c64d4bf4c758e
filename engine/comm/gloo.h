// Ranks on several hosts over gloo's TCP transport: a full mesh, one connection per pair. Plaintext, unauthenticated:
// for trusted networks. Ranks meet without a store: each makes an endpoint, its blob travels through the control plane
// (RankReady.peer_blob, PeerTable), then all connect.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "engine/comm/communicator.h"

namespace tutti {

struct GlooOptions {
  std::string address;  // local address that peers reach: host name or IP; port is the system's choice
  Rank rank;
  int32_t world_size = 1;
  Generation generation{1};  // part of the blob: endpoints of another generation are refused
  Millis timeout{60'000};    // without progress
};

class GlooEndpoint {
 public:
  virtual ~GlooEndpoint() = default;

  // Binds and listens. INVALID_ARGUMENT / UNAVAILABLE: the address does not resolve or is not this host's.
  static StatusOr<std::unique_ptr<GlooEndpoint>> Create(const GlooOptions& options);

  virtual const std::string& blob() const = 0;

  // `blobs` by rank, own one included. Once per endpoint; the endpoint is used up. INVALID_ARGUMENT: a blob is damaged,
  // or of another generation, world or rank. DEADLINE_EXCEEDED names the first rank that could not be reached within
  // `timeout`.
  virtual StatusOr<std::unique_ptr<Communicator>> Connect(std::span<const std::string> blobs, Millis timeout) = 0;
};

}  // namespace tutti
