// Own pooling: one pass over memory, in whatever order the channels lie. Planes are independent: the bits do not depend
// on threads.
#include "engine/ops/pool/pool_cpu.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/ops/attributes.h"
#include "engine/ops/channels_cpu.h"
#include "engine/ops/dnnl_kernel_cpu.h"
#include "engine/runtime/cpu/parallel.h"

namespace tutti {
namespace {

// One plane: the positions of `inner` channels that lie together.
struct Window {
  int64_t height, width;          // of x
  int64_t out_height, out_width;  // of y
  int64_t size, stride, padding;
  int64_t inner;
  int64_t planes;

  int64_t x_plane() const { return height * width * inner; }
  int64_t y_plane() const { return out_height * out_width * inner; }
  // Windows tile the image from its corner: each element of x is in one window at most.
  bool tiles() const { return stride == size && padding == 0; }
};

struct Range {
  int64_t begin, end;
};
// The part of window `out` that lies in [0, size), counted from the window's start.
inline Range Inside(const Window& w, int64_t out, int64_t size) {
  const int64_t start = out * w.stride - w.padding;
  return {std::max<int64_t>(0, -start), std::min(w.size, size - start)};
}

// For each window in order: begin(index of y's first channel, place in the window of the first element inside the
// image), then element(index of y's, index of x's first channel, place) for each element, then end(index of y's first
// channel, elements).
template <typename Begin, typename Element, typename End>
inline __attribute__((always_inline)) void Walk(const Window& w, const Begin& begin, const Element& element,
                                                const End& end) {
  for (int64_t oh = 0; oh < w.out_height; ++oh) {
    const Range rows = Inside(w, oh, w.height);
    for (int64_t ow = 0; ow < w.out_width; ++ow) {
      const Range columns = Inside(w, ow, w.width);
      const int64_t y = (oh * w.out_width + ow) * w.inner;
      begin(y, rows.begin * w.size + columns.begin);
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        const int64_t line = (oh * w.stride - w.padding + row) * w.width + ow * w.stride - w.padding;
        for (int64_t column = columns.begin; column < columns.end; ++column) {
          element(y, (line + column) * w.inner, row * w.size + column);
        }
      }
      end(y, (rows.end - rows.begin) * (columns.end - columns.begin));
    }
  }
}

// kInner channels at once, at offset `lane` of each position. NaN wins, as everywhere.
template <int kInner>
inline __attribute__((always_inline)) void MaxLanes(const Window& w, const float* x, float* y, uint8_t* winner) {
  float best[kInner];
  int32_t place[kInner];
  Walk(
      w,
      [&](int64_t, int64_t first) {
        std::fill(best, best + kInner, -std::numeric_limits<float>::infinity());
        std::fill(place, place + kInner, static_cast<int32_t>(first));
      },
      [&](int64_t, int64_t from, int64_t where) {
        for (int i = 0; i < kInner; ++i) {
          const float value = x[from + i];
          const bool greater = (value > best[i]) | ((value != value) & (best[i] == best[i]));
          best[i] = greater ? value : best[i];
          place[i] = greater ? static_cast<int32_t>(where) : place[i];
        }
      },
      [&](int64_t to, int64_t) {
        for (int i = 0; i < kInner; ++i) y[to + i] = best[i];
        for (int i = 0; i < kInner; ++i) winner[to + i] = static_cast<uint8_t>(place[i]);
      });
}

// Lanes of 8 at a time, then single ones (channels last of an odd number, plain).
#define TUTTI_FOR_LANES(inner, Lanes, ...)                        \
  do {                                                            \
    int64_t lane = 0;                                             \
    for (; lane + 8 <= (inner); lane += 8) Lanes<8>(__VA_ARGS__); \
    for (; lane < (inner); ++lane) Lanes<1>(__VA_ARGS__);         \
  } while (false)

TUTTI_VECTORIZE void MaxPlane(const Window& w, const float* x, float* y, uint8_t* winner) {
  TUTTI_FOR_LANES(w.inner, MaxLanes, w, x + lane, y + lane, winner + lane);
}

template <int kInner>
inline __attribute__((always_inline)) void AverageLanes(const Window& w, const float* x, float* y) {
  float sum[kInner];
  Walk(
      w, [&](int64_t, int64_t) { std::fill(sum, sum + kInner, 0.0f); },
      [&](int64_t, int64_t from, int64_t) {
        for (int i = 0; i < kInner; ++i) sum[i] += x[from + i];
      },
      [&](int64_t to, int64_t count) {
        const float scale = 1.0f / static_cast<float>(count);
        for (int i = 0; i < kInner; ++i) y[to + i] = sum[i] * scale;
      });
}
TUTTI_VECTORIZE void AveragePlane(const Window& w, const float* x, float* y) {
  TUTTI_FOR_LANES(w.inner, AverageLanes, w, x + lane, y + lane);
}

// dx of one plane; where windows tile the image each element is written once, else all are set to zero before.
template <int kInner>
inline __attribute__((always_inline)) void MaxGradLanes(const Window& w, const float* dy, const uint8_t* winner,
                                                        float* dx) {
  const bool tiles = w.tiles();
  Walk(
      w, [](int64_t, int64_t) {},
      [&](int64_t y, int64_t x, int64_t where) {
        float value[kInner];
        for (int i = 0; i < kInner; ++i) value[i] = winner[y + i] == static_cast<uint8_t>(where) ? dy[y + i] : 0.0f;
        if (tiles) {
          for (int i = 0; i < kInner; ++i) dx[x + i] = value[i];
        } else {
          for (int i = 0; i < kInner; ++i) dx[x + i] += value[i];
        }
      },
      [](int64_t, int64_t) {});
}
TUTTI_VECTORIZE void MaxGradPlane(const Window& w, const float* dy, const uint8_t* winner, float* dx) {
  TUTTI_FOR_LANES(w.inner, MaxGradLanes, w, dy + lane, winner + lane, dx + lane);
}

template <int kInner>
inline __attribute__((always_inline)) void AverageGradLanes(const Window& w, const float* dy, float* dx) {
  float scale = 0;
  Walk(
      w,
      [&](int64_t y, int64_t) {
        const Range rows = Inside(w, y / w.inner / w.out_width, w.height),
                    columns = Inside(w, y / w.inner % w.out_width, w.width);
        scale = 1.0f / static_cast<float>((rows.end - rows.begin) * (columns.end - columns.begin));
      },
      [&](int64_t y, int64_t x, int64_t) {
        for (int i = 0; i < kInner; ++i) dx[x + i] += dy[y + i] * scale;
      },
      [](int64_t, int64_t) {});
}
TUTTI_VECTORIZE void AverageGradPlane(const Window& w, const float* dy, float* dx) {
  TUTTI_FOR_LANES(w.inner, AverageGradLanes, w, dy + lane, dx + lane);
}

// The same with AVX2, for 8 channels of each position. kSize: of windows that tile the image, or 0.
template <int kSize>
__attribute__((target("avx2"))) void MaxLanesAvx2(const Window& window, const float* x, float* y, uint8_t* winner) {
  const Window w = window;
  for (int64_t oh = 0; oh < w.out_height; ++oh) {
    const Range rows = kSize > 0 ? Range{0, kSize} : Inside(w, oh, w.height);
    for (int64_t ow = 0; ow < w.out_width; ++ow) {
      const Range columns = kSize > 0 ? Range{0, kSize} : Inside(w, ow, w.width);
      const int64_t size = kSize > 0 ? kSize : w.size;
      __m256 best = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
      __m256 place = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(rows.begin * size + columns.begin)));
#pragma GCC unroll 4
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        const int64_t line = (oh * w.stride - w.padding + row) * w.width + ow * w.stride - w.padding;
#pragma GCC unroll 4
        for (int64_t column = columns.begin; column < columns.end; ++column) {
          const __m256 value = _mm256_loadu_ps(x + (line + column) * w.inner);
          const __m256 where = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(row * size + column)));
          const __m256 greater =
              _mm256_and_ps(_mm256_cmp_ps(value, best, _CMP_NLE_UQ), _mm256_cmp_ps(best, best, _CMP_ORD_Q));
          best = _mm256_blendv_ps(best, value, greater);
          place = _mm256_blendv_ps(place, where, greater);
        }
      }
      const int64_t to = (oh * w.out_width + ow) * w.inner;
      _mm256_storeu_ps(y + to, best);
      const __m256i places = _mm256_castps_si256(place);
      const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(places), _mm256_extracti128_si256(places, 1));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(winner + to), _mm_packus_epi16(halves, halves));
    }
  }
}

