// From stored samples to the model's inputs: x = (value * scale - mean) / std in double, rounded once to f32; scale is
// 1/255 for bytes and 1 for f32. A byte has 256 values, so its conversion is one table look-up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/data/dataset.h"

namespace tutti {

struct Normalization {
  double mean = 0.0;
  double std = 1.0;  // != 0
};

// Reads normalised samples of one data set. One thread per reader; no allocation in Read.
class SampleReader {
 public:
  SampleReader(const Dataset& dataset, Normalization normalization);
  Status Read(int64_t row, float* x, int32_t* label);  // x: (sample shape)
  const Dataset& dataset() const { return *dataset_; }

 private:
  const Dataset* dataset_;
  Normalization normalization_;
  std::array<float, 256> table_;
  std::vector<std::byte> raw_;  // one sample
};

}  // namespace tutti
