#include "engine/ops/dense/panels_cpu.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/runtime/cpu/onednn.h"
#include "engine/runtime/cpu/parallel.h"

namespace tutti {
namespace {

#define TUTTI_AVX2 __attribute__((target("avx2,fma")))

// The tile of a result that is kept in registers: kTile rows of 16 columns are 12 of the 16 vector registers.
constexpr int64_t kTile = 6;
constexpr int64_t kPanel = kPanelUnits;
// Terms that are summed before the tile goes back to memory: a panel of them (16 KiB) and a packed tile (6 KiB) stay in
// the first cache.
constexpr int64_t kTerms = 256;
constexpr int64_t kUnroll = 16;
// Columns whose packed tiles stay in the second cache while the panels of the other operand pass.
constexpr int64_t kChunk = 20 * kTile;

constexpr int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
constexpr int64_t Tiles(int64_t count) { return (count + kTile - 1) / kTile; }

// How a tile's operand lies: `kTile` rows packed term by term, or 16 terms of a row together, as in the weight's
// panels. Either way 16 terms of a tile are 96 floats.
enum class Packing { kByTerm, kByRow };
constexpr int64_t kBlockFloats = kTile * kUnroll;

// One tile: result[r][c] = sum over `terms` of a(r, t) * b[t][c], added to what is there, bias added, negatives cut
// off, as asked.
struct TileOperands {
  const float* a;
  const float* b;
  int64_t terms;
  float* result;
  int64_t result_row;           // floats from one row to the next
  const float* bias = nullptr;  // 16 floats
  const float* next = nullptr;  // what will be read soon: `next_lines` cache lines
  int64_t next_lines = 0;
  bool add = false, relu = false;
};

template <int kRows, Packing kPacking>
TUTTI_AVX2 void MultiplyTile(const TileOperands& o) {
  constexpr int64_t kRow = kPacking == Packing::kByTerm ? 1 : kUnroll, kStep = kPacking == Packing::kByTerm ? kTile : 1;
  for (int64_t line = 0; line < o.next_lines; ++line)
    _mm_prefetch(reinterpret_cast<const char*>(o.next) + line * 64, _MM_HINT_T1);
  __m256 sum[kRows][2];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_ps();
  const float* a = o.a;
  const float* b = o.b;
  const auto step = [&](int64_t t) TUTTI_AVX2 {
    const __m256 b0 = _mm256_loadu_ps(b + t * kPanel), b1 = _mm256_loadu_ps(b + t * kPanel + 8);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m256 value = _mm256_broadcast_ss(a + r * kRow + t * kStep);
      sum[r][0] = _mm256_fmadd_ps(value, b0, sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(value, b1, sum[r][1]);
    }
  };
  for (int64_t block = o.terms / kUnroll; block > 0; --block) {
#pragma GCC unroll 8
    for (int t = 0; t < kUnroll; ++t) step(t);
    a += kBlockFloats;
    b += kUnroll * kPanel;
  }
  for (int64_t t = 0; t < o.terms % kUnroll; ++t) step(t);
  const __m256 zero = _mm256_setzero_ps();
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    float* to = o.result + r * o.result_row;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256 value = sum[r][half];
      if (o.add) value = _mm256_add_ps(_mm256_loadu_ps(to + half * 8), value);
      if (o.bias != nullptr) value = _mm256_add_ps(value, _mm256_loadu_ps(o.bias + half * 8));
      if (o.relu) value = _mm256_max_ps(value, zero);
      _mm256_storeu_ps(to + half * 8, value);
    }
  }
}

template <Packing kPacking>
void MultiplyRows(int64_t rows, const TileOperands& o) {
  switch (rows) {
    case 1:
      return MultiplyTile<1, kPacking>(o);
    case 2:
      return MultiplyTile<2, kPacking>(o);
    case 3:
      return MultiplyTile<3, kPacking>(o);
    case 4:
      return MultiplyTile<4, kPacking>(o);
    case 5:
      return MultiplyTile<5, kPacking>(o);
    default:
      return MultiplyTile<6, kPacking>(o);
  }
}

// Share of [0, count) of thread `index`.
std::pair<int64_t, int64_t> Share(int64_t count, int threads, int64_t index) {
  return {count * index / threads, count * (index + 1) / threads};
}

// Columns [first, first + width) of rows [0, rows) of a matrix, one after the other for each row, zeros up to
// `padded_rows`.
void PackColumns(const float* matrix, int64_t pitch, int64_t rows, int64_t first, int64_t width, int64_t panel,
                 int64_t padded_rows, float* to) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = matrix + row * pitch + first;
    for (int64_t i = 0; i < width; ++i) to[row * panel + i] = from[i];
    for (int64_t i = width; i < panel; ++i) to[row * panel + i] = 0;
  }
  std::fill(to + rows * panel, to + padded_rows * panel, 0.0f);
}

