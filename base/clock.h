// Time enters through here. Cores take `now` as an argument; shells own a Clock, so that tests and the simulator
// replace it.
#pragma once

#include <chrono>
#include <cstdint>

namespace tutti {

using Nanos = std::chrono::nanoseconds;
using Millis = std::chrono::milliseconds;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanos Monotonic() const = 0;     // since an arbitrary origin; never goes back
  virtual int64_t UnixMillis() const = 0;  // wall clock, for display only: order is by revision, never by clock
};

// The system's clocks. Thread-safe; lives as long as the process.
const Clock& SystemClock();

}  // namespace tutti
