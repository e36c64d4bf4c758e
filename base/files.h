// The only door to the file system. All calls are thread-safe; all paths are UTF-8; errors name the path.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti {

// Whole file as bytes. RESOURCE_EXHAUSTED when it is larger than `max_bytes`, before anything is allocated.
StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes = int64_t{1} << 30);

// Replaces `path` so that after a crash at any instant either the old or the new content is there: temporary file in
// the same folder, write, fsync, rename, fsync of the folder. `mode` is the new file's permission bits.
Status WriteFileAtomic(const std::string& path, std::string_view content, int mode = 0644);

// Creates `path` with `content` only if it is absent (link(2)), durable on return. ALREADY_EXISTS when another was
// first.
Status CreateFileExclusive(const std::string& path, std::string_view content, int mode = 0644);

// A new file for writing; ALREADY_EXISTS when `path` is there. An existing file for reading.
StatusOr<UniqueFd> CreateFile(const std::string& path, int mode = 0644);
StatusOr<UniqueFd> OpenFile(const std::string& path);
// Exactly `bytes` bytes from `offset`. DATA_LOSS when the file ends before.
Status ReadAt(int fd, void* out, size_t bytes, int64_t offset, std::string_view path);
Status RenamePath(const std::string& from, const std::string& to);     // rename(2); durable after FsyncDirectory
Status RemoveFile(const std::string& path);                            // OK when absent
// `path` becomes a symbolic link to `target` in one step, whatever link was there. FAILED_PRECONDITION when it is no link.
Status ReplaceSymlink(const std::string& target, const std::string& path);

Status WriteAll(int fd, std::string_view bytes);  // retries short writes and EINTR
Status Fsync(int fd, std::string_view path);
Status FsyncDirectory(const std::string& path);
Status MakeDirectories(const std::string& path, int mode = 0755);           // as mkdir -p; OK when there
StatusOr<std::vector<std::string>> ListDirectory(const std::string& path);  // names, byte-wise sorted, without . and ..
Status RemoveTree(const std::string& path);                                 // as rm -rf; OK when absent
bool FileExists(const std::string& path);
StatusOr<int64_t> FileSize(const std::string& path);

std::string JoinPath(std::string_view a, std::string_view b);
std::string Dirname(std::string_view path);
std::string Basename(std::string_view path);
StatusOr<std::string> AbsolutePath(const std::string& path);  // against the working directory; no symlink resolution

// Opens `relative` beneath the open folder `root_fd` for reading; refuses (PERMISSION_DENIED) whatever leaves it: "..",
// absolute paths, symbolic links that point outside (openat2 RESOLVE_BENEATH).
StatusOr<UniqueFd> OpenBeneath(int root_fd, const std::string& relative);

// A host-wide lock that lives as long as the descriptor (or a process that inherited it): flock(2). FAILED_PRECONDITION
// when it is held; the message has the holder's pid where the file says it. The descriptor is close-on-exec.
StatusOr<UniqueFd> LockFile(const std::string& path);

// A fresh private folder (0700) under TMPDIR or /tmp, removed with all content when the object is dropped.
class TempDirectory {
 public:
  static StatusOr<TempDirectory> Create(std::string_view prefix);
  TempDirectory(TempDirectory&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  TempDirectory& operator=(TempDirectory&&) = delete;
  ~TempDirectory();
  const std::string& path() const { return path_; }

 private:
  explicit TempDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace tutti
