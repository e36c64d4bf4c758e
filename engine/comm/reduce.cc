#include "engine/comm/reduce.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tutti {
namespace {

constexpr int64_t kBlockBytes = 8192;

// Flush-to-zero and denormals-are-zero while alive.
class FlushDenormals {
 public:
#ifdef __SSE__
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  FlushDenormals() {}
#endif
};

// `target` is either one operand exactly or apart from both: no iteration reads what another wrote.
template <typename T, typename Op>
void Loop(T* target, const T* left, const T* right, int64_t count, Op op) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) target[i] = op(left[i], right[i]);
}

template <typename T>
void CombineTyped(ReduceOp op, void* target, const void* left, const void* right, int64_t count) {
  T* t = static_cast<T*>(target);
  const T* l = static_cast<const T*>(left);
  const T* r = static_cast<const T*>(right);
  if (op == ReduceOp::kSum) {
    Loop(t, l, r, count, [](T a, T b) { return static_cast<T>(a + b); });
  } else {
    Loop(t, l, r, count, [](T a, T b) { return a < b ? b : a; });
  }
}

}  // namespace

void Combine(CommType type, ReduceOp op, void* target, const void* left, const void* right, int64_t count) {
  TUTTI_CHECK(type != CommType::kU8, "bytes cannot be reduced");
  if (type == CommType::kI64) return CombineTyped<int64_t>(op, target, left, right, count);
  FlushDenormals flush;
  CombineTyped<float>(op, target, left, right, count);
}

void AddInto(float* into, const float* from, int64_t count) {
  Combine(CommType::kF32, ReduceOp::kSum, into, into, from, count);
}

ReducePlan PlanOf(const TreeReducer& tree) {
  return {tree.leaves(), tree.steps(), tree.temporaries(), tree.MaxPartials()};
}

FoldPlan::FoldPlan(int32_t world_size) {
  for (int32_t r = 0; r < world_size; ++r) leaves_.push_back({{r, r + 1}, Rank(r), 0});
  for (int32_t r = 1; r < world_size; ++r) steps_.push_back({world_size, r == 1 ? 0 : world_size, r});
}

void Reduce(const ReducePlan& plan, CommType type, ReduceOp op, std::span<const void* const> values,
            std::vector<std::byte>* scratch, std::span<void* const> targets, int64_t count) {
  const int64_t size = SizeOf(type);
  const int64_t block = kBlockBytes / size;
  const int32_t leaves = static_cast<int32_t>(plan.leaves.size());
  const size_t needed = static_cast<size_t>(plan.temporaries * kBlockBytes);
  if (scratch->size() < needed) scratch->resize(needed);
  for (int64_t begin = 0; begin < count; begin += block) {
    const int64_t n = std::min(block, count - begin);
    const auto operand = [&](int32_t id) -> const std::byte* {
      if (id < leaves) return static_cast<const std::byte*>(values[id]) + begin * size;
      return scratch->data() + (id - leaves) * kBlockBytes;
    };
    std::byte* first = static_cast<std::byte*>(targets[0]) + begin * size;
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      const ReduceStep& step = plan.steps[s];
      std::byte* target = s + 1 == plan.steps.size() ? first : const_cast<std::byte*>(operand(step.target));
      Combine(type, op, target, operand(step.left), operand(step.right), n);
    }
    const std::byte* result = plan.steps.empty() ? operand(0) : first;
    for (void* target : targets) {
      std::byte* to = static_cast<std::byte*>(target) + begin * size;
      if (to != result) std::memcpy(to, result, n * size);
    }
  }
}

PartRange PartOf(int64_t n, int32_t parts, int32_t part) {
  const auto border = [&](int32_t p) { return p >= parts ? n : n * p / parts / 16 * 16; };
  return {border(part), border(part + 1)};
}

}  // namespace tutti
