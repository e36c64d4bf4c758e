#include "worker/shim/cgroup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <sstream>
#include <vector>

#include "base/files.h"
#include "base/text.h"

namespace tutti::worker {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 2;  // v1 writes a huge number for "none"

std::string ReadOrEmpty(const std::string& path) {
  auto content = ReadFile(path, 1 << 20);
  return content.ok() ? *std::move(content) : std::string();
}

int64_t ParseNumber(const std::string& text) {
  int64_t value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// The number after "<key> " in a flat-keyed file; 0 when the key is absent.
int64_t FlatKey(const std::string& text, const std::string& key) {
  std::istringstream in(text);
  std::string name;
  for (int64_t value = 0; in >> name >> value;) {
    if (name == key) return value;
  }
  return 0;
}

// The first of the files that holds a number.
int64_t FirstNumber(const std::string& directory, const std::array<const char*, 2>& names) {
  for (const char* name : names) {
    const int64_t value = ParseNumber(ReadOrEmpty(JoinPath(directory, name)));
    if (value >= 0) return value;
  }
  return -1;
}

bool HoldsOurProcess(const std::string& directory) {
  std::istringstream in(ReadOrEmpty(JoinPath(directory, "cgroup.procs")));
  for (pid_t pid = 0; in >> pid;) {
    if (pid == ::getpid()) return true;
  }
  return false;
}

}  // namespace

MemoryEvidence ReadMemoryEvidence(const std::string& directory, const std::string& root) {
  MemoryEvidence evidence;
  evidence.oom_kills = std::max(FlatKey(ReadOrEmpty(JoinPath(directory, "memory.events")), "oom_kill"),
                                FlatKey(ReadOrEmpty(JoinPath(directory, "memory.oom_control")), "oom_kill"));
  evidence.peak_bytes = FirstNumber(directory, {"memory.peak", "memory.max_usage_in_bytes"});
  for (std::string folder = directory; folder.size() >= root.size() && folder.size() > 1; folder = Dirname(folder)) {
    const int64_t limit = FirstNumber(folder, {"memory.max", "memory.limit_in_bytes"});
    if (limit < 0 || limit >= kNoLimit) continue;
    evidence.limit_bytes = evidence.limit_bytes < 0 ? limit : std::min(evidence.limit_bytes, limit);
  }
  return evidence;
}

std::string DescribeOutOfMemory(const MemoryEvidence& before, const MemoryEvidence& after) {
  if (after.oom_kills <= before.oom_kills) return "";
  std::string text = "out of memory (";
  text += after.limit_bytes >= 0 ? "cgroup limit " + MemoryText(after.limit_bytes)
                                 : std::string("no cgroup limit: the host's memory");
  if (after.peak_bytes >= 0) text += ", peak " + MemoryText(after.peak_bytes);
  return text + ")";
}

std::optional<MemoryGroup> OwnMemoryGroup() {
  std::istringstream lines(ReadOrEmpty("/proc/self/cgroup"));
  std::vector<MemoryGroup> candidates;
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",", path = line.substr(second + 1);
    const bool v1 = names.find(",memory,") != std::string::npos;
    if (!v1 && names != ",,") continue;
    const std::string root = v1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
    candidates.push_back({path == "/" ? root : root + path, root});
    candidates.push_back({root, root});  // inside a container our own group may be mounted as the root
  }
  for (const MemoryGroup& group : candidates) {
    const bool has_memory = FileExists(JoinPath(group.directory, "memory.events")) ||
                            FileExists(JoinPath(group.directory, "memory.oom_control"));
    if (has_memory && HoldsOurProcess(group.directory)) return group;
  }
  return std::nullopt;
}

std::string RankCgroup::Name(const std::string& job_id, int64_t generation, int32_t rank) {
  return fmt::format("tutti-{}-{}-{}", job_id, generation, rank);
}

void RankCgroup::RemoveLeftover(const std::string& name) {
  if (const auto group = OwnMemoryGroup()) ::rmdir(JoinPath(group->directory, name).c_str());
}

RankCgroup::RankCgroup(const std::string& name) : group_(OwnMemoryGroup()) {
  if (!group_) return;
  const std::string directory = JoinPath(group_->directory, name);
  if (::mkdir(directory.c_str(), 0755) == 0) {
    // Under v2 the new group only has memory files where the parent hands the controller down.
    if (FileExists(JoinPath(directory, "memory.events")) || FileExists(JoinPath(directory, "memory.oom_control"))) {
      group_->directory = directory;
      own_ = true;
    } else {
      ::rmdir(directory.c_str());
    }
  }
  before_ = ReadMemoryEvidence(group_->directory, group_->root);
}

RankCgroup::~RankCgroup() {
  if (own_) ::rmdir(group_->directory.c_str());
}

void RankCgroup::Add(pid_t pid) {
  if (!own_) return;
  const UniqueFd procs(::open(JoinPath(group_->directory, "cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
  if (procs.valid() && WriteAll(procs.get(), std::to_string(pid)).ok()) return;
  ::rmdir(group_->directory.c_str());
  own_ = false;
  group_ = OwnMemoryGroup();
  if (group_) before_ = ReadMemoryEvidence(group_->directory, group_->root);
}

std::string RankCgroup::DescribeOutOfMemory() const {
  if (!group_) return "";
  return worker::DescribeOutOfMemory(before_, ReadMemoryEvidence(group_->directory, group_->root));
}

}  // namespace tutti::worker
