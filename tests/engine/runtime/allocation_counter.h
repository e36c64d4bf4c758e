// Counts allocations that are larger than a limit, over malloc and operator new, in this test binary. What libdnnl
// allocates for itself is not counted: the contract of the step loop sets libraries aside.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kCountsAllocations = false;  // a sanitizer brings its own malloc
#else
inline constexpr bool kCountsAllocations = true;
#endif

// While one lives, every malloc, calloc, realloc and aligned_alloc of any thread is looked at. One at a time.
class AllocationCounter {
 public:
  explicit AllocationCounter(size_t larger_than);
  ~AllocationCounter();
  int64_t count() const;    // allocations above the limit
  int64_t largest() const;  // bytes of the largest allocation of any size
};

}  // namespace tutti
