// A pool of threads that runs one job at a time on all of them, with scratch memory for each thread.
//
// Workers spin for a short while after a job, because the next kernel of a step follows within microseconds, and then
// sleep: an idle engine uses no CPU. A job does not wait for workers that come too late: cores are shared, and a worker
// that the system has put aside must not hold up a step whose tasks the others have finished.
//
// Every kernel includes this, so what the pool is made of (pool.cpp) and its headers stay out of it.
#pragma once
#include <cstddef>

namespace inflight {

class Trace;

// Memory that grows, aligned to pages; what it held is lost when it does.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* reserve(std::size_t bytes);  // throws std::bad_alloc

 private:
  friend class Pool;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class Pool {
 public:
  using Body = void (*)(void* context, int worker);

  // CPUs of a thread: `count` numbers from `first` on; none: wherever the system puts it.
  struct Cpus {
    const int* first;
    int count;
  };

  // cpus: of each thread where it stays, the caller's first. hold_caller: the caller of `run` stays on its CPUs from
  // then on, and with it the processes and threads that it starts; else the caller goes where the system puts it.
  // Throws std::system_error where the system gives no more threads.
  Pool(int threads, const Cpus* cpus, bool hold_caller);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const;

  // Runs body(context, worker) on the caller (worker 0) and on every worker that wakes before the caller has finished;
  // returns when all who entered have left. The body claims tasks from the context until none is left. One job at a
  // time: callers take turns.
  void run(Body body, void* context);

  // Writes a zero to each page, of 4 KiB, of memory that is all zeros: worker w to those of its part, w of as many
  // equal parts as there are threads. The system puts a page near the thread that writes to it first.
  void touch(char* data, std::size_t bytes);
  // From now on each job is recorded there; null: none is. Not while one runs.
  void record(Trace* trace);

  // Memory of at least `bytes` for the caller of `run`, that stays valid until the next call with the same slot (0 …
  // 3). Throws std::bad_alloc.
  void* scratch(int slot, std::size_t bytes);

  // Every worker's own memory will have at least `bytes`. Called before `run`, since a worker could not throw to any
  // caller.
  void reserve(std::size_t bytes);
  void* own(int worker) const;

 private:
  class Workers;
  static constexpr int caller_slots = 4;

  Workers* workers_;
  Buffer* buffers_;
};

}  // namespace inflight