template <bool kTiles>
__attribute__((target("avx2"))) void MaxGradLanesAvx2(const Window& w, const float* dy, const uint8_t* winner,
                                                      float* dx) {
  for (int64_t oh = 0; oh < w.out_height; ++oh) {
    const Range rows = Inside(w, oh, w.height);
    for (int64_t ow = 0; ow < w.out_width; ++ow) {
      const Range columns = Inside(w, ow, w.width);
      const int64_t from = (oh * w.out_width + ow) * w.inner;
      const __m256 gradient = _mm256_loadu_ps(dy + from);
      const __m256i won = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(winner + from)));
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        const int64_t line = (oh * w.stride - w.padding + row) * w.width + ow * w.stride - w.padding;
        for (int64_t column = columns.begin; column < columns.end; ++column) {
          const __m256i where = _mm256_set1_epi32(static_cast<int>(row * w.size + column));
          __m256 value = _mm256_and_ps(gradient, _mm256_castsi256_ps(_mm256_cmpeq_epi32(won, where)));
          float* to = dx + (line + column) * w.inner;
          if (!kTiles) value = _mm256_add_ps(value, _mm256_loadu_ps(to));
          _mm256_storeu_ps(to, value);
        }
      }
    }
  }
}

void MaxPlaneAvx2(const Window& w, const float* x, float* y, uint8_t* winner) {
  const auto lanes = w.tiles() && w.size == 2 ? MaxLanesAvx2<2> : MaxLanesAvx2<0>;
  for (int64_t lane = 0; lane < w.inner; lane += 8) lanes(w, x + lane, y + lane, winner + lane);
}
void MaxGradPlaneAvx2(const Window& w, const float* dy, const uint8_t* winner, float* dx) {
  for (int64_t lane = 0; lane < w.inner; lane += 8) {
    w.tiles() ? MaxGradLanesAvx2<true>(w, dy + lane, winner + lane, dx + lane)
              : MaxGradLanesAvx2<false>(w, dy + lane, winner + lane, dx + lane);
  }
}

