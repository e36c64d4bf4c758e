#include "engine/runtime/cpu/parallel.h"

#include <immintrin.h>

namespace tutti {
namespace {

constexpr unsigned kFlushToZero = 1u << 15;
constexpr unsigned kDenormalsAreZero = 1u << 6;

void Flush() { _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero); }

}  // namespace

ScopedFlushDenormals::ScopedFlushDenormals() : saved_(_mm_getcsr()) { Flush(); }
ScopedFlushDenormals::~ScopedFlushDenormals() { _mm_setcsr(saved_); }

void FlushDenormalsInTeam(int threads) {
  Flush();
  if (threads <= 1) return;
#pragma omp parallel num_threads(threads)
  Flush();
}

}  // namespace tutti
