// Between CpuLayout and oneDNN, and oneDNN calls that every room needs. Include in .cc files only.
#pragma once

#include <dnnl.hpp>

#include "engine/graph/graph.h"
#include "engine/runtime/cpu/kernel.h"

namespace tutti {

dnnl::memory::desc ToDesc(const CpuLayout& layout);
// `plain` is found out: dense, row-major, no padding.
CpuLayout FromDesc(const dnnl::memory::desc& desc);
// A description with format "any" (the primitive chooses), for f32 tensors.
dnnl::memory::desc AnyDesc(const std::vector<int64_t>& dims);
dnnl::memory::desc PlainDesc(const std::vector<int64_t>& dims);

// "oneDNN brgconv:avx2" of a primitive description, and whether it is one of the reference implementations (too slow:
// use own code).
std::string ImplementationName(const dnnl::primitive_desc_base& desc);
bool IsReference(const dnnl::primitive_desc_base& desc);

// oneDNN generates the code of its matrix product inside the first call: does it now, where the primitive is built on
// it, so that the plan counts these bytes and the first step does not wait for them.
void GenerateCode(const dnnl::primitive& primitive);

// Attributes with a scratchpad given by the caller.
dnnl::primitive_attr UserScratchpad();

// Turns what oneDNN throws into a Status: `fn` returns StatusOr<T>.
template <typename Fn>
auto CatchDnnl(const Node& node, Fn&& fn) -> decltype(fn()) {
  try {
    return fn();
  } catch (const dnnl::error& error) {
    return Internal("{} {}: oneDNN: {} (status {})", node.path, node.op, error.what(), static_cast<int>(error.status));
  }
}

}  // namespace tutti