// Rows [first, first + count) and columns [column, column + columns) of a matrix, transposed: to[column][row], zeros up
// to `panel` rows.
void PackRows(const float* matrix, int64_t pitch, int64_t first, int64_t count, int64_t column, int64_t columns,
              int64_t panel, float* to) {
  if (count < panel) std::fill(to, to + columns * panel, 0.0f);
  for (int64_t row = 0; row < count; ++row) {
    const float* from = matrix + (first + row) * pitch + column;
    for (int64_t i = 0; i < columns; ++i) to[i * panel + row] = from[i];
  }
}

class Forward final : public CpuKernel {
 public:
  Forward(const PanelShape& shape, bool has_bias, bool relu, int threads)
      : s_(shape), has_bias_(has_bias), relu_(relu), threads_(threads) {}

  int64_t scratch_bytes() const { return Tiles(s_.rows) * kTile * s_.width * 4; }

  void Run(const KernelArgs& args) override {
    const auto* x = static_cast<const float*>(args.inputs[0]);
    auto* packed = static_cast<float*>(args.scratch);
    // Blocks of terms, in each the tiles, in each the terms.
    ParallelFor(threads_, Tiles(s_.rows), [&](int64_t tile) {
      for (int64_t term = 0; term < s_.width; term += kTerms) {
        const int64_t terms = std::min(kTerms, s_.width - term), row = tile * kTile;
        PackRows(x, s_.width, row, std::min(kTile, s_.rows - row), term, terms, kTile,
                 PackedTile(packed, term, terms, tile));
      }
    });
    ParallelFor(threads_, threads_, [&](int64_t thread) { Multiply(thread, args, packed); });
  }

 private:
  float* PackedTile(float* packed, int64_t term, int64_t terms, int64_t tile) const {
    return packed + Tiles(s_.rows) * kTile * term + tile * kTile * terms;
  }

  void Multiply(int64_t thread, const KernelArgs& args, float* packed) const {
    const auto* w = static_cast<const float*>(args.inputs[1]);
    const float* bias = has_bias_ ? static_cast<const float*>(args.inputs[2]) : nullptr;
    auto* y = static_cast<float*>(args.outputs[0]);
    const auto [first, last] = Share(s_.units / kPanel, threads_, thread);
    for (int64_t term = 0; term < s_.width; term += kTerms) {
      const int64_t terms = std::min(kTerms, s_.width - term);
      const bool is_last = term + terms == s_.width;
      for (int64_t panel = first; panel < last; ++panel) {
        for (int64_t row = 0; row < s_.rows; row += kTile) {
          const float* b = w + (panel * s_.width + term) * kPanel;
          const int64_t lines =
              panel + 1 < last ? terms * kTile / s_.rows : 0;  // of the next panel, a share for each tile
          MultiplyRows<Packing::kByTerm>(std::min(kTile, s_.rows - row),
                                         {.a = PackedTile(packed, term, terms, row / kTile),
                                          .b = b,
                                          .terms = terms,
                                          .result = y + row * s_.units + panel * kPanel,
                                          .result_row = s_.units,
                                          .bias = is_last && bias != nullptr ? bias + panel * kPanel : nullptr,
                                          .next = b + s_.width * kPanel + row / kTile * lines * kPanel,
                                          .next_lines = lines,
                                          .add = term > 0,
                                          .relu = is_last && relu_});
        }
      }
    }
  }

  const PanelShape s_;
  const bool has_bias_, relu_;
  const int threads_;
};

// dx transposed is w transposed times dy transposed: a tile is 6 columns of dx for 16 rows of the batch, so that the
// weight's panels are read along their outputs.
class GradInput final : public CpuKernel {
 public:
  GradInput(const PanelShape& shape, int threads) : s_(shape), threads_(threads) {}

  int64_t padded_rows() const { return RoundUp(s_.rows, kPanel); }
  int64_t scratch_bytes() const { return (padded_rows() * (s_.units + s_.width) + threads_ * kChunk * kTerms) * 4; }

