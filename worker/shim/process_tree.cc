#include "worker/shim/process_tree.h"

#include <unistd.h>

#include <charconv>
#include <map>
#include <string>

#include "base/files.h"

namespace tutti::worker {
namespace {

struct Entry {
  pid_t pid, parent;
  char state;
};

bool ReadEntry(const std::string& name, Entry* entry) {
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), entry->pid);
  if (error != std::errc() || end != name.data() + name.size()) return false;
  const auto stat = ReadFile(fmt::format("/proc/{}/stat", name), 1 << 16);
  if (!stat.ok()) return false;           // gone meanwhile
  const size_t close = stat->rfind(')');  // the command in parentheses may hold anything
  if (close == std::string::npos || close + 4 >= stat->size()) return false;
  entry->state = (*stat)[close + 2];
  return std::from_chars(stat->data() + close + 4, stat->data() + stat->size(), entry->parent).ec == std::errc();
}

// False where /proc shows another PID namespace than ours: its numbers would name other processes.
bool ProcIsOurs() {
  char self[32] = {};
  return ::readlink("/proc/self", self, sizeof self - 1) > 0 && std::to_string(::getpid()) == self;
}

}  // namespace

std::vector<pid_t> Descendants(pid_t root) {
  if (!ProcIsOurs()) return {};
  std::multimap<pid_t, Entry> by_parent;
  const auto names = ListDirectory("/proc");
  if (!names.ok()) return {};
  for (const std::string& name : *names) {
    Entry entry{};
    if (ReadEntry(name, &entry)) by_parent.emplace(entry.parent, entry);
  }
  std::vector<pid_t> found, open = {root};
  while (!open.empty()) {
    const pid_t parent = open.back();
    open.pop_back();
    const auto [begin, end] = by_parent.equal_range(parent);
    for (auto it = begin; it != end; ++it) {
      if (it->second.state != 'Z') found.push_back(it->second.pid);
      open.push_back(it->second.pid);
    }
  }
  return found;
}

}  // namespace tutti::worker
