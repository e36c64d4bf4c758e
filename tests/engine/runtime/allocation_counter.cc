#include "tests/engine/runtime/allocation_counter.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

std::atomic<bool> counting{false};
std::atomic<size_t> limit{0};
std::atomic<int64_t> above{0};
std::atomic<int64_t> largest_seen{0};

bool IsLibrary(void* caller) {
  Dl_info info;
  return dladdr(caller, &info) != 0 && info.dli_fname != nullptr && std::strstr(info.dli_fname, "libdnnl") != nullptr;
}

[[maybe_unused]] void Note(size_t bytes, void* caller) {
  if (!counting.load(std::memory_order_relaxed) || IsLibrary(caller)) return;
  if (bytes > limit.load(std::memory_order_relaxed)) above.fetch_add(1);
  auto size = static_cast<int64_t>(bytes);
  int64_t seen = largest_seen.load();
  while (size > seen && !largest_seen.compare_exchange_weak(seen, size)) {
  }
}

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// glibc's own allocator under its internal names.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) {
  Note(bytes, __builtin_return_address(0));
  return __libc_malloc(bytes);
}
void* calloc(size_t n, size_t bytes) {
  Note(n * bytes, __builtin_return_address(0));
  return __libc_calloc(n, bytes);
}
void* realloc(void* old, size_t bytes) {
  Note(bytes, __builtin_return_address(0));
  return __libc_realloc(old, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  Note(bytes, __builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  Note(bytes, __builtin_return_address(0));
  *out = __libc_memalign(alignment, bytes);
  return *out == nullptr ? 12 : 0;  // ENOMEM
}
}

void* operator new(size_t bytes) {
  Note(bytes, __builtin_return_address(0));
  if (void* memory = __libc_malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  Note(bytes, __builtin_return_address(0));
  if (void* memory = __libc_memalign(static_cast<size_t>(alignment), bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
#endif

namespace tutti {

AllocationCounter::AllocationCounter(size_t larger_than) {
  limit = larger_than;
  above = 0;
  largest_seen = 0;
  counting = true;
}
AllocationCounter::~AllocationCounter() { counting = false; }
int64_t AllocationCounter::count() const { return above; }
int64_t AllocationCounter::largest() const { return largest_seen; }

}  // namespace tutti
