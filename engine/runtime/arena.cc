#include "engine/runtime/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "engine/passes/memory_plan.h"

namespace tutti {
namespace {

int64_t PageBytes() { return sysconf(_SC_PAGESIZE); }

}  // namespace

int64_t ArenaLayout::Reserve(std::string name, int64_t bytes) {
  TUTTI_CHECK(bytes >= 0, "region {} of {} bytes", name, bytes);
  const bool fresh =
      std::none_of(regions_.begin(), regions_.end(), [&](const Region& region) { return region.name == name; });
  TUTTI_CHECK(fresh, "two regions are named {}", name);
  const int64_t offset = end_;
  regions_.push_back({std::move(name), offset, bytes});
  end_ = AlignUp(end_ + bytes);
  return offset;
}

int64_t ArenaLayout::total_bytes() const { return AlignUp(end_, PageBytes()); }

StatusOr<Arena> Arena::Create(const ArenaLayout& layout) {
  const auto bytes = static_cast<size_t>(layout.total_bytes());
  if (bytes == 0) return Arena(layout, nullptr);
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return ErrnoStatus(errno, fmt::format("mapping an arena of {} bytes", bytes));
  // Advice only: without huge pages everything works, a little slower.
  madvise(base, bytes, MADV_HUGEPAGE);
  std::memset(base, 0, bytes);
  return Arena(layout, static_cast<char*>(base));
}

Arena::Arena(Arena&& other) noexcept : layout_(std::move(other.layout_)), base_(std::exchange(other.base_, nullptr)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(layout_, other.layout_);
  std::swap(base_, other.base_);
  return *this;
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(layout_.total_bytes()));
}

void* Arena::Find(std::string_view region) const {
  for (const ArenaLayout::Region& candidate : layout_.regions())
    if (candidate.name == region) return base_ + candidate.offset;
  TUTTI_CHECK(false, "the arena has no region {}", region);
}

StatusOr<int64_t> Arena::MeasureResidentBytes() const {
  if (base_ == nullptr) return int64_t{0};
  return CountResidentBytes(base_, layout_.total_bytes());
}

StatusOr<int64_t> CountResidentBytes(const void* begin, int64_t bytes) {
  const int64_t page = PageBytes();
  std::vector<unsigned char> resident(static_cast<size_t>(bytes / page));
  if (mincore(const_cast<void*>(begin), static_cast<size_t>(bytes), resident.data()) != 0)
    return ErrnoStatus(errno, "counting resident pages of the arena");
  return page * std::count_if(resident.begin(), resident.end(), [](unsigned char flags) { return (flags & 1) != 0; });
}

}  // namespace tutti