enum class Kind { kMax, kMaxGrad, kAverage, kAverageGrad };

class PoolKernel final : public CpuKernel {
 public:
  PoolKernel(Kind kind, const Window& window, int threads)
      : kind_(kind), w_(window), threads_(threads), avx2_(window.inner % 8 == 0 && __builtin_cpu_supports("avx2")) {}

  void Run(const KernelArgs& args) override {
    ParallelFor(threads_, w_.planes, [&](int64_t plane) { RunPlane(args, plane); });
  }

 private:
  void RunPlane(const KernelArgs& args, int64_t plane) const {
    const auto* in = static_cast<const float*>(args.inputs[0]);
    auto* out = static_cast<float*>(args.outputs[0]);
    const int64_t x = plane * w_.x_plane(), y = plane * w_.y_plane();
    switch (kind_) {
      case Kind::kMax:
        return (avx2_ ? MaxPlaneAvx2 : MaxPlane)(w_, in + x, out + y, static_cast<uint8_t*>(args.outputs[1]) + y);
      case Kind::kAverage:
        return AveragePlane(w_, in + x, out + y);
      case Kind::kMaxGrad:
        if (!w_.tiles() || w_.height % w_.size != 0 || w_.width % w_.size != 0) Clear(out + x);
        return (avx2_ ? MaxGradPlaneAvx2 : MaxGradPlane)(w_, in + y, static_cast<const uint8_t*>(args.inputs[1]) + y,
                                                         out + x);
      case Kind::kAverageGrad:
        Clear(out + x);
        return AverageGradPlane(w_, in + y, out + x);
    }
  }

  void Clear(float* plane) const { std::memset(plane, 0, static_cast<size_t>(w_.x_plane()) * sizeof(float)); }

  const Kind kind_;
  const Window w_;
  const int threads_;
  const bool avx2_;
};

StatusOr<KernelPlan> PlanPool(const KernelRequest& request, Kind kind) {
  const Node& node = *request.node;
  const bool is_grad = kind == Kind::kMaxGrad || kind == Kind::kAverageGrad;
  // Winners keep the order of the forward pass, so that dy follows them.
  const ChannelLayout channels = RequestedChannelLayout(request, kind == Kind::kMaxGrad ? 1 : 0);
  const TensorType& x = is_grad ? OutputType(request, 0) : InputType(request, 0);
  const TensorType& y = is_grad ? InputType(request, 0) : OutputType(request, 0);
  const int64_t size = IntAttribute(node, "size");
  const Window window{.height = x.dims[2],
                      .width = x.dims[3],
                      .out_height = y.dims[2],
                      .out_width = y.dims[3],
                      .size = size,
                      .stride = IntAttributeOr(node, "stride", size),
                      .padding = IntAttributeOr(node, "padding", 0),
                      .inner = channels.inner,
                      .planes = x.dims[0] * channels.blocks};
  KernelPlan plan;
  for (const ValueId input : node.inputs)
    plan.input_layouts.push_back(WithChannelLayout(channels, request.graph->value(input).type));
  for (const ValueId output : node.outputs) {
    plan.output_layouts.push_back(WithChannelLayout(channels, request.graph->value(output).type));
  }
  plan.kernel = std::make_unique<PoolKernel>(kind, window, request.context.threads);
  plan.implementation = "tutti pool";
  return MatchDemandedOutputs(request, std::move(plan));
}

