// A rank's receipt: what it left in a step folder, durable before the receipt exists.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "engine/checkpoint/writer.h"

namespace tutti {

struct Receipt {
  std::string file;  // its slice file
  int64_t bytes = 0;
  uint64_t xxh3 = 0;                  // of the whole file
  std::vector<TensorDigest> tensors;  // its parameters and statistics
};
std::string FormatReceipt(const Receipt& receipt);
// DATA_LOSS: not a receipt. `path` is for messages.
StatusOr<Receipt> ParseReceipt(const std::string& json, const std::string& path);

}  // namespace tutti
