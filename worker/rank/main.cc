// tutti-rank: one rank of one generation. Started by tutti-shim, which gives it everything on descriptor 3 (and the
// shared memory of the host's ranks on 4); nothing is in argv or the environment. `tutti-rank --dry FILE` prints the
// exact plan instead.
#include <signal.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "base/log.h"
#include "worker/rank/session.h"

namespace {

int Dry(const std::string& path) {
  const tutti::StatusOr<std::string> plan = tutti::DryRun(path);
  if (!plan.ok()) {
    std::fprintf(stderr, "tutti-rank: %s\n", tutti::Message(plan.status()).c_str());
    return static_cast<int>(tutti::RankExit::kWrongJob);
  }
  std::printf("%s\n", plan->c_str());
  return 0;
}

void BlockSignals() {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread starts: all inherit it
}

}  // namespace

int main(int argc, char** argv) {
  std::string file;
  bool dry = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--dry") {
      dry = true;
    } else if (dry && file.empty() && !argument.starts_with("--")) {
      file = argument;
    } else if (argument != "--json") {
      std::fprintf(stderr, "usage: tutti-rank --dry FILE [--json]\n");
      return static_cast<int>(tutti::RankExit::kWrongJob);
    }
  }
  tutti::InitLogging("rank");
  if (dry) return Dry(file);
  BlockSignals();
  return static_cast<int>(tutti::RankSession(tutti::kShimSocket, tutti::kSharedMemory).Run());
}
