#include "engine/ops/conv2d/small_input_cpu.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/runtime/cpu/parallel.h"

namespace tutti {
namespace {

constexpr int64_t kLanes = 8;    // output channels of one accumulator
constexpr int64_t kGroups = 16;  // of images
constexpr int64_t kMaxTaps = 64;

// One image's share for 8 output channels: taps are cut into rows of `Columns` neighbours, `Rows` of which are summed
// at once, so that all sums stay in registers.
struct Rows {
  const float* const* taps;  // first tap of each row: a place in the padded image
  int64_t pitch;             // floats between rows of the padded image
  const float* dy;           // 8 channels of the first position
  int64_t dy_step;           // floats between positions
  int64_t out_height, out_width, stride;
};

// sums[(row, column)][lane] += x * dy; bias_sums[lane] += dy unless null.
template <int kRows, int kColumns>
void AddGeneric(const Rows& r, float* sums, float* bias_sums) {
  for (int64_t oh = 0; oh < r.out_height; ++oh) {
    for (int64_t ow = 0; ow < r.out_width; ++ow) {
      const float* dy = r.dy + (oh * r.out_width + ow) * r.dy_step;
      const int64_t offset = oh * r.stride * r.pitch + ow * r.stride;
      for (int row = 0; row < kRows; ++row) {
        for (int column = 0; column < kColumns; ++column) {
          const float x = r.taps[row][offset + column];
          for (int lane = 0; lane < kLanes; ++lane) sums[(row * kColumns + column) * kLanes + lane] += x * dy[lane];
        }
      }
      if (bias_sums == nullptr) continue;
      for (int lane = 0; lane < kLanes; ++lane) bias_sums[lane] += dy[lane];
    }
  }
}

template <int kRows, int kColumns>
__attribute__((target("avx2,fma"))) void AddAvx2(const Rows& r, float* sums, float* bias_sums) {
  __m256 total[kRows * kColumns];
  // Every loop over `total` is unrolled, or the sums would live in memory.
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kColumns; ++i) total[i] = _mm256_setzero_ps();
  __m256 bias = _mm256_setzero_ps();
  const float* taps[kRows];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) taps[row] = r.taps[row];
  for (int64_t oh = 0; oh < r.out_height; ++oh) {
    const float* dy = r.dy + oh * r.out_width * r.dy_step;
    int64_t offset = oh * r.stride * r.pitch;
    for (int64_t ow = 0; ow < r.out_width; ++ow, dy += r.dy_step, offset += r.stride) {
      const __m256 d = _mm256_loadu_ps(dy);
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
        for (int column = 0; column < kColumns; ++column) {
          __m256& t = total[row * kColumns + column];
          t = _mm256_fmadd_ps(_mm256_broadcast_ss(taps[row] + offset + column), d, t);
        }
      }
      bias = _mm256_add_ps(bias, d);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows * kColumns; ++i) {
    _mm256_storeu_ps(sums + i * kLanes, _mm256_add_ps(_mm256_loadu_ps(sums + i * kLanes), total[i]));
  }
  if (bias_sums != nullptr) _mm256_storeu_ps(bias_sums, _mm256_add_ps(_mm256_loadu_ps(bias_sums), bias));
}

