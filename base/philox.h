// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2,
// 3", SC 2011). A pure function of (key, counter): the same four words on any rank, thread, layout or replay.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tutti {

using PhiloxKey = std::array<uint32_t, 2>;
using PhiloxCounter = std::array<uint32_t, 4>;

inline std::array<uint32_t, 4> Philox4x32(PhiloxKey key, PhiloxCounter ctr) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * ctr[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * ctr[2];
    ctr = {static_cast<uint32_t>(p1 >> 32) ^ ctr[1] ^ key[0], static_cast<uint32_t>(p1),
           static_cast<uint32_t>(p0 >> 32) ^ ctr[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return ctr;
}

// Key of one stream of randomness: (job seed, purpose or layer path), mixed by xxhash64 (stable across machines and
// versions).
PhiloxKey MakePhiloxKey(uint64_t seed, std::string_view purpose);

// A word as a float in [0, 1): the top 24 bits.
inline float UnitFloat(uint32_t word) { return static_cast<float>(word >> 8) * 0x1.0p-24f; }

}  // namespace tutti
