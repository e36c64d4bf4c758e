// Where a run is: rates and the time left from the step records that arrive (at most ten a second: some steps are not
// seen). Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "tutti/v1/rank.pb.h"

namespace tutti::cli {

class ProgressTracker {
 public:
  // `total_steps` 0: not known yet.
  void SetTotals(int64_t total_steps, int64_t epochs) { total_steps_ = total_steps, epochs_ = epochs; }
  // A record of a new generation may go back; the window starts anew then. Warm-up (the first two steps of a start)
  // counts in neither samples nor time.
  void Add(const v1::StepRecord& record);

  const std::optional<v1::StepRecord>& last() const { return last_; }
  int64_t total_steps() const { return total_steps_; }
  int64_t epochs() const { return epochs_; }
  double samples_per_second() const;  // over the last ten seconds; 0: not known yet
  double seconds_left() const;        // -1: not known
  // Every `every` steps, and the first step of a start: whether a plain line is due for the last record; remembers that
  // it was.
  bool PlainLineDue(int64_t every);

 private:
  struct Point {
    int64_t step;
    int64_t samples;  // of one step
    double start_unix_ms;
  };
  double StepMillis() const;

  std::deque<Point> window_;
  std::optional<v1::StepRecord> last_;
  int64_t total_steps_ = 0, epochs_ = 0;
  int64_t first_step_ = 0;  // of this start
  int64_t printed_ = -1;    // step of the last plain line
};

// "step 100/1,407  epoch 1/3  loss 0.71  acc 0.75  3,790 samples/s  44.5 s left"
std::string PlainStepLine(const ProgressTracker& progress);
// The two lines of a terminal: the bar, and where the step's time goes. Cut to `width` columns.
std::string BarLine(const ProgressTracker& progress, size_t width);
std::string TimeLine(const v1::StepRecord& record, size_t width);

}  // namespace tutti::cli
