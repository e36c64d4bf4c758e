// Loops of own kernels. What a loop computes never depends on the number of threads: work is cut into fixed blocks or
// rows.
#pragma once

#include <cstdint>

namespace tutti {

// On functions that the compiler should vectorise for several instruction sets (chosen when the program starts). They
// must not reduce floats in a loop: the order would depend on nothing here (no -ffast-math), but it would not
// vectorise.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TUTTI_VECTORIZE __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define TUTTI_VECTORIZE  // resolvers of clones run before a sanitizer is ready
#endif

// fn(i) for i in [0, n), on `threads` OpenMP threads, contiguous ranges each.
template <typename Fn>
void ParallelFor(int threads, int64_t n, const Fn& fn) {
  if (threads <= 1 || n <= 1) {
    for (int64_t i = 0; i < n; ++i) fn(i);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < n; ++i) fn(i);
}

// Denormals are zero on this thread while the object lives (MXCSR: FTZ and DAZ).
class ScopedFlushDenormals {
 public:
  ScopedFlushDenormals();
  ~ScopedFlushDenormals();
  ScopedFlushDenormals(const ScopedFlushDenormals&) = delete;
  ScopedFlushDenormals& operator=(const ScopedFlushDenormals&) = delete;

 private:
  unsigned saved_;
};

// Sets FTZ and DAZ for good on the calling thread and on the threads of its OpenMP team.
void FlushDenormalsInTeam(int threads);

}  // namespace tutti
