// A rank that does what the job's label "script.RANK" says: commands separated by semicolons, each a verb and its
// arguments. Speaks the real contract: RankConfig as first frame on descriptor 3, shared memory on 4.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <vector>

#include "base/framing.h"
#include "base/process.h"
#include "tutti/v1/rank.pb.h"

namespace {

using tutti::v1::RankConfig;
using tutti::v1::RankEvent;

void SleepMs(int64_t ms) { poll(nullptr, 0, static_cast<int>(ms)); }

void Send(const RankEvent& event) { std::ignore = tutti::SendFrame(3, event.SerializeAsString()); }

// Complete or absent: written beside and renamed.
void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path + ".part") << text;
  std::rename((path + ".part").c_str(), path.c_str());
}

// This program again, in another part.
pid_t StartSelf(const std::string& part, const std::string& argument, bool new_session) {
  tutti::SpawnOptions options;
  options.argv = {"/proc/self/exe", part, argument};
  options.environment = tutti::CurrentEnvironment();
  options.new_session = new_session;
  const auto pid = tutti::Spawn(options);
  if (!pid.ok()) _exit(96);
  return *pid;
}

// --escaped: left group and session of the rank; SIGTERM does not end it.
[[noreturn]] void RunEscaped(const std::string& pid_file) {
  signal(SIGTERM, SIG_IGN);
  WriteFile(pid_file, std::to_string(getpid()));
  while (true) pause();
}

// --middle: starts children and ends before them.
int RunMiddle(const std::string& count_and_program) {
  std::istringstream in(count_and_program);
  int64_t count = 0;
  tutti::SpawnOptions options;
  options.argv.resize(1);
  in >> count >> options.argv[0];
  options.argv.push_back("0.02");
  for (int64_t i = 0; i < count; ++i) {
    if (!tutti::Spawn(options).ok()) return 1;
  }
  return 0;
}

// Touches so much memory that it is really there.
void Allocate(int64_t mebibytes) {
  std::vector<char> block(static_cast<size_t>(mebibytes) << 20, 1);
  dprintf(1, "allocated %d\n", block[block.size() / 2]);
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

// Commands that speak to the shim or leave traces.
void RunTalk(const std::string& verb, std::istringstream& in, const std::string& line, const RankConfig& config) {
  std::string text;
  int64_t a = 0, b = 0;
  if (verb == "progress") {
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

void Run(const std::string& line, const RankConfig& config) {
  std::istringstream in(line);
  std::string verb, text;
  int64_t a = 0;
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
    StartSelf("--escaped", text, /*new_session=*/true);
  } else if (verb == "allocate") {
    in >> a;
    Allocate(a);
  } else if (verb == "orphans") {
    std::getline(in >> std::ws, text);
    waitpid(StartSelf("--middle", text, /*new_session=*/false), nullptr, 0);
  } else {
    RunTalk(verb, in, line, config);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string part = argc > 2 ? argv[1] : "";
  if (part == "--escaped") RunEscaped(argv[2]);
  if (part == "--middle") return RunMiddle(argv[2]);
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
