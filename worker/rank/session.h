// One rank process between its shim (framed messages on an inherited socket) and the trainer. worker/rank/main.cc wires
// it.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "engine/comm/communicator.h"
#include "engine/train/trainer.h"
#include "tutti/v1/rank.pb.h"

namespace tutti {

// What the process ends with; the restart policy reads it.
enum class RankExit : int {
  kDone = 0,
  kFailed = 1,
  kWrongJob = 2,  // no retry can help
  kNeverFits = 3,
  kVictim = 75,  // a peer failed: this rank only waited for it
};

inline constexpr int kShimSocket = 3;
inline constexpr int kSharedMemory = 4;

class RankSession {
 public:
  // `socket` and `shared_memory` are borrowed. SIGTERM must be blocked in every thread.
  RankSession(int socket, int shared_memory) : socket_(socket), shared_memory_(shared_memory) {}
  ~RankSession();

  // Reads the RankConfig, trains, reports how it ended.
  RankExit Run();

 private:
  StatusOr<v1::RankResult> Train(RankExit* exit);
  Status ReadConfig();
  StatusOr<std::unique_ptr<Communicator>> Meet();
  StatusOr<std::unique_ptr<Communicator>> MeetOverGloo();
  RankExit ReportFailure(const Status& status, RankExit exit);

  void Emit(v1::RankEvent event);
  void Send(const v1::RankEvent& event);
  void PrintLine(const v1::RankEvent& event);

  // Control thread: commands of the shim and SIGTERM. The shim's end ends the process.
  void Listen();
  void Obey(const v1::RankCommand& command);
  void OnTerminate();

  const int socket_, shared_memory_;
  v1::RankConfig config_;
  ControlBox control_;
  std::unique_ptr<Trainer> trainer_;
  std::thread listener_;
  UniqueFd stop_listening_, stop_listening_read_;
  int terminations_ = 0;

  std::mutex mutex_;
  std::condition_variable peers_came_;
  std::optional<v1::PeerTable> peers_;
};

// The rank that an error of the communicator names ("... rank 3 ..."); -1 where it names none.
int32_t BlamedRank(std::string_view message);

// tutti-rank --dry FILE: the exact plan of a RankConfig or JobSpec (binary) as JSON.
StatusOr<std::string> DryRun(const std::string& path);

}  // namespace tutti
