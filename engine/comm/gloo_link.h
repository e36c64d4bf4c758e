// Point-to-point transfers over a connected gloo mesh, and how they end: completed, peer lost, no progress, aborted.
// Internal to comm.
//
// gloo's own timeouts are not used: one that fires closes every connection, and then nobody can be told why. Waits are
// unbounded towards gloo; a watchdog thread interrupts the running one when its time is over, a listener thread when a
// peer reports an error.
#pragma once

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <signal.h>

#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/comm/call.h"

namespace tutti {

// While alive, writing to a connection that the peer closed does not end the process: gloo writes without MSG_NOSIGNAL.
// Threads that are started meanwhile inherit that for life.
class BlockSigpipe {
 public:
  BlockSigpipe();
  ~BlockSigpipe();

 private:
  sigset_t before_;
};

class GlooLink {
 public:
  // `context` has a connected pair for each peer; `keep_alive` holds what it stands on.
  GlooLink(std::shared_ptr<gloo::transport::Context> context, std::shared_ptr<void> keep_alive, Millis timeout);
  ~GlooLink();

  int32_t rank() const { return rank_; }
  int32_t world_size() const { return world_; }
  Status Health();
  void set_title(const CallHeader* call) { call_ = call; }  // named in errors

  // Transfers complete in the order in which they were posted; `data` stays alive until then. Sizes of a pair may
  // differ: the receiver gives the most that it takes. After an error nothing is pending any more and the caller's
  // memory is free.
  Status Send(int32_t peer, uint64_t slot, const void* data, int64_t bytes);
  Status Receive(int32_t peer, uint64_t slot, void* data, int64_t bytes);
  int64_t posted() const { return posted_; }
  Status WaitThrough(int64_t posted);  // until the first `posted` transfers completed
  Status WaitAll() { return WaitThrough(posted_); }

  // First error wins; `tell` sends it to every peer. Returns the winner.
  Status Poison(absl::StatusCode code, int32_t blamed, const std::string& text, bool tell);

 private:
  struct Transfer {
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    int32_t peer;
    bool is_send;
  };
  struct Report {  // on the control slot
    int32_t code = 0, from = -1, blamed = -1;
    int32_t waiting_for = -1;  // DEADLINE_EXCEEDED only: not yet resolved to its cause
    char text[400] = {};
  };

  Status Post(int32_t peer, uint64_t slot, void* data, int64_t bytes, bool is_send);
  Status Wait(Transfer& transfer);
  Status TimedOut(int32_t peer);
  Status Broken(int32_t peer, const std::string& how);
  Status Fail(Status status);  // drops pending transfers
  void Tell(const Report& report);
  void Flush();
  void Listen(int32_t peer);
  void Watch();
  void HandleReport(const Report& report);
  void InterruptLocked();
  void SetPoisonLocked(absl::StatusCode code, int32_t blamed, const std::string& text);
  Status ResolveTimeoutLocked(int32_t waiting_for);
  std::string TitleOfCall() const;

  std::shared_ptr<void> keep_alive_;
  std::shared_ptr<gloo::transport::Context> context_;
  const int32_t rank_, world_;
  const Millis timeout_;
  const CallHeader* call_ = nullptr;
  std::deque<Transfer> pending_;
  int64_t posted_ = 0, completed_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;  // poison_ or stopping_
  Status poison_;
  Transfer* running_ = nullptr;  // being waited for
  Nanos deadline_{0};            // of running_
  bool peer_timed_out_ = false;
  std::vector<int32_t> waiting_for_;  // by rank: whom it waited for when it gave up; -1: it did not
  bool stopping_ = false;
  struct Outgoing {
    Report report;
    std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> buffers;
  };
  std::list<Outgoing> told_;  // at most a few: one per error of this rank
  // One buffer and thread for each peer's reports: its receive is posted ahead, so that a report goes one way and
  // arrives although its sender no longer reads, and a broken connection ends that peer's alone. (One receive from any
  // peer has neither.)
  struct Incoming {
    Report report;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    std::thread listener;
  };
  std::vector<Incoming> incoming_;  // by rank
  std::thread watchdog_;
};

}  // namespace tutti
