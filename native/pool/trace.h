// When each thread was at which job of the pool, and when each call of the kernels began and ended.
//
// Recorded only while a pool has a trace; without one a job asks for it once on each thread. A thread writes to memory
// of its own, and the caller reads it when all have left the job. Times are nanoseconds: of the monotonic clock, and of
// a thread's own time, without what the system gave to others meanwhile.
#pragma once
#include <time.h>

#include <chrono>
#include <cstdint>
#include <vector>

namespace inflight {

// From entering a job until no task was left, on one thread; or of a call or a job as a whole.
struct TraceSpan {
  std::int64_t call, begin, end, own;
};

// The beginning of one.
struct TraceStart {
  std::int64_t begin, own;
};

class Trace {
 public:
  explicit Trace(int threads) : workers_(static_cast<std::size_t>(threads)) {
    for (Spans& one : workers_) one.spans.reserve(1 << 12);
  }

  static std::int64_t now() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
  }

  // Of the calling thread.
  static std::int64_t own() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<std::int64_t>(t.tv_sec) * 1000000000 + t.tv_nsec;
  }
  static TraceStart start() { return {now(), own()}; }

  // What runs from now on belongs to this call.
  void begin_call(std::int64_t call) { call_ = call; }
  std::int64_t call() const { return call_; }
  void add_call(TraceStart start) { calls_.push_back(since(start)); }
  void add_job(TraceStart start) { jobs_.push_back(since(start)); }
  void add(int worker, TraceStart start) { workers_[static_cast<std::size_t>(worker)].spans.push_back(since(start)); }

  const std::vector<TraceSpan>& calls() const { return calls_; }
  const std::vector<TraceSpan>& jobs() const { return jobs_; }  // from publishing one until all who entered have left
  std::int64_t workers() const { return static_cast<std::int64_t>(workers_.size()); }
  const std::vector<TraceSpan>& of_worker(std::int64_t worker) const {
    return workers_[static_cast<std::size_t>(worker)].spans;
  }

 private:
  struct alignas(64) Spans {  // beside no other thread's
    std::vector<TraceSpan> spans;
  };

  TraceSpan since(TraceStart start) const { return {call_, start.begin, now(), own() - start.own}; }

  std::int64_t call_ = 0;
  std::vector<TraceSpan> calls_, jobs_;
  std::vector<Spans> workers_;
};

// Records a call from here to the end of its block, where there is a trace.
class TracedCall {
 public:
  explicit TracedCall(Trace* trace) : trace_(trace), start_(trace ? Trace::start() : TraceStart{}) {}
  ~TracedCall() {
    if (trace_) trace_->add_call(start_);
  }
  TracedCall(const TracedCall&) = delete;
  TracedCall& operator=(const TracedCall&) = delete;

 private:
  Trace* trace_;
  TraceStart start_;
};

}  // namespace inflight
