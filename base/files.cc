#include "base/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

namespace tutti {
namespace {

// A name in the folder of `path` that no other thread or process uses.
std::string TemporaryName(const std::string& path) {
  static std::atomic<uint64_t> counter{0};
  return fmt::format("{}.tmp-{}-{}", path, ::getpid(), counter.fetch_add(1));
}

Status WriteDurable(const std::string& path, std::string_view content, int mode) {
  TUTTI_ASSIGN_OR_RETURN(const UniqueFd fd, CreateFile(path, mode));
  Status status = Annotate(WriteAll(fd.get(), content), path);
  if (status.ok()) status = Fsync(fd.get(), path);
  if (!status.ok()) ::unlink(path.c_str());
  return status;
}

}  // namespace

StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  TUTTI_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", path));
  if (S_ISDIR(info.st_mode)) return ErrnoStatus(EISDIR, fmt::format("read {}", path));
  if (info.st_size > max_bytes) {
    return ResourceExhausted("{} has {} bytes, at most {} are read", path, info.st_size, max_bytes);
  }
  std::string content;
  content.reserve(static_cast<size_t>(info.st_size));
  char buffer[1 << 16];
  while (true) {  // bounded by max_bytes: files of /proc say size 0
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, fmt::format("read {}", path));
    if (n == 0) return content;
    content.append(buffer, static_cast<size_t>(n));
    if (static_cast<int64_t>(content.size()) > max_bytes) {
      return ResourceExhausted("{} has more than {} bytes", path, max_bytes);
    }
  }
}

Status WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, "write");
    }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return OkStatus();
}

Status Fsync(int fd, std::string_view path) {
  if (::fsync(fd) != 0) return ErrnoStatus(errno, fmt::format("fsync {}", path));
  return OkStatus();
}

Status FsyncDirectory(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  return Fsync(fd.get(), path);
}

StatusOr<UniqueFd> CreateFile(const std::string& path, int mode) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("create {}", path));
  return fd;
}

StatusOr<UniqueFd> OpenFile(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  return fd;
}

Status ReadAt(int fd, void* out, size_t bytes, int64_t offset, std::string_view path) {
  auto* next = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd, next, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, fmt::format("read {}", path));
    if (n == 0) return DataLoss("{} ends at byte {}, {} more were expected", path, offset, bytes);
    next += n, offset += n, bytes -= static_cast<size_t>(n);
  }
  return OkStatus();
}

Status RenamePath(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return ErrnoStatus(errno, fmt::format("rename {} to {}", from, to));
  return OkStatus();
}

Status RemoveFile(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, fmt::format("remove {}", path));
  return OkStatus();
}

Status ReplaceSymlink(const std::string& target, const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0 && !S_ISLNK(info.st_mode)) {
    return FailedPrecondition("{} is there and is no symbolic link", path);
  }
  const std::string temporary = TemporaryName(path);
  if (::symlink(target.c_str(), temporary.c_str()) != 0) return ErrnoStatus(errno, fmt::format("link {}", temporary));
  if (Status status = RenamePath(temporary, path); !status.ok()) {
    ::unlink(temporary.c_str());
    return status;
  }
  return OkStatus();
}

Status WriteFileAtomic(const std::string& path, std::string_view content, int mode) {
  const std::string temporary = TemporaryName(path);
  TUTTI_RETURN_IF_ERROR(WriteDurable(temporary, content, mode));
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return ErrnoStatus(error, fmt::format("rename {} to {}", temporary, path));
  }
  return FsyncDirectory(Dirname(path));
}

Status CreateFileExclusive(const std::string& path, std::string_view content, int mode) {
  const std::string temporary = TemporaryName(path);
  TUTTI_RETURN_IF_ERROR(WriteDurable(temporary, content, mode));
  const int result = ::link(temporary.c_str(), path.c_str());
  const int error = errno;
  ::unlink(temporary.c_str());
  if (result != 0) return ErrnoStatus(error, fmt::format("create {}", path));
  return FsyncDirectory(Dirname(path));
}

Status MakeDirectories(const std::string& path, int mode) {
  if (path.empty()) return InvalidArgument("make a folder: the path is empty");
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), static_cast<mode_t>(mode)) != 0 && errno != EEXIST) {
      return ErrnoStatus(errno, fmt::format("make folder {}", part));
    }
    if (end == std::string::npos) break;
  }
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", path));
  if (!S_ISDIR(info.st_mode)) return ErrnoStatus(ENOTDIR, fmt::format("make folder {}", path));
  return OkStatus();
}

StatusOr<std::vector<std::string>> ListDirectory(const std::string& path) {
  DIR* dir = ::opendir(path.c_str());
  if (dir == nullptr) return ErrnoStatus(errno, fmt::format("list {}", path));
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return ErrnoStatus(error.value(), fmt::format("remove {}", path));
  return OkStatus();
}

bool FileExists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

StatusOr<int64_t> FileSize(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, fmt::format("stat {}", path));
  return static_cast<int64_t>(info.st_size);
}

std::string JoinPath(std::string_view a, std::string_view b) {
  if (a.empty()) return std::string(b);
  if (b.empty()) return std::string(a);
  return a.back() == '/' ? fmt::format("{}{}", a, b) : fmt::format("{}/{}", a, b);
}

std::string Dirname(std::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return slash == 0 ? "/" : std::string(path.substr(0, slash));
}

std::string Basename(std::string_view path) {
  const size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

StatusOr<std::string> AbsolutePath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return ErrnoStatus(error.value(), fmt::format("make {} absolute", path));
  return absolute.lexically_normal().string();
}

StatusOr<UniqueFd> OpenBeneath(int root_fd, const std::string& relative) {
  if (relative.find('\0') != std::string::npos) return PermissionDenied("a path with a NUL byte is refused");
  open_how how{};
  how.flags = O_RDONLY | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  const long fd = ::syscall(SYS_openat2, root_fd, relative.c_str(), &how, sizeof how);
  if (fd >= 0) return UniqueFd(static_cast<int>(fd));
  if (errno == EXDEV || errno == ELOOP) return PermissionDenied("{} leaves the folder that it must stay in", relative);
  return ErrnoStatus(errno, fmt::format("open {}", relative));
}

StatusOr<UniqueFd> LockFile(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", path));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, fmt::format("lock {}", path));
    char holder[32] = {};
    const ssize_t n = ::pread(fd.get(), holder, sizeof holder - 1, 0);
    return FailedPrecondition("{} is locked by {}", path,
                              n > 0 ? fmt::format("process {}", std::atoi(holder)) : "another process");
  }
  const std::string pid = fmt::format("{}\n", ::getpid());
  if (::ftruncate(fd.get(), 0) != 0 || ::pwrite(fd.get(), pid.data(), pid.size(), 0) < 0) {
    return ErrnoStatus(errno, fmt::format("write {}", path));
  }
  return fd;
}

StatusOr<TempDirectory> TempDirectory::Create(std::string_view prefix) {
  const char* parent = std::getenv("TMPDIR");
  std::string path = fmt::format("{}/{}XXXXXX", parent != nullptr ? parent : "/tmp", prefix);
  if (::mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, fmt::format("make folder {}", path));
  return TempDirectory(std::move(path));
}

TempDirectory::~TempDirectory() {
  if (path_.empty()) return;
  std::error_code ignored;  // a destructor cannot report, and the folder is under the system's temporary one
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace tutti
