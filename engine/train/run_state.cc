#include "engine/train/run_state.h"

namespace tutti {

void ControlBox::Raise(v1::Intent intent) {
  int seen = intent_.load();
  while (seen < intent && !intent_.compare_exchange_weak(seen, intent)) {
  }
}

std::string RunState::Where() const {
  return fmt::format("{} (collective #{}) of step {}", doing_, comm.sequence(), step_);
}

void RunState::Emit(v1::RankEvent event) {
  if (!hooks_.emit) return;
  event.set_generation(config_.generation());
  event.set_rank(config_.rank());
  event.set_unix_ms(clock.UnixMillis());
  hooks_.emit(std::move(event));
}

void RunState::Beat() {
  last_beat_ = clock.Monotonic();
  v1::RankEvent event;
  event.mutable_heartbeat()->set_phase(phase_);
  event.mutable_heartbeat()->set_step(step_);
  event.mutable_heartbeat()->set_detail(std::string(doing_));
  Emit(std::move(event));
}

void RunState::BeatIfDue() {
  if (clock.Monotonic() - last_beat_ >= std::chrono::seconds(1)) Beat();
}

void RunState::Notice(v1::NoticeLevel level, std::string message) {
  v1::RankEvent event;
  event.mutable_notice()->set_level(level);
  event.mutable_notice()->set_message(std::move(message));
  Emit(std::move(event));
}

}  // namespace tutti
