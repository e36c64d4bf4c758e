// dropout(x, seed u64, batch_index i64, first_row i64) {rate, key}: y = x * keep / (1 - rate). The mask is a pure
// function of (seed, key, batch index, row in the global batch, element in the row): Philox keyed by (seed, key),
// counted by (element / 4, first_row + row, batch index); word element % 4 decides. So it does not depend on rank,
// micro-batch, layout or replay. The gradient is the same op on dy. `key` is the layer's path.
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "engine/ops/op.h"

namespace tutti {

Status RegisterDropout(OpRegistry* ops);

// The counter of a row's four elements from 4 * block on.
inline PhiloxCounter DropoutCounter(int64_t block, int64_t row, int64_t batch_index) {
  return {static_cast<uint32_t>(block), static_cast<uint32_t>(row), static_cast<uint32_t>(batch_index),
          static_cast<uint32_t>(static_cast<uint64_t>(batch_index) >> 32)};
}

// An element is kept where the top 24 bits of its word reach this.
inline uint32_t DropoutThreshold(double rate) { return static_cast<uint32_t>(rate * 16777216.0 + 0.5); }

}  // namespace tutti
