// A rank that does what the job's label "script.RANK" says: commands separated by semicolons, each a verb and its
// arguments. Speaks the real contract: RankConfig as first frame on descriptor 3, shared memory on 4.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "base/framing.h"
#include "base/process.h"
#include "tutti/v1/rank.pb.h"

namespace {

using tutti::v1::RankConfig;
using tutti::v1::RankEvent;

void SleepMs(int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

void Send(const RankEvent& event) { std::ignore = tutti::SendFrame(3, event.SerializeAsString()); }

// Complete or absent: written beside and renamed.
void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path + ".part") << text;
  std::rename((path + ".part").c_str(), path.c_str());
}

// A process that left group and session and that SIGTERM does not end.
void StartEscapedChild(const std::string& pid_file) {
  if (fork() != 0) return;
  setsid();
  signal(SIGTERM, SIG_IGN);
  WriteFile(pid_file, std::to_string(getpid()));
  while (true) pause();
}

// Children whose parent is gone at once.
void MakeOrphans(int count) {
  for (int i = 0; i < count; ++i) {
    const pid_t middle = fork();
    if (middle == 0) {
      if (fork() == 0) SleepMs(20);  // outlives its parent: an orphan
      _exit(0);
    }
    waitpid(middle, nullptr, 0);
  }
}

std::string term_file;
int64_t term_ms = 0;
void OnTerm(int) {
  SleepMs(term_ms);
  WriteFile(term_file, "complete");
  _exit(0);
}

// Until a control message asks us to leave, or the shim is gone.
void WaitForControl() {
  while (true) {
    const auto frame = tutti::ReceiveFrame(3);
    if (!frame.ok() || !*frame) return;
    tutti::v1::RankCommand command;
    command.ParseFromString(**frame);
    if (command.control().intent() > tutti::v1::INTENT_RUN) return;
  }
}

void SendSteps(int64_t count, int64_t ms) {
  for (int64_t step = 1; step <= count; ++step) {
    RankEvent event;
    event.mutable_step()->set_step(step);
    Send(event);
    if (ms > 0) SleepMs(ms);
  }
}

void DumpEnvironment(const std::string& path) {
  std::string text;
  for (const auto& [name, value] : tutti::CurrentEnvironment()) text += name + "=" + value + "\n";
  WriteFile(path, text);
}

void DumpDescriptors(const std::string& path, const RankConfig& config) {
  struct stat info {};
  const bool memory = fstat(4, &info) == 0;
  std::string cores;
  for (const int core : tutti::AllowedCores()) cores += std::to_string(core) + ",";
  WriteFile(path, "memory=" + std::to_string(memory ? info.st_size : -1) + " expected=" +
                      std::to_string(config.shared_memory_bytes()) + " lock=" + std::to_string(fcntl(5, F_GETFD) >= 0) +
                      " cores=" + cores + " group=" + std::to_string(getpgrp() == getpid()));
}

void Run(const std::string& line, const RankConfig& config) {
  std::istringstream in(line);
  std::string verb, text;
  int64_t a = 0, b = 0;
  in >> verb;
  if (verb == "exit") {
    in >> a;
    fflush(nullptr);
    _exit(static_cast<int>(a));
  } else if (verb == "print" || verb == "err") {
    std::getline(in >> std::ws, text);
    dprintf(verb == "err" ? 2 : 1, "%s\n", text.c_str());
  } else if (verb == "sleep") {
    in >> a;
    SleepMs(a);
  } else if (verb == "signal") {
    in >> a;
    kill(getpid(), static_cast<int>(a));
  } else if (verb == "ignore-term") {
    signal(SIGTERM, SIG_IGN);
  } else if (verb == "trap-term") {
    in >> term_ms >> term_file;
    signal(SIGTERM, OnTerm);
  } else if (verb == "escape") {
    in >> text;
    StartEscapedChild(text);
  } else if (verb == "orphans") {
    in >> a;
    MakeOrphans(static_cast<int>(a));
  } else if (verb == "progress") {
    in >> a >> b;
    for (int64_t i = 1; i <= a; ++i) {
      dprintf(1, "step %lld of %lld, some text that makes it fifty bytes\r", static_cast<long long>(i),
              static_cast<long long>(a));
      SleepMs(b);
    }
  } else if (verb == "flood") {
    in >> a;
    for (int64_t i = 0; i < a; ++i) dprintf(1, "line %lld\n", static_cast<long long>(i));
  } else if (verb == "steps") {
    in >> a >> b;
    SendSteps(a, b);
  } else if (verb == "failure" || verb == "victim") {
    std::getline(in >> std::ws, text);
    RankEvent event;
    event.mutable_failure()->set_message(text);
    event.mutable_failure()->set_victim(verb == "victim");
    Send(event);
  } else if (verb == "ready") {
    RankEvent event;
    event.mutable_ready()->set_peer_blob("blob of " + std::to_string(config.rank()));
    Send(event);
  } else if (verb == "beat") {
    RankEvent event;
    event.mutable_heartbeat()->set_phase(tutti::v1::PHASE_TRAINING);
    Send(event);
  } else if (verb == "garbage") {
    std::ignore = write(3, "this is no frame at all", 23);
  } else if (verb == "wait") {
    WaitForControl();
  } else if (verb == "touch") {
    in >> text;
    WriteFile(text, "complete");
  } else if (verb == "until") {
    in >> text;
    while (access(text.c_str(), F_OK) != 0) SleepMs(2);
  } else if (verb == "env") {
    in >> text;
    DumpEnvironment(text);
  } else if (verb == "descriptors") {
    in >> text;
    DumpDescriptors(text, config);
  } else {
    dprintf(2, "unknown command '%s'\n", line.c_str());
    _exit(99);
  }
}

}  // namespace

int main() {
  const auto frame = tutti::ReceiveFrame(3);
  RankConfig config;
  if (!frame.ok() || !*frame || !config.ParseFromString(**frame)) return 98;
  const auto& labels = config.spec().metadata().labels();
  const auto script = labels.find("script." + std::to_string(config.rank()));
  if (script == labels.end()) return 97;
  std::istringstream lines(script->second);
  for (std::string line; std::getline(lines, line, ';');) {
    if (line.find_first_not_of(' ') != std::string::npos) Run(line, config);
  }
  return 0;
}
