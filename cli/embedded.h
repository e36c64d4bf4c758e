// A coordinator and an agent of one `tutti run`: private folders, a Unix socket, own sessions, a life pipe. They end by
// themselves when this process is gone, however it went; what a power loss left behind is swept by the next run.
//
//   ${XDG_STATE_HOME:-~/.local/state}/tutti/run-ID/      0700: lock (held while we live), coordinator/, agent/, *.log
//   ${XDG_RUNTIME_DIR:-/tmp}/tutti-UID/ID/               0700: the socket (its path has at most 107 bytes)
//   .../tutti/failed-ID/                                 what Keep left of failed runs, the newest ten
#pragma once

#include <sys/types.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti::cli {

class Embedded {
 public:
  struct Options {
    int64_t ranks = 1;
    int cores_per_rank = 0;  // 0: this machine's cores are divided among the ranks
    int cores_available = 1;
  };
  static StatusOr<std::unique_ptr<Embedded>> Start(const Options& options);
  ~Embedded();

  std::string address() const { return "unix:" + socket_path_; }

  // Starts again what died (same state, so nothing is lost). Call on SIGCHLD and now and then. An error: it dies again
  // and again; the message has the last lines of its log.
  Status Supervise(Nanos now);
  // Ends both, in order or (`kill`) at once, within a bounded time, and removes folders and socket.
  void Stop(bool kill);
  // Instead of removing the state at Stop, keep it for looking at. Returns the folder's future name.
  std::string KeepAfterStop();

 private:
  struct Child {
    std::string name;  // "coordinator"
    std::vector<std::string> argv;
    std::string log;
    pid_t pid = -1;
    Nanos started{0};
    Nanos not_before{0};   // of the next start
    int quick_deaths = 0;  // in a row
  };
  Embedded() = default;
  Status MakeFolders(const std::string& id);
  Status StartChild(Child* child, Nanos now);
  bool Reap(Child* child);  // true: it is gone
  void AwaitChildren(std::initializer_list<Child*> children, Nanos limit);

  std::string state_root_, state_, runtime_, socket_path_, kept_;
  UniqueFd lock_;
  UniqueFd life_read_, life_write_;
  Child coordinator_, agent_;
  bool stopped_ = false;
};

}  // namespace tutti::cli
