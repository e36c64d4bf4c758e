#include "worker/rpc/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/files.h"
#include "worker/launch/layout.h"

namespace tutti::worker {
namespace {

Status Fill(const std::string& state_directory, const v1::ReadLog& request, v1::LogChunk* chunk) {
  const RunKey key{request.job_id(), request.generation()};
  TUTTI_ASSIGN_OR_RETURN(const std::string path, RankLogPath(key, request.rank()));
  if (!FileExists(JoinPath(RunDirectory(state_directory, key), kRecordFile))) {
    return NotFound("{} never ran on this node, or its logs were removed", ToString(key));
  }
  const std::string root_path = JobsDirectory(state_directory);
  const UniqueFd root(::open(root_path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid()) return ErrnoStatus(errno, fmt::format("open {}", root_path));
  // Looked at before the size: a rank that ends in between is asked again.
  chunk->set_ended(FileExists(JoinPath(RunDirectory(state_directory, key), RankExitFile(request.rank()))));
  const auto file = OpenBeneath(root.get(), path);
  if (!file.ok() && file.status().code() == absl::StatusCode::kNotFound) return OkStatus();
  if (!file.ok()) return file.status();
  struct stat info {};
  if (::fstat(file->get(), &info) != 0) return ErrnoStatus(errno, fmt::format("look at {}", path));
  const int64_t size = info.st_size;
  const int64_t begin =
      request.offset() < 0 ? std::max<int64_t>(0, size + request.offset()) : std::min<int64_t>(request.offset(), size);
  const int64_t most = request.max_bytes() > 0 ? std::min(request.max_bytes(), kMaxLogChunkBytes) : kMaxLogChunkBytes;
  std::string data(static_cast<size_t>(std::min(most, size - begin)), '\0');
  size_t done = 0;
  while (done < data.size()) {
    const ssize_t n = ::pread(file->get(), data.data() + done, data.size() - done, begin + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, fmt::format("read {}", path));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  data.resize(done);
  chunk->set_offset(begin);
  chunk->set_size(size);
  chunk->set_data(std::move(data));
  return OkStatus();
}

}  // namespace

v1::LogChunk ReadRankLogChunk(const std::string& state_directory, const v1::ReadLog& request) {
  v1::LogChunk chunk;
  chunk.set_request_id(request.request_id());
  if (const Status status = Fill(state_directory, request, &chunk); !status.ok()) chunk.set_error(Message(status));
  return chunk;
}

}  // namespace tutti::worker
