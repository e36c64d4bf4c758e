// How the channels of images lie in memory, for own kernels that walk them: plain NCHW, blocked by 8 or 16 channels, or
// channels last. Element (n, c, s) of (N, C, S), S = positions, is at ((n * blocks + c / inner) * S + s) * inner + c %
// inner.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/runtime/cpu/kernel.h"

namespace tutti {

struct ChannelLayout {
  int64_t inner = 1;   // channels that lie together
  int64_t blocks = 1;  // groups of them; inner * blocks >= C, the rest is padding (zeros)
  bool channels_last = false;
};

// nullopt: another order. `dims`: (N, C) or (N, C, H, W).
std::optional<ChannelLayout> ChannelLayoutOf(const CpuLayout& layout, const std::vector<int64_t>& dims);

// The same order for a tensor of other positions (and f32 or u8).
CpuLayout WithChannelLayout(const ChannelLayout& channels, const TensorType& type);

// What convolutions on this processor make: blocked by 16 with AVX-512, by 8 with AVX2, where C is a multiple; else
// plain.
ChannelLayout PreferredChannelLayout(int64_t channels);

// Plain or the layout that input `index` has, if it is one of ours; what the kernel asks for.
ChannelLayout RequestedChannelLayout(const KernelRequest& request, size_t index);

}  // namespace tutti