class SmallInputGradWeights final : public CpuKernel {
 public:
  SmallInputGradWeights(const SmallInputShape& shape, int threads)
      : s_(shape),
        threads_(threads),
        groups_(std::min(kGroups, shape.images)),
        avx2_(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {}

  // Floats: a padded image for each group, then each group's sums (8-channel block, tap or bias, lane).
  int64_t padded_height() const { return s_.height + 2 * s_.padding; }
  int64_t padded_width() const { return s_.width + 2 * s_.padding; }
  int64_t image_floats() const { return (s_.channels * padded_height() * padded_width() + 15) / 16 * 16; }
  int64_t blocks() const { return (s_.outputs + kLanes - 1) / kLanes; }
  int64_t sums_floats() const { return blocks() * (s_.taps() + 1) * kLanes; }
  int64_t scratch_bytes() const { return groups_ * (image_floats() + sums_floats()) * 4; }

  void Run(const KernelArgs& args) override {
    const auto* x = static_cast<const float*>(args.inputs[0]);
    const auto* dy = static_cast<const float*>(args.inputs[1]);
    auto* images = static_cast<float*>(args.scratch);
    float* sums = images + groups_ * image_floats();
    ParallelFor(threads_, groups_, [&](int64_t group) {
      SumGroup(group, x, dy, images + group * image_floats(), sums + group * sums_floats());
    });
    AddGroups(sums, static_cast<float*>(args.outputs[0]), s_.has_bias ? static_cast<float*>(args.outputs[1]) : nullptr);
  }

 private:
  void SumGroup(int64_t group, const float* x, const float* dy, float* image, float* sums) const {
    std::memset(sums, 0, static_cast<size_t>(sums_floats()) * sizeof(float));
    std::memset(image, 0, static_cast<size_t>(image_floats()) * sizeof(float));
    const int64_t first = s_.images * group / groups_, last = s_.images * (group + 1) / groups_;
    const int64_t positions = s_.out_height * s_.out_width;
    const int64_t padded_outputs = (s_.outputs + s_.block - 1) / s_.block * s_.block;
    for (int64_t n = first; n < last; ++n) {
      Pad(x + n * s_.channels * s_.height * s_.width, image);
      for (int64_t b = 0; b < blocks(); ++b) {
        const int64_t channel = b * kLanes;
        const float* block =
            dy + n * padded_outputs * positions + channel / s_.block * positions * s_.block + channel % s_.block;
        SumBlock(image, block, sums + b * (s_.taps() + 1) * kLanes);
      }
    }
  }

  void Pad(const float* x, float* image) const {
    for (int64_t c = 0; c < s_.channels; ++c) {
      for (int64_t h = 0; h < s_.height; ++h) {
        std::memcpy(image + (c * padded_height() + h + s_.padding) * padded_width() + s_.padding,
                    x + (c * s_.height + h) * s_.width, static_cast<size_t>(s_.width) * sizeof(float));
      }
    }
  }

  // One image, 8 output channels: all taps, at most nine at once.
  void SumBlock(const float* image, const float* dy, float* sums) const {
    const float* taps[kMaxTaps];
    const bool threes = s_.kernel_width == 3;
    int64_t rows = 0;
    for (int64_t c = 0; c < s_.channels; ++c) {
      for (int64_t kh = 0; kh < s_.kernel_height; ++kh) {
        for (int64_t kw = 0; kw < (threes ? 1 : s_.kernel_width); ++kw) {
          taps[rows++] = image + (c * padded_height() + kh) * padded_width() + kw;
        }
      }
    }
    float* bias = sums + s_.taps() * kLanes;
    Rows r{taps, padded_width(), dy, s_.block, s_.out_height, s_.out_width, s_.stride};
    const int64_t at_once = threes ? 3 : 8, columns = threes ? 3 : 1;
    for (int64_t row = 0; row < rows;) {
      const bool many = rows - row >= at_once;
      r.taps = taps + row;
      float* bias_once = row == 0 ? bias : nullptr;
      float* to = sums + row * columns * kLanes;
      if (threes) {
        many ? Add<3, 3>(r, to, bias_once) : Add<1, 3>(r, to, bias_once);
      } else {
        many ? Add<8, 1>(r, to, bias_once) : Add<1, 1>(r, to, bias_once);
      }
      row += many ? at_once : 1;
    }
  }

  template <int kRows, int kColumns>
  void Add(const Rows& r, float* sums, float* bias) const {
    avx2_ ? AddAvx2<kRows, kColumns>(r, sums, bias) : AddGeneric<kRows, kColumns>(r, sums, bias);
  }

  void AddGroups(const float* sums, float* dw, float* db) const {
    for (int64_t o = 0; o < s_.outputs; ++o) {
      const int64_t block = o / kLanes * (s_.taps() + 1) * kLanes + o % kLanes;
      for (int64_t tap = 0; tap <= s_.taps(); ++tap) {
        float total = 0;
        for (int64_t group = 0; group < groups_; ++group) total += sums[group * sums_floats() + block + tap * kLanes];
        if (tap < s_.taps()) {
          dw[o * s_.taps() + tap] = total;
        } else if (db != nullptr) {
          db[o] = total;
        }
      }
    }
  }

  const SmallInputShape s_;
  const int threads_;
  const int64_t groups_;
  const bool avx2_;
};

}  // namespace

bool SuitsSmallInput(const SmallInputShape& shape) {
  return shape.taps() <= kMaxTaps && (shape.block == 8 || shape.block == 16);
}

SmallInputKernel MakeSmallInputGradWeights(const SmallInputShape& shape, int threads) {
  auto kernel = std::make_unique<SmallInputGradWeights>(shape, threads);
  const int64_t scratch_bytes = kernel->scratch_bytes();
  return {std::move(kernel), scratch_bytes};
}

}  // namespace tutti
