// Own products for dense layers on AVX2, where oneDNN's inner product repacks its operands on every call. The weight is
// kept in panels of 16 outputs for life: (U / 16, K, 16), K in the order in which a sample of x lies. All three
// products read it as it is; only activations are packed. Each element of a result is summed in one fixed order: the
// bits do not depend on threads.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/runtime/cpu/kernel.h"

namespace tutti {

inline constexpr int64_t kPanelUnits = 16;

struct PanelShape {
  int64_t rows = 0;   // N
  int64_t units = 0;  // U, a multiple of kPanelUnits
  int64_t width = 0;  // K
};

// The processor has AVX2 and FMA, but not AVX-512 (whose blocked products oneDNN has), and the product is large enough
// to be worth it.
bool SuitsPanels(const PanelShape& shape);

// Layout of the weight as a tensor (U, K), or (U, C, H, W) for samples blocked by `channel_block` channels (1: plain
// order).
CpuLayout PanelWeightLayout(const std::vector<int64_t>& dims, int64_t channel_block);

struct PanelKernel {
  std::unique_ptr<CpuKernel> kernel;
  int64_t scratch_bytes = 0;
};
PanelKernel MakePanelForward(const PanelShape& shape, bool has_bias, bool relu, int threads);  // (x, w [, b]) -> y
PanelKernel MakePanelGradInput(const PanelShape& shape, int threads);                          // (dy, w) -> dx
PanelKernel MakePanelGradWeights(const PanelShape& shape, bool has_bias, int threads);         // (x, dy) -> dw [, db]

}  // namespace tutti
