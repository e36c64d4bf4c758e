#include "engine/comm/communicator.h"

#include <algorithm>
#include <cstring>

namespace tutti {

int64_t SizeOf(CommType type) { return type == CommType::kF32 ? 4 : type == CommType::kI64 ? 8 : 1; }

Status CompareSequenceHash(Communicator& comm, uint64_t hash, std::string_view description) {
  struct Entry {
    uint64_t hash = 0;
    char description[160] = {};  // not terminated when full
  };
  const auto text = [](const Entry& e) {
    return std::string(e.description, strnlen(e.description, sizeof(e.description)));
  };
  Entry own;
  own.hash = hash;
  std::memcpy(own.description, description.data(), std::min(description.size(), sizeof(own.description)));
  std::vector<Entry> all(comm.world_size());
  TUTTI_RETURN_IF_ERROR(comm.AllGather(&own, all.data(), ElementCount(sizeof(Entry)), CommType::kU8));
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r].hash == all[0].hash) continue;
    return InvalidArgument(
        "ranks plan different calls: rank 0 plans '{}' (hash {:016x}), rank {} plans '{}' (hash {:016x})", text(all[0]),
        all[0].hash, r, text(all[r]), all[r].hash);
  }
  return OkStatus();
}

}  // namespace tutti
