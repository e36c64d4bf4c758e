// The state of the crash test: 50 MB, two ranks' halves.
#pragma once

#include "tests/engine/checkpoint/checkpoint_testing.h"

namespace tutti::testing {

inline std::vector<ToyTensor> CrashState() {
  std::vector<ToyTensor> tensors;
  for (int i = 0; i < 10; ++i)
    tensors.push_back({fmt::format("w{}", i), v1::TENSOR_ROLE_OPTIMIZER_STATE, {1250, 1000}});
  tensors.push_back({"p", v1::TENSOR_ROLE_PARAMETER, {100}});
  return tensors;
}

}  // namespace tutti::testing
