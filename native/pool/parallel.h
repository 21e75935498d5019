// Tasks over a pool: threads claim them one by one from a shared counter, or in runs of neighbours that the idle halve;
// either way a slow core takes fewer.
#pragma once
#include <type_traits>

#include "isa/simd.h"
#include "pool/pool.h"

namespace inflight::INFLIGHT_ISA {

class Claims {
 public:
  explicit Claims(std::int64_t count) : count_(count) {}
  // The next task, or one ≥ count when none is left.
  std::int64_t next() { return __atomic_fetch_add(&next_, 1, __ATOMIC_RELAXED); }

 private:
  alignas(64) std::int64_t next_ = 0;
  alignas(64) std::int64_t count_;
};

// Tasks 0 … count − 1 in runs: each worker goes through neighbours in order, because what neighbours read stands side
// by side in memory; who has none left takes the later half of what another has.
class WorkRanges {
 public:
  // `bounds` holds a run for each worker, begin << 32 | end, a cache line each.
  WorkRanges(std::int64_t count, int workers, std::uint64_t* bounds) : workers_(workers), bounds_(bounds) {
    for (int w = 0; w < workers; ++w) at(w) = run(count * w / workers, count * (w + 1) / workers);
  }

  // The worker's next task, or −1 when none is left anywhere.
  std::int64_t next(int worker) {
    do {
      for (std::uint64_t own = load(worker); begin(own) < end(own);)
        if (swap(worker, own, run(begin(own) + 1, end(own)))) return begin(own);
    } while (steal(worker));
    return -1;
  }

  static std::size_t bytes(int workers) { return workers * line * sizeof(std::uint64_t); }

 private:
  static constexpr std::int64_t line = 8;  // numbers in a cache line
  static std::uint64_t run(std::int64_t begin, std::int64_t end) {
    return std::uint64_t(begin) << 32 | std::uint64_t(end);
  }
  static std::int64_t begin(std::uint64_t run) { return std::int64_t(run >> 32); }
  static std::int64_t end(std::uint64_t run) { return std::int64_t(run & 0xffffffffu); }
  std::uint64_t& at(int worker) { return bounds_[worker * line]; }
  std::uint64_t load(int worker) { return __atomic_load_n(&at(worker), __ATOMIC_RELAXED); }
  bool swap(int worker, std::uint64_t& seen, std::uint64_t wanted) {
    return __atomic_compare_exchange_n(&at(worker), &seen, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }

  bool steal(int worker) {
    while (true) {
      int richest = -1;
      std::int64_t most = 0;
      for (int w = 0; w < workers_; ++w) {
        const std::uint64_t theirs = load(w);
        if (end(theirs) - begin(theirs) > most) most = end(theirs) - begin(theirs), richest = w;
      }
      if (richest < 0) return false;
      std::uint64_t theirs = load(richest);
      const std::int64_t left = end(theirs) - begin(theirs), middle = begin(theirs) + left / 2;
      if (left > 0 && swap(richest, theirs, run(begin(theirs), middle))) {
        // No thread takes from an empty run, so that only its owner writes to it.
        __atomic_store_n(&at(worker), run(middle, end(theirs)), __ATOMIC_RELAXED);
        return true;
      }
    }
  }

  int workers_;
  std::uint64_t* bounds_;
};

// body(worker) on all threads, or on the caller alone. Bodies are long: each is compiled once for both.
template <class Body>
void on_all(Pool& pool, bool alone, Body&& body) {
  const auto call = [](void* context, int worker) __attribute__((noinline)) {
    (*static_cast<std::remove_reference_t<Body>*>(context))(worker);
  };
  if (alone) return call(&body, 0);
  pool.run(call, &body);
}

// task(index, worker) for every index below `tasks`, on all threads unless there are few or short ones (`alone`).
template <class Task>
void parallel_for(Pool& pool, std::int64_t tasks, Task&& task, bool alone = false) {
  Claims claims(tasks);
  on_all(pool, alone || tasks <= 1, [&](int worker) {
    for (std::int64_t i = claims.next(); i < tasks; i = claims.next()) task(i, worker);
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
