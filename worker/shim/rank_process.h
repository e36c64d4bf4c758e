// One rank as its shim sees it: the process, the socket, the output. Everything is non-blocking; the shim's loop calls
// in when a descriptor is ready.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/framing.h"
#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "tutti/v1/rank.pb.h"
#include "tutti/v1/shim.pb.h"
#include "worker/shim/cgroup.h"
#include "worker/shim/rank_log.h"

namespace tutti::worker {

class RankProcess {
 public:
  // Nothing is started yet. `config` must outlive the object.
  RankProcess(const v1::ShimConfig& config, int index);

  // Starts the program with the socket on 3, `memory_fd` (or none: -1) on 4 and the slot's locks above. After an error
  // it may still be alive (only its pid file is missing); else its status says that it ended and why.
  Status Start(int memory_fd);

  bool alive() const { return alive_; }
  pid_t pid() const { return status_.pid(); }
  int socket_fd() const { return socket_.get(); }  // -1 after its end
  int output_fd() const { return output_.get(); }
  bool wants_to_write() const { return !outbox_.empty(); }
  const v1::RankStatus& status() const { return status_; }
  RankLog* log() { return log_ ? &*log_ : nullptr; }

  void Send(const v1::RankCommand& command);
  void FlushOutbox();
  // What the rank said, stamped with its rank and generation. A rank that breaks the protocol is no longer listened to,
  // which is told as a Notice.
  std::vector<v1::RankEvent> ReadEvents();
  void ReadOutput(Nanos now);

  // SIGTERM or SIGKILL to the rank's process group, by our decision.
  void Signal(int signal, int64_t grace_ms);

  // After its end: reads what is left, ends what is left of its group, fills in the status and writes exit-N.pb.
  // `*events` are the last ones.
  void Finish(const ExitStatus& exit, Nanos now, std::vector<v1::RankEvent>* events);

  // When no process of the run is alive any more: gives up what could not be given up before.
  void Dissolve() { cgroup_.reset(); }

 private:
  Status TryStart(int memory_fd);
  // The message only says what exit code and signal do not: the rank's own words, that we stopped it, or a reason.
  void Describe(const ExitStatus& exit);
  v1::RankEvent MakeNotice(v1::NoticeLevel level, const std::string& message) const;

  const v1::ShimConfig& config_;
  const int index_;
  bool alive_ = false;
  UniqueFd socket_;
  UniqueFd output_;
  FrameParser parser_;
  std::string outbox_;
  std::optional<RankLog> log_;
  std::unique_ptr<RankCgroup> cgroup_;
  std::optional<v1::RankFailure> failure_;
  v1::RankStatus status_;
  bool terminated_ = false;  // we sent SIGTERM
  bool killed_ = false;      // we sent SIGKILL
  int64_t grace_ms_ = 0;
};

}  // namespace tutti::worker
