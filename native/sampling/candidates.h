// Candidates of a draw: the first of them in order, without sorting the rest.
#pragma once
#include "isa/simd.h"

namespace inflight::INFLIGHT_ISA {

struct Candidate {
  float value;
  std::int32_t id;
};

// Order of falling value, ties by rising id.
INLINE bool before(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

INLINE void sift(Candidate* heap, std::int64_t root, std::int64_t count) {
  const Candidate moved = heap[root];
  for (std::int64_t child = 2 * root + 1; child < count; child = 2 * root + 1) {
    if (child + 1 < count && before(heap[child], heap[child + 1])) ++child;
    if (!before(moved, heap[child])) break;
    heap[root] = heap[child];
    root = child;
  }
  heap[root] = moved;
}

// The first `kept` of `count` candidates in order, at the front.
inline std::int64_t order(Candidate* all_of_them, std::int64_t count, std::int64_t kept) {
  if (kept > count) kept = count;
  if (kept == 0) return 0;
  for (std::int64_t i = kept / 2; i-- > 0;) sift(all_of_them, i, kept);  // the last in order on top
  for (std::int64_t i = kept; i < count; ++i) {
    if (!before(all_of_them[i], all_of_them[0])) continue;
    const Candidate out = all_of_them[0];
    all_of_them[0] = all_of_them[i];
    all_of_them[i] = out;
    sift(all_of_them, 0, kept);
  }
  for (std::int64_t i = kept; i-- > 1;) {
    const Candidate last = all_of_them[0];
    all_of_them[0] = all_of_them[i];
    all_of_them[i] = last;
    sift(all_of_them, 0, i);
  }
  return kept;
}

}  // namespace inflight::INFLIGHT_ISA
