#include "engine/ops/channels_cpu.h"

#include "engine/ops/dnnl_kernel_cpu.h"

namespace tutti {

std::optional<ChannelLayout> ChannelLayoutOf(const CpuLayout& layout, const std::vector<int64_t>& dims) {
  if (dims.size() == 2) {
    if (!layout.plain) return std::nullopt;
    return ChannelLayout{.inner = dims[1], .blocks = 1, .channels_last = true};
  }
  if (dims.size() != 4) return std::nullopt;
  if (layout.plain) return ChannelLayout{.inner = 1, .blocks = dims[1], .channels_last = false};
  for (const ChannelLayout& candidate :
       {ChannelLayout{8, (dims[1] + 7) / 8, false}, ChannelLayout{16, (dims[1] + 15) / 16, false},
        ChannelLayout{dims[1], 1, true}}) {
    const TensorType type{layout.desc.data_type == dnnl_u8 ? DType::kU8 : DType::kF32, dims};
    if (SameLayout(layout, WithChannelLayout(candidate, type))) return candidate;
  }
  return std::nullopt;
}

CpuLayout WithChannelLayout(const ChannelLayout& channels, const TensorType& type) {
  using Tag = dnnl::memory::format_tag;
  if (type.dims.size() != 4 || (!channels.channels_last && channels.inner == 1)) return PlainLayout(type);
  const Tag tag = channels.channels_last ? Tag::nhwc : channels.inner == 8 ? Tag::nChw8c : Tag::nChw16c;
  const auto dtype = type.dtype == DType::kU8 ? dnnl::memory::data_type::u8 : dnnl::memory::data_type::f32;
  return FromDesc(dnnl::memory::desc(type.dims, dtype, tag));
}

ChannelLayout PreferredChannelLayout(int64_t channels) {
  const int64_t inner = __builtin_cpu_supports("avx512f") ? 16 : __builtin_cpu_supports("avx2") ? 8 : 1;
  if (channels % inner != 0) return {.inner = 1, .blocks = channels, .channels_last = false};
  return {.inner = inner, .blocks = channels / inner, .channels_last = false};
}

ChannelLayout RequestedChannelLayout(const KernelRequest& request, size_t index) {
  const TensorType& type = InputType(request, index);
  if (request.inputs[index]) {
    if (const std::optional<ChannelLayout> layout = ChannelLayoutOf(*request.inputs[index], type.dims)) return *layout;
  }
  return *ChannelLayoutOf(PlainLayout(type), type.dims);
}

}  // namespace tutti
