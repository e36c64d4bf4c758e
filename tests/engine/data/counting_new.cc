// Counts every allocation of this test binary. In a file of its own: inlined into callers it would confuse the
// compiler's checks.
#include <cstdlib>
#include <new>

#include "tests/engine/data/data_testing.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace tutti::testing {
int64_t Allocations() { return allocations; }
}  // namespace tutti::testing
