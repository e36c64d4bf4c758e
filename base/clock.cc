#include "base/clock.h"

namespace tutti {
namespace {

class RealClock final : public Clock {
 public:
  Nanos Monotonic() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
  int64_t UnixMillis() const override {
    return std::chrono::duration_cast<Millis>(std::chrono::system_clock::now().time_since_epoch()).count();
  }
};

}  // namespace

const Clock& SystemClock() {
  static const RealClock clock;
  return clock;
}

}  // namespace tutti
