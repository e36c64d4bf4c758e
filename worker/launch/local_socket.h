// Unix sockets by folder and name: the path may be longer than sun_path (108 bytes), as the folder is reached by
// descriptor.
#pragma once

#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti::worker {

// A listening, non-blocking stream socket named `name` in `directory`; a stale one of that name is replaced. Mode 0600.
StatusOr<UniqueFd> ListenLocal(const std::string& directory, const std::string& name);

// A connected, blocking stream socket. UNAVAILABLE when nobody listens, NOT_FOUND when there is no such socket.
StatusOr<UniqueFd> ConnectLocal(const std::string& directory, const std::string& name);

Status SetNonBlocking(int fd);

}  // namespace tutti::worker
