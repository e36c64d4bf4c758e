#include "base/philox.h"

#include "base/digest.h"

namespace tutti {

PhiloxKey MakePhiloxKey(uint64_t seed, std::string_view purpose) {
  const uint64_t mixed = Xxh3(purpose, seed);
  return {static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)};
}

}  // namespace tutti
