// tutti-shim: one per job, generation and node; started by tutti-worker, never by hand.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/framing.h"
#include "base/log.h"
#include "worker/launch/launch.h"
#include "worker/shim/shim.h"

namespace tutti::worker {
namespace {

StatusOr<v1::ShimConfig> ReadConfig() {
  TUTTI_ASSIGN_OR_RETURN(const std::optional<std::string> frame, ReceiveFrame(STDIN_FILENO));
  v1::ShimConfig config;
  if (!frame || !config.ParseFromString(*frame)) return InvalidArgument("standard input holds no ShimConfig");
  if (config.ranks_size() == 0) return InvalidArgument("ShimConfig has no rank");
  return config;
}

Status Main() {
  TUTTI_ASSIGN_OR_RETURN(v1::ShimConfig config, ReadConfig());
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return ErrnoStatus(errno, "become a subreaper");
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  ::signal(SIGINT, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  UniqueFd signals(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.valid()) return ErrnoStatus(errno, "make a signalfd");
  Shim shim(std::move(config), UniqueFd(kShimSocketDescriptor), std::move(signals));
  return shim.Run();
}

}  // namespace
}  // namespace tutti::worker

int main() {
  tutti::InitLogging("shim");
  const tutti::Status status = tutti::worker::Main();
  if (status.ok()) return 0;
  tutti::LogError("{}", tutti::Message(status));
  return 1;
}
