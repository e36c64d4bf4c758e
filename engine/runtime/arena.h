// All memory of one rank: one mapping with named regions, laid out before it exists, so that the plan is exact.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tutti {

// Regions in the order of reservation, each 64-byte aligned. A value.
class ArenaLayout {
 public:
  struct Region {
    std::string name;
    int64_t offset = 0;
    int64_t bytes = 0;
  };

  // Returns the region's offset. Names are unique (a repeated one is a broken invariant); zero bytes are allowed.
  int64_t Reserve(std::string name, int64_t bytes);
  const std::vector<Region>& regions() const { return regions_; }
  int64_t total_bytes() const;  // rounded up to whole pages: the planned size of the mapping

 private:
  std::vector<Region> regions_;
  int64_t end_ = 0;
};

// Move-only owner of the mapping.
class Arena {
 public:
  // Maps and touches every page (zeroes), so that no page fault is left for the step loop. RESOURCE_EXHAUSTED names the
  // size.
  static StatusOr<Arena> Create(const ArenaLayout& layout);
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  char* data() const { return base_; }
  void* Find(std::string_view region) const;  // an unknown name is a broken invariant
  template <typename T>
  T* Find(std::string_view region) const {
    return static_cast<T*>(Find(region));
  }
  const ArenaLayout& layout() const { return layout_; }
  // Pages of the mapping that the kernel holds in memory now, in bytes (mincore): the measurement that the plan is
  // compared with.
  StatusOr<int64_t> MeasureResidentBytes() const;

 private:
  Arena(ArenaLayout layout, char* base) : layout_(std::move(layout)), base_(base) {}
  ArenaLayout layout_;
  char* base_ = nullptr;
};

// Bytes of the pages of [begin, begin + bytes) that the kernel holds in memory now; `begin` is page-aligned, `bytes` whole pages.
StatusOr<int64_t> CountResidentBytes(const void* begin, int64_t bytes);

}  // namespace tutti
