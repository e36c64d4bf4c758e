// What tests of real processes share.
#pragma once

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>

#include "base/clock.h"
#include "base/files.h"
#include "base/process.h"
#include "gtest/gtest.h"
#include "tutti/v1/agent.pb.h"

namespace tutti::worker {

// Generous: the machine may be busy. A test that passes never waits for it.
inline constexpr Nanos kPatience = std::chrono::seconds(20);

// True as soon as `condition` is; false after the deadline.
inline bool Eventually(const std::function<bool()>& condition, Nanos patience = kPatience) {
  const Nanos deadline = SystemClock().Monotonic() + patience;
  while (!condition()) {
    if (SystemClock().Monotonic() > deadline) return false;
    ::poll(nullptr, 0, 2);
  }
  return true;
}

inline std::string Content(const std::string& path) {
  auto content = ReadFile(path);
  return content.ok() ? *std::move(content) : std::string();
}

// A process that runs; a zombie does not.
inline bool Alive(pid_t pid) {
  const std::string stat = Content("/proc/" + std::to_string(pid) + "/stat");
  const size_t close = stat.rfind(')');
  return close != std::string::npos && close + 2 < stat.size() && stat[close + 2] != 'Z';
}

inline std::string Program(const std::string& name) { return std::string(TUTTI_BIN_DIR) + "/" + name; }

// A job whose ranks run these scripts (tests/worker/fake_rank.cc), all on one node, on slots cpu0, cpu1, ...
inline v1::StartJob MakeStart(const std::string& job_id, int64_t generation, const std::vector<std::string>& scripts,
                              const std::string& node = "here") {
  v1::StartJob start;
  start.set_uid("uid of " + job_id);
  start.mutable_assignment()->set_job_id(job_id);
  start.mutable_assignment()->set_generation(generation);
  v1::NodeShare* share = start.mutable_assignment()->add_nodes();
  share->set_node(node);
  for (size_t rank = 0; rank < scripts.size(); ++rank) {
    share->add_slots("cpu" + std::to_string(rank));
    (*start.mutable_spec()->mutable_metadata()->mutable_labels())["script." + std::to_string(rank)] = scripts[rank];
  }
  start.mutable_spec()->mutable_restart()->set_grace_ms(500);
  return start;
}

}  // namespace tutti::worker
