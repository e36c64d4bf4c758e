// Own weight gradient of a convolution over very few input channels (the first layer of an image network), where oneDNN
// has only reference code on AVX2. x is plain NCHW, dy is blocked by 8 or 16 channels; dw (O, C, KH, KW) and db are
// plain.
//
// Images are cut into a fixed number of groups, whatever the threads; groups add up in order: the bits do not depend on
// threads.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/runtime/cpu/kernel.h"

namespace tutti {

struct SmallInputShape {
  int64_t images, channels, height, width;  // x
  int64_t outputs, out_height, out_width;   // dy
  int64_t block;                            // channels of dy that lie together: 8 or 16
  int64_t kernel_height, kernel_width, stride, padding;
  bool has_bias;
  int64_t taps() const { return channels * kernel_height * kernel_width; }
};

// Worth it and possible: the number of taps is small.
bool SuitsSmallInput(const SmallInputShape& shape);

struct SmallInputKernel {
  std::unique_ptr<CpuKernel> kernel;  // inputs (x, dy), outputs (dw [, db])
  int64_t scratch_bytes = 0;
};
SmallInputKernel MakeSmallInputGradWeights(const SmallInputShape& shape, int threads);

}  // namespace tutti
