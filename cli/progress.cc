#include "cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "cli/text.h"

namespace tutti::cli {
namespace {

constexpr double kWindowMillis = 10'000;
constexpr int64_t kWarmupSteps = 2;
constexpr size_t kBarColumns = 20;

// Eighths of a column.
std::string Bar(double fraction) {
  constexpr std::array<const char*, 8> kPart = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<size_t>(std::clamp(fraction, 0.0, 1.0) * kBarColumns * 8);
  std::string bar;
  for (size_t i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kPart[eighths % 8];
  return bar + std::string(kBarColumns - DisplayWidth(bar), ' ');
}

std::string Position(const ProgressTracker& progress) {
  const int64_t step = progress.last()->step();
  return progress.total_steps() > 0 ? fmt::format("{}/{}", WithCommas(step), WithCommas(progress.total_steps()))
                                    : WithCommas(step);
}

std::string Epoch(const ProgressTracker& progress) {
  if (progress.last()->epoch() <= 0) return "";
  return progress.epochs() > 0 ? fmt::format("epoch {}/{}", progress.last()->epoch(), progress.epochs())
                               : fmt::format("epoch {}", progress.last()->epoch());
}

std::string Values(const ProgressTracker& progress) {
  const v1::StepRecord& last = *progress.last();
  std::string text = fmt::format("loss {}", Significant(last.loss()));
  if (last.accuracy() >= 0) text += fmt::format("  acc {:.3f}", last.accuracy());
  if (const double rate = progress.samples_per_second(); rate > 0)
    text += fmt::format("  {} samples/s", WithCommas(std::llround(rate)));
  if (const double left = progress.seconds_left(); left >= 0) text += fmt::format("  {} left", DurationText(left));
  if (last.skipped()) text += fmt::format("  SKIPPED: non-finite gradient ({})", Printable(last.skip_cause()));
  return text;
}

}  // namespace

void ProgressTracker::Add(const v1::StepRecord& record) {
  const bool restarted = last_ && record.step() <= last_->step();
  if (!last_ || restarted) {
    window_.clear();
    first_step_ = record.step();
    printed_ = -1;
  }
  last_ = record;
  if (record.step() < first_step_ + kWarmupSteps) return;
  window_.push_back({record.step(), record.samples(), record.start_unix_ms()});
  while (window_.size() > 2 && window_.back().start_unix_ms - window_.front().start_unix_ms > kWindowMillis)
    window_.pop_front();
}

double ProgressTracker::StepMillis() const {
  if (window_.size() >= 2 && window_.back().step > window_.front().step) {
    const double per_step = (window_.back().start_unix_ms - window_.front().start_unix_ms) /
                            static_cast<double>(window_.back().step - window_.front().step);
    if (per_step > 0) return per_step;
  }
  return window_.empty() ? 0 : last_->step_ms();
}

double ProgressTracker::samples_per_second() const {
  const double step_ms = StepMillis();
  // The front's batch: the job's last one may be short.
  return step_ms > 0 ? 1000.0 * static_cast<double>(window_.front().samples) / step_ms : 0;
}

double ProgressTracker::seconds_left() const {
  const double step_ms = StepMillis();
  if (step_ms <= 0 || total_steps_ <= 0) return -1;
  return static_cast<double>(std::max<int64_t>(0, total_steps_ - last_->step())) * step_ms / 1000;
}

bool ProgressTracker::PlainLineDue(int64_t every) {
  if (!last_) return false;
  every = std::max<int64_t>(1, every);
  const int64_t step = last_->step();
  const bool due = printed_ < 0 || step / every > printed_ / every || step == total_steps_ || last_->skipped();
  if (!due || step == printed_) return false;
  printed_ = step;
  return true;
}

std::string PlainStepLine(const ProgressTracker& progress) {
  const std::string epoch = Epoch(progress);
  return fmt::format("step {}  {}{}{}", Position(progress), epoch, epoch.empty() ? "" : "  ", Values(progress));
}

std::string BarLine(const ProgressTracker& progress, size_t width) {
  const double fraction = progress.total_steps() > 0 ? static_cast<double>(progress.last()->step()) /
                                                           static_cast<double>(progress.total_steps())
                                                     : 0;
  return Clip(fmt::format("{} {} {:>13}  {}", Epoch(progress), Bar(fraction), Position(progress), Values(progress)),
              width);
}

std::string TimeLine(const v1::StepRecord& record, size_t width) {
  std::string text = fmt::format("          step {:.1f} ms: forward {:.1f} backward {:.1f}", record.step_ms(),
                                 record.forward_ms(), record.backward_ms());
  text += fmt::format(" exchange {:.1f} ({:.1f} exposed) optimizer {:.1f} input {:.1f}", record.exchange_ms(),
                      record.exposed_exchange_ms(), record.optimizer_ms(), record.data_wait_ms());
  if (record.checkpoint_ms() >= 0.05) text += fmt::format(" checkpoint {:.1f}", record.checkpoint_ms());
  const double known = record.forward_ms() + record.backward_ms() + record.exposed_exchange_ms() +
                       record.optimizer_ms() + record.data_wait_ms() + record.checkpoint_ms();
  return Clip(text + fmt::format(" other {:.1f}", std::max(0.0, record.step_ms() - known)), width);
}

}  // namespace tutti::cli
