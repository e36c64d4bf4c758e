// What lies where in the memory that ranks share: header | one slot per rank | one staging area per rank | one window
// per rank. Zero-filled memory is a valid fresh region. Internal to comm.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/comm/call.h"

namespace tutti {

inline constexpr int64_t kSmallBytes = 32 << 10;   // a message that travels with its announcement
inline constexpr int64_t kStageBytes = 512 << 10;  // one of two staging buffers of a rank
inline constexpr int32_t kMaxInPlace = 4;          // partials of a rank that can be reduced inside windows

struct alignas(64) RegionHeader {
  std::atomic<int64_t> generation{0};  // 0: nobody attached yet
  std::atomic<int32_t> world_size{0};
  std::atomic<int64_t> window_bytes{-1};  // stored + 1, so that zero memory means unset
  std::atomic<uint32_t> attached{0};      // futex
  std::atomic<uint32_t> poison{0};        // 0 none, 1 being written, 2 readable
  int32_t poison_code = 0;                // absl::StatusCode
  int32_t poison_blamed = -1;
  char poison_text[480] = {};  // not terminated when full
};

struct Announcement {
  CallHeader call;
  int64_t inputs[kMaxInPlace] = {-1, -1, -1, -1};  // window offsets of what is reduced; -1: not in the window
  int64_t output = -1;
};

struct RankSlot {
  alignas(64) std::atomic<uint32_t> tick{0};  // futex
  alignas(64) std::atomic<uint32_t> waiters{0};
  std::atomic<uint32_t> left{0};      // dropped its communicator
  std::atomic<uint32_t> attached{0};  // 2: pid and start are readable
  std::atomic<int32_t> pid{0};        // 0: a thread of this process
  std::atomic<int64_t> start_ticks{0};
  alignas(64) Announcement announcements[2];  // by parity of the call's number
};

// Finds the parts of a region.
class RegionView {
 public:
  RegionView(std::byte* base, int32_t world_size, int64_t window_bytes)
      : base_(base), world_size_(world_size), window_bytes_(window_bytes) {}

  static int64_t TotalBytes(int32_t world_size, int64_t window_bytes);

  RegionHeader& header() const { return *reinterpret_cast<RegionHeader*>(base_); }
  RankSlot& slot(int32_t rank) const;
  // Sizes of an all-to-all of `rank`: world_size sent, then world_size expected.
  int64_t* row(int32_t rank, int parity) const;
  std::byte* small(int32_t rank, int parity) const;
  std::byte* in(int32_t rank, int64_t round) const;
  std::byte* out(int32_t rank, int64_t round) const;
  std::span<std::byte> window(int32_t rank) const;
  int32_t world_size() const { return world_size_; }

 private:
  std::byte* base_;
  int32_t world_size_;
  int64_t window_bytes_;
};

}  // namespace tutti
