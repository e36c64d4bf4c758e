// tutti-worker: the agent of one node.
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "worker/launch/layout.h"
#include "worker/probe/network.h"
#include "worker/probe/probe.h"
#include "worker/rpc/agent_loop.h"

namespace tutti::worker {
namespace {

constexpr int64_t kOrphanGraceMs = 600'000;
constexpr int64_t kEmbeddedOrphanGraceMs = 5'000;

struct Flags {
  std::string coordinator, state_directory, name, token_file, advertise, net_interface, lock_directory, rank_program;
  bool embedded = false;
  bool insecure = false;
  int life_fd = -1;
  int64_t orphan_grace_ms = 0;
  SlotOptions slots;
};

// The name that this node had before, else the given one, else the host's; kept in the state directory.
StatusOr<std::string> NodeName(const Flags& flags) {
  const std::string path = JoinPath(flags.state_directory, "node");
  if (auto kept = ReadFile(path, 256); kept.ok()) {
    const std::string name = kept->substr(0, kept->find('\n'));
    if (flags.name.empty() || flags.name == name) return name;
    return FailedPrecondition("{} belongs to node {}, not {}: give another --state-dir, or no --name",
                              flags.state_directory, name, flags.name);
  }
  std::string name = flags.name;
  if (name.empty()) {
    char host[256] = {};
    if (::gethostname(host, sizeof host - 1) != 0 || host[0] == '\0')
      return FailedPrecondition("this host has no name: give --name");
    name = host;
  }
  const auto allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.' || c == '_';
  };
  if (name.size() > 63 || !std::all_of(name.begin(), name.end(), allowed)) {
    return InvalidArgument("node name '{}' is not 1-63 characters of [A-Za-z0-9._-]: give --name", name);
  }
  TUTTI_RETURN_IF_ERROR(ReplaceFile(path, name + "\n", 0644));
  return name;
}

StatusOr<std::string> ReadToken(const std::string& path) {
  if (path.empty()) return std::string();
  TUTTI_ASSIGN_OR_RETURN(std::string token, ReadFile(path, 4096));
  token.erase(token.find_last_not_of(" \t\r\n") + 1);
  if (token.empty()) return InvalidArgument("{} holds no token", path);
  return token;
}

StatusOr<v1::Node> DescribeNode(const Flags& flags) {
  const HostInventory host = ProbeHost();
  v1::Node node;
  TUTTI_ASSIGN_OR_RETURN(*node.mutable_name(), NodeName(flags));
  TUTTI_ASSIGN_OR_RETURN(const std::vector<v1::Slot> slots, CpuSlots(host, flags.slots));
  node.mutable_slots()->Assign(slots.begin(), slots.end());
  AdvertiseInputs address;
  address.coordinator = flags.coordinator;
  address.pattern = flags.net_interface;
  address.advertise = flags.advertise;
  if (flags.coordinator.rfind("unix:", 0) != 0) address.routed = RoutedAddress(flags.coordinator);
  TUTTI_ASSIGN_OR_RETURN(address.interfaces, ListInterfaces());
  TUTTI_ASSIGN_OR_RETURN(*node.mutable_address(), ChooseAdvertiseAddress(address));
  node.set_processor(host.processor);
  node.set_instruction_set(host.instruction_set);
  node.set_memory_bytes(host.memory_bytes);
  node.set_version(TUTTI_VERSION);
  node.set_boot_id(host.boot_id);
  for (const Gpu& gpu : host.gpus) LogInfo("found {} ({}); this version trains on processors only", gpu.name, gpu.uuid);
  return node;
}

// Before any thread starts, so that every thread blocks them.
StatusOr<UniqueFd> BlockSignals() {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  UniqueFd signals(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.valid()) return ErrnoStatus(errno, "make a signalfd");
  return signals;
}

Status RunAgent(Flags flags) {
  TUTTI_ASSIGN_OR_RETURN(UniqueFd signals, BlockSignals());
  TUTTI_ASSIGN_OR_RETURN(flags.state_directory, AbsolutePath(flags.state_directory));
  TUTTI_RETURN_IF_ERROR(MakeDirectories(flags.state_directory, 0700));
  const auto lock = LockFile(JoinPath(flags.state_directory, "agent.lock"));
  if (!lock.ok()) return Annotate(lock.status(), "another tutti-worker uses this state directory");
  AgentLoopOptions options;
  options.state_directory = flags.state_directory;
  options.coordinator = flags.coordinator;
  TUTTI_ASSIGN_OR_RETURN(options.token, ReadToken(flags.token_file));
  if (!IsLocalEndpoint(flags.coordinator) && !flags.insecure) {
    return FailedPrecondition(
        "the coordinator {} is on another host and this version has no TLS: its token and all data would cross the "
        "network in the clear. On a private network say --insecure",
        flags.coordinator);
  }
  TUTTI_ASSIGN_OR_RETURN(options.node, DescribeNode(flags));
  TUTTI_ASSIGN_OR_RETURN(options.shim_program, SiblingProgram("tutti-shim"));
  options.rank_program = flags.rank_program;
  if (options.rank_program.empty()) {
    TUTTI_ASSIGN_OR_RETURN(options.rank_program, SiblingProgram("tutti-rank"));
  }
  options.orphan_grace_ms = flags.embedded ? kEmbeddedOrphanGraceMs : kOrphanGraceMs;
  if (flags.orphan_grace_ms > 0) options.orphan_grace_ms = flags.orphan_grace_ms;
  if (flags.embedded) options.leave_intent = v1::INTENT_CANCEL;
  options.life.Reset(flags.life_fd);
  if (flags.lock_directory.empty()) {
    TUTTI_ASSIGN_OR_RETURN(flags.lock_directory, DefaultLockDirectory());
  }
  const std::vector<v1::Slot> slots(options.node.slots().begin(), options.node.slots().end());
  TUTTI_ASSIGN_OR_RETURN(SlotLocks locks, SlotLocks::Create(flags.lock_directory, slots));
  LogInfo("node {}: {} slots, {} ({})", options.node.name(), slots.size(), options.node.processor(),
          options.node.instruction_set());
  AgentLoop loop(std::move(options), std::move(locks), std::move(signals));
  return loop.Run();
}

void AddFlags(CLI::App& app, Flags* flags) {
  app.add_option("--coordinator", flags->coordinator, "unix:PATH or HOST:PORT")
      ->required()
      ->envname("TUTTI_COORDINATOR");
  app.add_option("--state-dir", flags->state_directory, "kept between starts: name, runs, logs")->required();
  app.add_option("--name", flags->name, "name of this node (default: the host's name)");
  app.add_option("--token-file", flags->token_file, "file that holds the coordinator's token")
      ->envname("TUTTI_TOKEN_FILE");
  app.add_option("--advertise", flags->advertise, "address at which ranks of other nodes reach this one");
  app.add_option("--net-interface", flags->net_interface,
                 "interfaces for that address: eth0,ib0 (these) or ^lo,docker (all but these)");
  app.add_option("--slots", flags->slots.slots,
                 "number of slots (default: one per --cores-per-slot cores); more share cores");
  app.add_option("--cores-per-slot", flags->slots.cores_per_slot,
                 "cores of one slot (default: 1; with --slots: divided evenly)");
  app.add_option("--orphan-grace-ms", flags->orphan_grace_ms,
                 "ranks without an agent end after this time (default: 10 minutes)");
  app.add_option("--lock-dir", flags->lock_directory,
                 "folder of the host-wide core locks (default: /run/tutti or /tmp/tutti-devices-UID)");
  app.add_option("--rank-program", flags->rank_program, "program of a rank (default: tutti-rank beside this one)");
  app.add_flag("--insecure", flags->insecure, "allow a coordinator on another host without TLS");
  app.add_flag("--embedded", flags->embedded, "started by 'tutti run': orphans end after 5 s, leaving cancels");
  app.add_option("--life-fd", flags->life_fd, "descriptor whose end of file means: leave");
  app.set_version_flag("--version", TUTTI_VERSION);
  app.footer(
      "Signals: TERM, INT, HUP: ranks checkpoint and end within their grace, then the agent ends; a second one kills "
      "them.\n"
      "         USR1: the agent ends, ranks go on; the next agent on the same --state-dir adopts them (upgrades).\n"
      "Exit codes: 0 left in order, 1 an error (said on standard error), 2 wrong command line.");
}

}  // namespace
}  // namespace tutti::worker

int main(int argc, char** argv) {
  CLI::App app(
      "The agent of one node: offers its cores, starts the ranks that the coordinator assigns, reports what they do.",
      "tutti-worker");
  tutti::worker::Flags flags;
  tutti::worker::AddFlags(app, &flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  tutti::InitLogging("agent");
  const tutti::Status status = tutti::worker::RunAgent(std::move(flags));
  if (status.ok()) return 0;
  tutti::LogError("{}", tutti::Message(status));
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}
