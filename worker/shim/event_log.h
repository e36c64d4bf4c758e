// The durable events of one run: ShimEvent frames in events.bin, sequence 1, 2, ... with no gap. One writer (the shim,
// or whoever recovers a dead shim's folder under shim.lock), any number of readers at the same time.
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "base/framing.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "tutti/v1/shim.pb.h"

namespace tutti::worker {

class EventLog {
 public:
  // Creates the file, or cuts what a crash left behind the last whole frame and goes on counting there.
  static StatusOr<EventLog> Open(const std::string& path);

  // Gives the event its sequence number and writes it. When the disk is full the event waits in memory and is written
  // by a later Append or Flush, in order. What was written outlives every process; Sync makes it outlive a power loss.
  void Append(v1::ShimEvent event);
  Status Sync();
  // What still waits; the error says why.
  Status Flush();
  size_t waiting() const { return waiting_.size(); }

  int64_t last_sequence() const { return last_sequence_; }  // written or waiting
  int64_t size_bytes() const { return size_bytes_; }        // of whole frames in the file

 private:
  UniqueFd fd_;
  std::string path_;
  int64_t size_bytes_ = 0;
  int64_t last_sequence_ = 0;
  std::deque<std::string> waiting_;  // frames
};

// Reads an event file that may still grow. DATA_LOSS: the file is damaged before its end.
class EventReader {
 public:
  // Starts at `offset`, which must be a frame's border. NOT_FOUND when there is no file.
  static StatusOr<EventReader> Open(const std::string& path, int64_t offset = 0);

  // The next event, nullopt at the present end (a torn tail is no event).
  StatusOr<std::optional<v1::ShimEvent>> Next();
  int64_t offset() const { return offset_; }  // behind the last whole frame that was returned

 private:
  UniqueFd fd_;
  std::string path_;
  int64_t offset_ = 0;
  int64_t read_offset_ = 0;
  FrameParser parser_;
};

}  // namespace tutti::worker
