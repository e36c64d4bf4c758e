// Answers ReadLog from the files of the agent's state directory.
#pragma once

#include <string>

#include "tutti/v1/agent.pb.h"

namespace tutti::worker {

inline constexpr int64_t kMaxLogChunkBytes = 1 << 20;

// Never fails: what is wrong (a bad id, no such run) is in `error`. A rank that has written nothing yet has size 0.
v1::LogChunk ReadRankLogChunk(const std::string& state_directory, const v1::ReadLog& request);

}  // namespace tutti::worker