// y (N, C) plain; sums run over positions in order, 8 partial sums where the positions of a channel lie together.
class GlobalAveragePool final : public CpuKernel {
 public:
  GlobalAveragePool(const ChannelLayout& layout, const TensorType& x, bool is_grad, int threads)
      : layout_(layout),
        channels_(x.dims[1]),
        images_(x.dims[0]),
        positions_(x.dims[2] * x.dims[3]),
        is_grad_(is_grad),
        threads_(threads) {}

  void Run(const KernelArgs& args) override {
    const auto* in = static_cast<const float*>(args.inputs[0]);
    auto* out = static_cast<float*>(args.outputs[0]);
    ParallelFor(threads_, images_ * layout_.blocks, [&](int64_t block) {
      const int64_t first = block % layout_.blocks * layout_.inner;  // channel
      const int64_t pooled = block / layout_.blocks * channels_ + first;
      const int64_t plane = block * positions_ * layout_.inner;
      const int64_t count = std::min(layout_.inner, channels_ - first);  // without padding
      is_grad_ ? Spread(in + pooled, count, out + plane) : Sum(in + plane, count, out + pooled);
    });
  }

 private:
  void Sum(const float* x, int64_t count, float* y) const {
    constexpr int64_t kPartial = 8;
    const float scale = 1.0f / static_cast<float>(positions_);
    if (layout_.inner == 1) {
      float partial[kPartial] = {};
      int64_t s = 0;
      for (; s + kPartial <= positions_; s += kPartial) {
        for (int64_t i = 0; i < kPartial; ++i) partial[i] += x[s + i];
      }
      for (int64_t i = 0; s < positions_; ++s, ++i) partial[i] += x[s];
      float sum = 0;
      for (const float value : partial) sum += value;
      y[0] = sum * scale;
      return;
    }
    std::fill(y, y + count, 0.0f);
    for (int64_t s = 0; s < positions_; ++s) {
      for (int64_t i = 0; i < count; ++i) y[i] += x[s * layout_.inner + i];
    }
    for (int64_t i = 0; i < count; ++i) y[i] *= scale;
  }

  void Spread(const float* dy, int64_t count, float* dx) const {
    const float scale = 1.0f / static_cast<float>(positions_);
    for (int64_t s = 0; s < positions_; ++s) {
      for (int64_t i = 0; i < layout_.inner; ++i) dx[s * layout_.inner + i] = i < count ? dy[i] * scale : 0.0f;
    }
  }

  const ChannelLayout layout_;
  const int64_t channels_, images_, positions_;
  const bool is_grad_;
  const int threads_;
};

StatusOr<KernelPlan> PlanGlobal(const KernelRequest& request, bool is_grad) {
  const TensorType& x = is_grad ? OutputType(request, 0) : InputType(request, 0);
  const TensorType& y = is_grad ? InputType(request, 0) : OutputType(request, 0);
  const ChannelLayout channels = is_grad ? PreferredChannelLayout(x.dims[1]) : RequestedChannelLayout(request, 0);
  KernelPlan plan;
  plan.input_layouts = {is_grad ? PlainLayout(y) : WithChannelLayout(channels, x)};
  plan.output_layouts = {is_grad ? WithChannelLayout(channels, x) : PlainLayout(y)};
  plan.kernel = std::make_unique<GlobalAveragePool>(channels, x, is_grad, request.context.threads);
  plan.implementation = "tutti pool";
  return MatchDemandedOutputs(request, std::move(plan));
}

KernelFactory Pool(Kind kind) {
  return [kind](const KernelRequest& request) {
    return CatchDnnl(*request.node, [&] { return PlanPool(request, kind); });
  };
}
KernelFactory Global(bool is_grad) {
  return [is_grad](const KernelRequest& request) {
    return CatchDnnl(*request.node, [&] { return PlanGlobal(request, is_grad); });
  };
}

}  // namespace

Status RegisterPoolCpu(KernelRegistry* kernels) {
  TUTTI_RETURN_IF_ERROR(kernels->Register("max_pool", Pool(Kind::kMax)));
  TUTTI_RETURN_IF_ERROR(kernels->Register("max_pool_grad", Pool(Kind::kMaxGrad)));
  TUTTI_RETURN_IF_ERROR(kernels->Register("avg_pool", Pool(Kind::kAverage)));
  TUTTI_RETURN_IF_ERROR(kernels->Register("avg_pool_grad", Pool(Kind::kAverageGrad)));
  TUTTI_RETURN_IF_ERROR(kernels->Register("global_avg_pool", Global(false)));
  return kernels->Register("global_avg_pool_grad", Global(true));
}

}  // namespace tutti
