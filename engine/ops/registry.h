// Every operator of the engine but the optimizer updates (engine/optim registers its own on top), without kernels.
// A room is a folder engine/ops/<room>/ with `Status Register<Room>(OpRegistry*)` in <room>.h/.cc and
// `Status Register<Room>Cpu(KernelRegistry*)` in <room>_cpu.h/.cc; each is called once, in registry.cc and
// registry_cpu.cc.
#pragma once

#include "engine/ops/op.h"

namespace tutti {

OpRegistry StandardOps();

}  // namespace tutti