  void Run(const KernelArgs& args) override {
    const auto* dy = static_cast<const float*>(args.inputs[0]);
    auto* packed = static_cast<float*>(args.scratch);       // (blocks of terms, N / 16, U, 16)
    float* transposed = packed + padded_rows() * s_.units;  // dx as (K, N)
    float* tiles = transposed + padded_rows() * s_.width;
    ParallelFor(threads_, padded_rows() / kPanel, [&](int64_t panel) {
      for (int64_t term = 0; term < s_.units; term += kTerms) {
        const int64_t terms = std::min(kTerms, s_.units - term), row = panel * kPanel;
        PackRows(dy, s_.units, row, std::min(kPanel, s_.rows - row), term, terms, kPanel,
                 PackedPanel(packed, term, terms, panel));
      }
    });
    ParallelFor(threads_, threads_, [&](int64_t thread) {
      Multiply(thread, static_cast<const float*>(args.inputs[1]), packed, tiles + thread * kChunk * kTerms, transposed);
      Transpose(thread, transposed, static_cast<float*>(args.outputs[0]));
    });
  }

 private:
  float* PackedPanel(float* packed, int64_t term, int64_t terms, int64_t panel) const {
    return packed + padded_rows() * term + panel * kPanel * terms;
  }

  std::pair<int64_t, int64_t> Columns(int64_t thread) const {
    const auto [first, last] = Share(Tiles(s_.width), threads_, thread);
    return {first * kTile, std::min(last * kTile, s_.width)};
  }

  void Multiply(int64_t thread, const float* w, float* packed, float* tiles, float* transposed) const {
    const auto [first, last] = Columns(thread);
    for (int64_t term = 0; term < s_.units; term += kTerms) {
      const int64_t terms = std::min(kTerms, s_.units - term);
      for (int64_t chunk = first; chunk < last; chunk += kChunk) {
        const int64_t end = std::min(chunk + kChunk, last);
        Gather(w, term, terms, chunk, end, tiles);
        for (int64_t row = 0; row < padded_rows(); row += kPanel) {
          for (int64_t column = chunk; column < end; column += kTile) {
            MultiplyRows<Packing::kByRow>(std::min(kTile, end - column),
                                          {.a = tiles + (column - chunk) * terms,
                                           .b = PackedPanel(packed, term, terms, row / kPanel),
                                           .terms = terms,
                                           .result = transposed + column * padded_rows() + row,
                                           .result_row = padded_rows(),
                                           .add = term > 0});
          }
        }
      }
    }
  }

  // The panels of a wide weight lie a power of two apart: read in place, a tile's lines would push each other out of
  // the caches.
  void Gather(const float* w, int64_t term, int64_t terms, int64_t column, int64_t end, float* tiles) const {
    for (int64_t u = 0; u < terms; u += kPanel) {
      const float* panel = w + ((term + u) / kPanel * s_.width) * kPanel;
      for (int64_t c = column; c < end; c += kTile) {
        std::memcpy(tiles + (c - column) * terms + u * kTile, panel + c * kPanel,
                    static_cast<size_t>(std::min(kTile, end - c) * kPanel) * sizeof(float));
      }
    }
  }

  void Transpose(int64_t thread, const float* transposed, float* dx) const {
    constexpr int64_t kBlock = 16;
    const auto [first, last] = Columns(thread);
    for (int64_t column = first; column < last; column += kBlock) {
      const int64_t columns = std::min(kBlock, last - column);
      for (int64_t row = 0; row < s_.rows; ++row) {
        for (int64_t i = 0; i < columns; ++i)
          dx[row * s_.width + column + i] = transposed[(column + i) * padded_rows() + row];
      }
    }
  }

  const PanelShape s_;
  const int threads_;
};

// dw in panels is x transposed times dy: a tile is 6 columns of x for 16 outputs and lies together.
class GradWeights final : public CpuKernel {
 public:
  GradWeights(const PanelShape& shape, bool has_bias, int threads)
      : s_(shape), has_bias_(has_bias), threads_(threads) {}

  int64_t scratch_bytes() const { return s_.rows * (Tiles(s_.width) * kTile + s_.units) * 4; }

  void Run(const KernelArgs& args) override {
    const auto* x = static_cast<const float*>(args.inputs[0]);
    const auto* dy = static_cast<const float*>(args.inputs[1]);
    auto* x_packed = static_cast<float*>(args.scratch);               // (K / 6, N, 6)
    float* dy_packed = x_packed + s_.rows * Tiles(s_.width) * kTile;  // (U / 16, N, 16)
    const int64_t x_tiles = Tiles(s_.width), panels = s_.units / kPanel;
    ParallelFor(threads_, x_tiles + panels, [&](int64_t i) {
      if (i < x_tiles) {
        PackColumns(x, s_.width, s_.rows, i * kTile, std::min(kTile, s_.width - i * kTile), kTile, s_.rows,
                    x_packed + i * kTile * s_.rows);
      } else {
        const int64_t panel = i - x_tiles;
        PackColumns(dy, s_.units, s_.rows, panel * kPanel, kPanel, kPanel, s_.rows,
                    dy_packed + panel * kPanel * s_.rows);
      }
    });
    ParallelFor(threads_, threads_, [&](int64_t thread) {
      Multiply(thread, x_packed, dy_packed, static_cast<float*>(args.outputs[0]));
      if (has_bias_) SumRows(thread, dy_packed, static_cast<float*>(args.outputs[1]));
    });
  }

