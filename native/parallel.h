// Tasks over a pool: threads claim them one by one from a shared counter, so that a slow core takes fewer.
#pragma once
#include "pool.h"
#include "simd.h"

namespace inflight::INFLIGHT_ISA {

class Claims {
 public:
  explicit Claims(std::int64_t count) : count_(count) {}
  std::int64_t count() const { return count_; }
  // The next task, or one ≥ count() when none is left.
  std::int64_t next() { return __atomic_fetch_add(&next_, 1, __ATOMIC_RELAXED); }

 private:
  alignas(64) std::int64_t next_ = 0;
  alignas(64) std::int64_t count_;
};

// body(claims, worker) on all threads; on the caller alone when there is a single task.
template <class Body>
void on_all(Pool& pool, std::int64_t tasks, Body&& body) {
  Claims claims(tasks);
  if (tasks <= 1) {
    if (tasks == 1) body(claims, 0);
    return;
  }
  struct Job {
    Claims& claims;
    Body& body;
  } job{claims, body};
  pool.run(
      [](void* context, int worker) {
        Job& job = *static_cast<Job*>(context);
        job.body(job.claims, worker);
      },
      &job);
}

// task(index, worker) for every index below `tasks`.
template <class Task>
void parallel_for(Pool& pool, std::int64_t tasks, Task&& task) {
  on_all(pool, tasks, [&](Claims& claims, int worker) {
    for (std::int64_t i = claims.next(); i < claims.count(); i = claims.next()) task(i, worker);
  });
}

// rows(first, last) over pieces of [0, count); in one piece on the caller when `work` (bytes or so) is small.
template <class Rows>
void parallel_rows(Pool& pool, std::int64_t count, std::int64_t work, Rows&& rows) {
  constexpr std::int64_t worthwhile = 1 << 17;  // a fork costs about as much as 100 kB of work in cache
  std::int64_t pieces = work / (worthwhile / 2);
  if (work < worthwhile || pool.threads() == 1) pieces = 1;
  if (pieces > 8 * pool.threads()) pieces = 8 * pool.threads();
  if (pieces > count) pieces = count;
  parallel_for(pool, pieces, [&](std::int64_t i, int) { rows(count * i / pieces, count * (i + 1) / pieces); });
}

}  // namespace inflight::INFLIGHT_ISA
