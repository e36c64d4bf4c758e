#include "engine/runtime/cpu/onednn.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

namespace tutti {
namespace {

dnnl::memory::dims Strides(const std::vector<int64_t>& dims) {
  dnnl::memory::dims strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

dnnl::memory::desc DenseDesc(const std::vector<int64_t>& dims) {
  return dnnl::memory::desc(dims, dnnl::memory::data_type::f32, Strides(dims));
}

bool IsPlain(const dnnl::memory::desc& desc) {
  const dnnl_memory_desc_t& d = desc.data;
  if (d.format_kind != dnnl_blocked || d.offset0 != 0 || d.format_desc.blocking.inner_nblks != 0) return false;
  int64_t stride = 1;
  for (int i = d.ndims; i-- > 0;) {
    if (d.padded_dims[i] != d.dims[i] || d.padded_offsets[i] != 0) return false;
    if (d.dims[i] != 1 && d.format_desc.blocking.strides[i] != stride) return false;
    stride *= d.dims[i];
  }
  return true;
}

}  // namespace

CpuLayout PlainLayout(const TensorType& type) {
  CpuLayout layout;
  std::memset(&layout.desc, 0, sizeof(layout.desc));
  layout.bytes = type.bytes();
  if (type.dtype == DType::kF32) {
    const std::vector<int64_t> dims = type.dims.empty() ? std::vector<int64_t>{1} : type.dims;
    layout.desc = DenseDesc(dims).data;
  }
  return layout;
}

bool SameLayout(const CpuLayout& a, const CpuLayout& b) {
  if (a.bytes != b.bytes || a.plain != b.plain) return false;
  return a.plain || dnnl_memory_desc_equal(&a.desc, &b.desc) != 0;
}

dnnl::memory::desc ToDesc(const CpuLayout& layout) { return dnnl::memory::desc(layout.desc); }

CpuLayout FromDesc(const dnnl::memory::desc& desc) {
  CpuLayout layout;
  layout.desc = desc.data;
  layout.bytes = static_cast<int64_t>(desc.get_size());
  layout.plain = IsPlain(desc);
  return layout;
}

dnnl::memory::desc AnyDesc(const std::vector<int64_t>& dims) {
  return dnnl::memory::desc(dims, dnnl::memory::data_type::f32, dnnl::memory::format_tag::any);
}

dnnl::memory::desc PlainDesc(const std::vector<int64_t>& dims) { return DenseDesc(dims); }

std::string ImplementationName(const dnnl::primitive_desc_base& desc) {
  return fmt::format("oneDNN {}", desc.impl_info_str());
}

bool IsReference(const dnnl::primitive_desc_base& desc) {
  const char* name = desc.impl_info_str();
  return std::strncmp(name, "ref", 3) == 0 || std::strncmp(name, "simple", 6) == 0;
}

void GenerateCode(const dnnl::primitive& primitive) {
  const_dnnl_primitive_desc_t desc = nullptr;
  const char* name = nullptr;
  if (dnnl_primitive_get_primitive_desc(primitive.get(), &desc) != dnnl_success) return;
  if (dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &name) != dnnl_success) return;
  if (std::strstr(name, "gemm:") == nullptr || std::strstr(name, "brgemm:") != nullptr)
    return;  // brgemm has its own code
  constexpr int kSide = 8;
  const std::array<float, kSide * kSide> a{}, b{};
  std::array<float, kSide * kSide> c{};
  dnnl_sgemm('N', 'N', kSide, kSide, kSide, 1, a.data(), kSide, b.data(), kSide, 0, c.data(), kSide);
}

dnnl::primitive_attr UserScratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

}  // namespace tutti
