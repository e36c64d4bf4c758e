#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>

#include "base/files.h"
#include "coordinator/store/journal.h"

namespace tutti::coordinator {

class StateLock {
 public:
  explicit StateLock(UniqueFd fd) : fd_(std::move(fd)) {}

 private:
  UniqueFd fd_;
};

const char* NetworkFileSystemName(int64_t magic) {
  switch (magic) {
    case 0x6969:
      return "NFS";
    case 0x517B:
      return "SMB";
    case 0xFF534D42:
      return "CIFS";
    case 0xFE534D42:
      return "SMB2";
    case 0x5346414F:
      return "AFS";
    case 0x73757245:
      return "Coda";
    case 0x01021997:
      return "9P";
    case 0x00C36400:
      return "Ceph";
    case 0x0BD00BD0:
      return "Lustre";
    case 0x47504653:
      return "GPFS";
    default:
      return nullptr;
  }
}

StatusOr<std::shared_ptr<StateLock>> LockStateDirectory(const std::string& directory) {
  TUTTI_RETURN_IF_ERROR(MakeDirectories(directory, 0700));
  struct statfs fs = {};
  if (::statfs(directory.c_str(), &fs) != 0) return ErrnoStatus(errno, directory);
  if (const char* name = NetworkFileSystemName(static_cast<uint32_t>(fs.f_type)); name != nullptr) {
    return FailedPrecondition(
        "state directory {} lies on {}: its locks and flushes cannot be trusted; use a local disk", directory, name);
  }
  if (::chmod(directory.c_str(), 0700) != 0) return ErrnoStatus(errno, directory);
  auto lock = LockFile(JoinPath(directory, "lock"));
  if (!lock.ok()) return Annotate(lock.status(), "another coordinator runs here");
  return std::make_shared<StateLock>(*std::move(lock));
}

}  // namespace tutti::coordinator
