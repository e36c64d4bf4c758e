#include "worker/probe/slot_lock.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>

#include "base/files.h"

namespace tutti::worker {

StatusOr<std::string> DefaultLockDirectory() {
  const std::string shared = "/run/tutti";
  if (MakeDirectories(shared).ok() && ::access(shared.c_str(), W_OK) == 0) return shared;
  const std::string own = fmt::format("/tmp/tutti-devices-{}", ::getuid());
  TUTTI_RETURN_IF_ERROR(MakeDirectories(own, 0700));
  struct stat info {};
  if (::lstat(own.c_str(), &info) != 0) return ErrnoStatus(errno, fmt::format("look at {}", own));
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::getuid()) {
    return PermissionDenied("{} is not our own folder: remove it or give --lock-dir", own);
  }
  return own;
}

StatusOr<SlotLocks> SlotLocks::Create(std::string directory, const std::vector<v1::Slot>& slots) {
  TUTTI_RETURN_IF_ERROR(MakeDirectories(directory));
  SlotLocks locks;
  std::map<int32_t, int> users;
  for (const v1::Slot& slot : slots) {
    Entry entry{slot.id(), {}};
    for (const int32_t core : slot.cores()) {
      const int layer = users[core]++;
      entry.paths.push_back(
          JoinPath(directory, layer == 0 ? fmt::format("core-{}", core) : fmt::format("core-{}.{}", core, layer)));
    }
    locks.entries_.push_back(std::move(entry));
  }
  return locks;
}

const SlotLocks::Entry* SlotLocks::Find(const std::string& slot_id) const {
  for (const Entry& entry : entries_) {
    if (entry.slot_id == slot_id) return &entry;
  }
  return nullptr;
}

StatusOr<std::vector<UniqueFd>> SlotLocks::Lock(const std::string& slot_id, Nanos patience) const {
  const Entry* entry = Find(slot_id);
  if (entry == nullptr) return NotFound("there is no slot '{}'", slot_id);
  const Nanos deadline = SystemClock().Monotonic() + patience;
  std::vector<UniqueFd> held;
  for (const std::string& path : entry->paths) {
    auto lock = LockFile(path);
    while (!lock.ok() && lock.status().code() == absl::StatusCode::kFailedPrecondition &&
           SystemClock().Monotonic() < deadline) {
      ::poll(nullptr, 0, 5);
      lock = LockFile(path);
    }
    if (!lock.ok()) return Annotate(lock.status(), fmt::format("slot {} is in use on this host", slot_id));
    held.push_back(*std::move(lock));
  }
  return held;
}

bool SlotLocks::IsLocked(const std::string& slot_id) const {
  const Entry* entry = Find(slot_id);
  if (entry == nullptr) return false;
  for (const std::string& path : entry->paths) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) continue;  // never locked by anyone
    if (::flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) return true;
  }
  return false;
}

}  // namespace tutti::worker
