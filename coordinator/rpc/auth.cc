#include "coordinator/rpc/auth.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "base/files.h"

namespace tutti::coordinator {
namespace {

constexpr size_t kTokenBytes = 32;
constexpr std::string_view kScheme = "Bearer ";

// In time that does not depend on where they differ.
bool Equal(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

grpc::Status Authenticator::Check(const grpc::ServerContextBase& context) const {
  if (token_.empty()) return grpc::Status::OK;
  const auto [begin, end] = context.client_metadata().equal_range("authorization");
  for (auto it = begin; it != end; ++it) {
    const std::string_view value(it->second.data(), it->second.size());
    if (value.starts_with(kScheme) && Equal(value.substr(kScheme.size()), token_)) return grpc::Status::OK;
  }
  return grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                      begin == end
                          ? "no token: give the file `token` of the coordinator's state directory with --token-file or "
                            "TUTTI_TOKEN_FILE (metadata 'authorization: Bearer TOKEN')"
                          : "the token is not this coordinator's");
}

StatusOr<std::string> LoadOrMakeToken(const std::string& directory) {
  const std::string path = JoinPath(directory, "token");
  if (!FileExists(path)) {
    unsigned char bytes[kTokenBytes];
    if (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes))
      return ErrnoStatus(errno, "random bytes");
    std::string token;
    for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
    TUTTI_RETURN_IF_ERROR(WriteFileAtomic(path, token + "\n", 0600));
  }
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if ((info.st_mode & 077) != 0)
    return FailedPrecondition("{} can be read by others (mode {:o}): chmod 600", path, info.st_mode & 0777);
  TUTTI_ASSIGN_OR_RETURN(std::string token, ReadFile(path, 4096));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (token.size() < kTokenBytes)
    return InvalidArgument("{}: {} characters are no token; at least {}", path, token.size(), kTokenBytes);
  return token;
}

}  // namespace tutti::coordinator
