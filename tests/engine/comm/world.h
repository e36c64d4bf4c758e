// Worlds of communicators for tests: N ranks in this process, one thread each.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "engine/comm/communicator.h"

namespace tutti {

enum class Backend { kLocal, kShm, kGloo };
const char* NameOf(Backend backend);

using Comms = std::vector<std::unique_ptr<Communicator>>;
Comms MakeWorld(Backend backend, int32_t world_size, Millis timeout = Millis(60'000), int64_t window_bytes = 0);

// Calls fn(communicator of rank r) on one thread per rank; the statuses by rank.
std::vector<Status> RunRanks(Comms& comms, const std::function<Status(Communicator&)>& fn);
// The same with all statuses OK expected.
void ExpectOk(Comms& comms, const std::function<Status(Communicator&)>& fn);

// Test parameters: (backend, world size).
using WorldParam = std::tuple<Backend, int32_t>;
std::string WorldName(const ::testing::TestParamInfo<WorldParam>& info);

// A memfd for `world_size` ranks.
int MakeShmRegion(int32_t world_size, int64_t window_bytes);

}  // namespace tutti