 private:
  void Multiply(int64_t thread, const float* x_packed, const float* dy_packed, float* dw) const {
    const auto [first, last] = Share(s_.units / kPanel, threads_, thread);
    for (int64_t term = 0; term < s_.rows; term += kTerms) {
      const int64_t terms = std::min(kTerms, s_.rows - term);
      for (int64_t chunk = 0; chunk < s_.width; chunk += kChunk) {
        for (int64_t panel = first; panel < last; ++panel) {
          for (int64_t column = chunk; column < std::min(chunk + kChunk, s_.width); column += kTile) {
            MultiplyRows<Packing::kByTerm>(std::min(kTile, s_.width - column),
                                           {.a = x_packed + column * s_.rows + term * kTile,
                                            .b = dy_packed + panel * kPanel * s_.rows + term * kPanel,
                                            .terms = terms,
                                            .result = dw + (panel * s_.width + column) * kPanel,
                                            .result_row = kPanel,
                                            .add = term > 0});
          }
        }
      }
    }
  }

  void SumRows(int64_t thread, const float* dy_packed, float* db) const {
    const auto [first, last] = Share(s_.units / kPanel, threads_, thread);
    for (int64_t panel = first; panel < last; ++panel) {
      float sum[kPanel] = {};
      const float* dy = dy_packed + panel * kPanel * s_.rows;
      for (int64_t row = 0; row < s_.rows; ++row) {
        for (int64_t i = 0; i < kPanel; ++i) sum[i] += dy[row * kPanel + i];
      }
      std::copy(sum, sum + kPanel, db + panel * kPanel);
    }
  }

  const PanelShape s_;
  const bool has_bias_;
  const int threads_;
};

template <typename Kernel, typename... Args>
PanelKernel Make(Args... args) {
  auto kernel = std::make_unique<Kernel>(args...);
  const int64_t scratch_bytes = kernel->scratch_bytes();
  return {std::move(kernel), scratch_bytes};
}

}  // namespace

bool SuitsPanels(const PanelShape& shape) {
  const bool processor =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && !__builtin_cpu_supports("avx512f");
  return processor && shape.units % kPanelUnits == 0 && shape.units >= kTerms && shape.width >= kTerms / 2 &&
         shape.rows >= 8;
}

CpuLayout PanelWeightLayout(const std::vector<int64_t>& dims, int64_t channel_block) {
  dnnl_memory_desc_t desc;
  std::memset(&desc, 0, sizeof(desc));
  desc.ndims = static_cast<int>(dims.size());
  desc.data_type = dnnl_f32;
  desc.format_kind = dnnl_blocked;
  std::copy(dims.begin(), dims.end(), desc.dims);
  std::copy(dims.begin(), dims.end(), desc.padded_dims);
  dnnl_blocking_desc_t& blocking = desc.format_desc.blocking;
  if (channel_block > 1) {
    blocking.inner_blks[blocking.inner_nblks] = channel_block;
    blocking.inner_idxs[blocking.inner_nblks++] = 1;
  }
  blocking.inner_blks[blocking.inner_nblks] = kPanelUnits;
  blocking.inner_idxs[blocking.inner_nblks++] = 0;
  int64_t stride = kPanelUnits * channel_block;
  for (size_t i = dims.size(); i-- > 0;) {
    blocking.strides[i] = stride;
    stride *= i == 1 ? dims[i] / channel_block : dims[i];
  }
  return FromDesc(dnnl::memory::desc(desc));
}

PanelKernel MakePanelForward(const PanelShape& shape, bool has_bias, bool relu, int threads) {
  return Make<Forward>(shape, has_bias, relu, threads);
}
PanelKernel MakePanelGradInput(const PanelShape& shape, int threads) { return Make<GradInput>(shape, threads); }
PanelKernel MakePanelGradWeights(const PanelShape& shape, bool has_bias, int threads) {
  return Make<GradWeights>(shape, has_bias, threads);
}

}  // namespace tutti
