// Who may call. Behind a Unix socket in a private folder everyone is the owner; on loopback TCP each call must carry
// the token.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "base/status.h"

namespace tutti::coordinator {

class Authenticator {
 public:
  explicit Authenticator(std::string token) : token_(std::move(token)) {}  // empty: everyone may call

  // OK or UNAUTHENTICATED. Every method of every service asks first (tests/coordinator/rpc holds them to it).
  grpc::Status Check(const grpc::ServerContextBase& context) const;

 private:
  const std::string token_;
};

// The token in `directory`/token, made there (0600) from 32 random bytes when it is absent.
StatusOr<std::string> LoadOrMakeToken(const std::string& directory);

}  // namespace tutti::coordinator
