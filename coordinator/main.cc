// tutti-coordinator: wires journal, core and services, and ends in order.
#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/log.h"
#include "coordinator/planner.h"
#include "coordinator/rpc/server.h"

namespace tutti::coordinator {
namespace {

constexpr char kHelp[] =
    R"(tutti-coordinator accepts jobs, plans and places them, and keeps them running on the nodes whose agents connect to it.

usage: tutti-coordinator --state-dir DIR [--listen ADDRESS] [--reflection] [--lease SECONDS] [--life-fd N]

  --state-dir DIR     journal, step series, token and address; made (0700) when absent; one coordinator at a time; local disk
  --listen ADDRESS    unix:PATH (its folder must be private), or 127.0.0.1:PORT, [::1]:PORT, localhost:PORT; port 0 takes a free one.
                      Default: unix:DIR/socket. The address that is served is written to DIR/address.
                      On TCP every call needs the token in DIR/token (0600, made when absent).
  --reflection        let grpcurl and the like list the services
  --lease SECONDS     silence of an agent after which its node may be given up, if its jobs make no progress either; default 10
  --life-fd N         end in order when descriptor N reports end of file: the parent is gone
  --version, --help

examples:
  tutti-coordinator --state-dir ~/.tutti/coordinator --listen 127.0.0.1:7070
  tutti-worker --coordinator 127.0.0.1:7070 --token-file ~/.tutti/coordinator/token --state-dir ~/.tutti/worker
  TUTTI_COORDINATOR=127.0.0.1:7070 TUTTI_TOKEN_FILE=~/.tutti/coordinator/token tutti submit job.yaml

SIGTERM and SIGINT end it in order; agents and ranks go on and report to the next one that is started on DIR.
Exit codes: 0 ended in order, 1 cannot serve (the reason is printed), 2 the command line is wrong.
)";

struct CommandLine {
  ServerOptions server;
  int life_fd = -1;
  bool help = false;
  bool version = false;
};

StatusOr<int64_t> ParseNumber(const std::string& flag, const std::string& text, int64_t least, int64_t most) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    return InvalidArgument("{} {}: expected a whole number from {} to {}", flag, text, least, most);
  }
  return value;
}

StatusOr<CommandLine> Parse(const std::vector<std::string>& arguments) {
  CommandLine line;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string flag = arguments[i];
    if (flag == "--help" || flag == "-h") {
      line.help = true;
    } else if (flag == "--version") {
      line.version = true;
    } else if (flag == "--reflection") {
      line.server.reflection = true;
    } else if (flag.starts_with("--state-dir") || flag.starts_with("--listen") || flag.starts_with("--lease") ||
               flag.starts_with("--life-fd")) {
      std::string value;
      if (const size_t equals = flag.find('='); equals != flag.npos) {
        value = flag.substr(equals + 1);
        flag.resize(equals);
      } else if (++i < arguments.size()) {
        value = arguments[i];
      } else {
        return InvalidArgument("{} needs a value", flag);
      }
      if (flag == "--state-dir") {
        line.server.state_directory = value;
      } else if (flag == "--listen") {
        line.server.listen = value;
      } else if (flag == "--lease") {
        TUTTI_ASSIGN_OR_RETURN(const int64_t seconds, ParseNumber(flag, value, 1, 86400));
        line.server.core.lease = std::chrono::seconds(seconds);
      } else if (flag == "--life-fd") {
        TUTTI_ASSIGN_OR_RETURN(const int64_t fd, ParseNumber(flag, value, 0, 1 << 20));
        line.life_fd = static_cast<int>(fd);
      } else {
        return InvalidArgument("unknown flag {}", flag);
      }
    } else {
      return InvalidArgument("unknown argument '{}'", flag);
    }
  }
  if (line.help || line.version) return line;
  if (line.server.state_directory.empty()) return InvalidArgument("--state-dir DIR is missing");
  TUTTI_RETURN_IF_ERROR(CheckListen(line.server.listen));
  TUTTI_ASSIGN_OR_RETURN(line.server.state_directory, AbsolutePath(line.server.state_directory));
  return line;
}

// Returns why the program is to end.
StatusOr<std::string> WaitForEnd(int signal_fd, int life_fd) {
  std::vector<pollfd> watched = {{.fd = signal_fd, .events = POLLIN, .revents = 0}};
  if (life_fd >= 0) watched.push_back({.fd = life_fd, .events = POLLIN, .revents = 0});
  while (true) {
    if (::poll(watched.data(), watched.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, "wait for the end");
    }
    if (watched[0].revents != 0) {
      signalfd_siginfo info = {};
      if (::read(signal_fd, &info, sizeof info) != sizeof info) return ErrnoStatus(errno, "read a signal");
      return fmt::format("signal {}", info.ssi_signo);
    }
    char ignored[64];
    const ssize_t n = watched.size() > 1 && watched[1].revents != 0 ? ::read(life_fd, ignored, sizeof ignored) : 1;
    if (n == 0) return std::string("the parent is gone");
    if (n < 0 && errno != EINTR && errno != EAGAIN) return ErrnoStatus(errno, fmt::format("--life-fd {}", life_fd));
  }
}

Status Serve(const CommandLine& line, int signal_fd) {
  const std::string& directory = line.server.state_directory;
  TUTTI_ASSIGN_OR_RETURN(const std::shared_ptr<StateLock> lock, LockStateDirectory(directory));
  TUTTI_ASSIGN_OR_RETURN(const std::unique_ptr<Journal> journal, OpenSqliteJournal(directory));
  TUTTI_ASSIGN_OR_RETURN(const std::unique_ptr<SeriesStore> series, SeriesStore::Open(JoinPath(directory, "series")));
  const std::unique_ptr<Planner> planner = NewEnginePlanner();
  TUTTI_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server,
                         Server::Start(line.server, journal.get(), series.get(), planner.get(), &SystemClock()));
  LogInfo("serving on {}, state in {}", server->address(), directory);
  TUTTI_ASSIGN_OR_RETURN(const std::string why, WaitForEnd(signal_fd, line.life_fd));
  LogInfo("ending: {}; agents and ranks go on", why);
  server->Shutdown();
  return OkStatus();
}

int Main(int argc, char** argv) {
  const StatusOr<CommandLine> parsed = Parse(std::vector<std::string>(argv + 1, argv + argc));
  if (!parsed.ok()) {
    fmt::print(stderr, "tutti-coordinator: {} (--help shows the flags)\n", Message(parsed.status()));
    return 2;
  }
  CommandLine line = *parsed;
  line.server.version = TUTTI_VERSION;
  if (line.help || line.version) {
    fmt::print("{}", line.help ? std::string(kHelp) : fmt::format("tutti-coordinator {}\n", TUTTI_VERSION));
    return 0;
  }
  InitLogging("coordinator");
  // Before any thread is made, so that all of them leave these to the descriptor.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  const UniqueFd signal_fd(::signalfd(-1, &signals, SFD_CLOEXEC));
  if (line.life_fd >= 0) ::fcntl(line.life_fd, F_SETFD, FD_CLOEXEC);
  const Status status = Serve(line, signal_fd.get());
  if (status.ok()) return 0;
  fmt::print(stderr, "tutti-coordinator: {}\n", Message(status));
  return 1;
}

}  // namespace
}  // namespace tutti::coordinator

int main(int argc, char** argv) { return tutti::coordinator::Main(argc, argv); }
