// The few functions of the NVIDIA Management Library that are needed, found at run time: no build or run depends on it.
#pragma once

#include <vector>

#include "worker/probe/probe.h"

namespace tutti::worker {

// Empty where libnvidia-ml.so.1 is not installed or has no working driver below it.
std::vector<Gpu> ListGpus();

}  // namespace tutti::worker
