#include "worker/launch/local_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

namespace tutti::worker {
namespace {

struct Address {
  UniqueFd directory;
  sockaddr_un value{};
};

StatusOr<Address> AddressOf(const std::string& directory, const std::string& name) {
  Address address;
  address.directory.Reset(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!address.directory.valid()) return ErrnoStatus(errno, fmt::format("open {}", directory));
  const std::string path = fmt::format("/proc/self/fd/{}/{}", address.directory.get(), name);
  if (path.size() >= sizeof address.value.sun_path) return InvalidArgument("socket name '{}' is too long", name);
  address.value.sun_family = AF_UNIX;
  std::memcpy(address.value.sun_path, path.c_str(), path.size() + 1);
  return address;
}

}  // namespace

Status SetNonBlocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
    return ErrnoStatus(errno, "make a descriptor non-blocking");
  return OkStatus();
}

StatusOr<UniqueFd> ListenLocal(const std::string& directory, const std::string& name) {
  TUTTI_ASSIGN_OR_RETURN(const Address address, AddressOf(directory, name));
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "make a Unix socket");
  ::unlinkat(address.directory.get(), name.c_str(), 0);
  ::fchmod(socket.get(), 0600);  // before bind: the file never has wider permissions
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.value), sizeof address.value) != 0) {
    return ErrnoStatus(errno, fmt::format("bind {}/{}", directory, name));
  }
  if (::listen(socket.get(), 8) != 0) return ErrnoStatus(errno, fmt::format("listen on {}/{}", directory, name));
  return socket;
}

StatusOr<UniqueFd> ConnectLocal(const std::string& directory, const std::string& name) {
  TUTTI_ASSIGN_OR_RETURN(const Address address, AddressOf(directory, name));
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "make a Unix socket");
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.value), sizeof address.value) != 0) {
    if (errno == ECONNREFUSED) return Unavailable("nobody listens on {}/{}", directory, name);
    return ErrnoStatus(errno, fmt::format("connect to {}/{}", directory, name));
  }
  return socket;
}

}  // namespace tutti::worker
