#include "engine/comm/region_layout.h"

#include "engine/comm/shm_region.h"

namespace tutti {
namespace {

constexpr int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
constexpr int64_t kHeaderBytes = RoundUp(sizeof(RegionHeader), 4096);
constexpr int64_t kSlotBytes = RoundUp(sizeof(RankSlot), 64);
constexpr int64_t kStagingBytes = 2 * (kSmallBytes + 2 * kStageBytes);

int64_t RowBytes(int32_t world) { return RoundUp(2 * 2 * world * int64_t{sizeof(int64_t)}, 64); }
int64_t StagingOffset(int32_t world) { return RoundUp(kHeaderBytes + world * (kSlotBytes + RowBytes(world)), 4096); }
int64_t WindowOffset(int32_t world) { return StagingOffset(world) + world * kStagingBytes; }

}  // namespace

int64_t ShmRegionBytes(int32_t world_size, int64_t window_bytes) {
  return RegionView::TotalBytes(world_size, window_bytes);
}

int64_t RegionView::TotalBytes(int32_t world_size, int64_t window_bytes) {
  return WindowOffset(world_size) + world_size * RoundUp(window_bytes, 4096);
}
RankSlot& RegionView::slot(int32_t rank) const {
  return *reinterpret_cast<RankSlot*>(base_ + kHeaderBytes + rank * kSlotBytes);
}
int64_t* RegionView::row(int32_t rank, int parity) const {
  std::byte* rows = base_ + kHeaderBytes + world_size_ * kSlotBytes + rank * RowBytes(world_size_);
  return reinterpret_cast<int64_t*>(rows) + parity * 2 * world_size_;
}
std::byte* RegionView::small(int32_t rank, int parity) const {
  return base_ + StagingOffset(world_size_) + rank * kStagingBytes + parity * kSmallBytes;
}
std::byte* RegionView::in(int32_t rank, int64_t round) const { return small(rank, 2) + round % 2 * kStageBytes; }
std::byte* RegionView::out(int32_t rank, int64_t round) const { return small(rank, 2) + (2 + round % 2) * kStageBytes; }
std::span<std::byte> RegionView::window(int32_t rank) const {
  return {base_ + WindowOffset(world_size_) + rank * RoundUp(window_bytes_, 4096), static_cast<size_t>(window_bytes_)};
}

}  // namespace tutti
