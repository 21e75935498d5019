#include "pool/pool.h"

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "pool/trace.h"

namespace inflight {
namespace {

constexpr std::uint64_t open_bit = 1ull << 31;
constexpr std::uint64_t count_mask = open_bit - 1;
constexpr std::size_t page = 4096;
constexpr auto spin_time = std::chrono::microseconds(150);

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

using Numbers = std::vector<int>;

// Keeps the calling thread on some CPUs, where the system has such a thing and lets it.
void stay_on([[maybe_unused]] const Numbers& cpus) {
#if defined(__linux__)
  if (cpus.empty()) return;
  cpu_set_t some;
  CPU_ZERO(&some);
  for (const int cpu : cpus) CPU_SET(cpu, &some);
  pthread_setaffinity_np(pthread_self(), sizeof some, &some);
#endif
}

// Keeps it there for a while.
class StayOn {
 public:
  explicit StayOn(const Numbers& cpus) {
#if defined(__linux__)
    moved_ = !cpus.empty() && pthread_getaffinity_np(pthread_self(), sizeof before_, &before_) == 0;
    if (moved_) stay_on(cpus);
#else
    (void)cpus;
#endif
  }
  ~StayOn() {
#if defined(__linux__)
    if (moved_) pthread_setaffinity_np(pthread_self(), sizeof before_, &before_);
#endif
  }
  StayOn(const StayOn&) = delete;
  StayOn& operator=(const StayOn&) = delete;

 private:
#if defined(__linux__)
  cpu_set_t before_;
#endif
  bool moved_ = false;
};

std::uint32_t generation(std::uint64_t state) { return static_cast<std::uint32_t>(state >> 32); }

}  // namespace

class Pool::Workers {
 public:
  Workers(int threads, const Cpus* cpus, bool hold_caller)
      : caller_(cpus[0].first, cpus[0].first + cpus[0].count), hold_caller_(hold_caller && cpus[0].count > 0) {
    static std::atomic<std::uint64_t> made{0};
    number_ = ++made;
    try {
      for (int worker = 1; worker < threads; ++worker) {
        threads_.emplace_back(
            [this, worker, own = Numbers(cpus[worker].first, cpus[worker].first + cpus[worker].count)] {
              stay_on(own);
              work(worker);
            });
      }
    } catch (...) {  // the system gives no more threads
      end();
      throw;
    }
  }
  ~Workers() { end(); }

  int count() const { return static_cast<int>(threads_.size()); }
  const Numbers& caller() const { return caller_; }
  void run(Body body, void* context);
  void record(Trace* trace) { trace_ = trace; }

 private:
  void end();
  void work(int worker);
  void call(Body body, void* context, int worker);
  void run_on_all(Body body, void* context);
  std::uint64_t wait_for_job(std::uint32_t last);

  // generation << 32 | open << 31 | number of workers inside
  alignas(64) std::atomic<std::uint64_t> state_{0};
  alignas(64) std::atomic<std::uint32_t> wake_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  Body body_ = nullptr;
  void* context_ = nullptr;
  const Numbers caller_;  // its CPUs
  const bool hold_caller_;
  std::uint64_t number_;  // of all that were made
  Trace* trace_ = nullptr;  // changes between jobs
  std::vector<std::thread> threads_;
};

void Pool::Workers::end() {
  stopping_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

// The body on this thread, recorded where there is a trace.
void Pool::Workers::call(Body body, void* context, int worker) {
  if (trace_ == nullptr) [[likely]] return body(context, worker);
  const TraceStart start = Trace::start();
  body(context, worker);
  trace_->add(worker, start);
}

void Pool::Workers::run(Body body, void* context) {
  if (hold_caller_) {
    static thread_local std::uint64_t held_by = 0;
    if (std::exchange(held_by, number_) != number_) stay_on(caller_);
  }
  if (trace_ == nullptr) [[likely]] return run_on_all(body, context);
  const TraceStart start = Trace::start();
  run_on_all(body, context);
  trace_->add_job(start);
}

void Pool::Workers::run_on_all(Body body, void* context) {
  if (threads_.empty()) return call(body, context, 0);
  body_ = body;
  context_ = context;
  const std::uint64_t next = (static_cast<std::uint64_t>(generation(state_.load(std::memory_order_relaxed)) + 1) << 32);
  state_.store(next | open_bit, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    wake_.fetch_add(1, std::memory_order_seq_cst);
    wake_.notify_all();
  }
  call(body, context, 0);
  state_.fetch_and(~open_bit, std::memory_order_acq_rel);
  for (int spins = 0; (state_.load(std::memory_order_acquire) & count_mask) != 0; ++spins) {
    if (spins < 4096) {
      pause();
    } else {
      std::this_thread::yield();  // a worker was put aside inside the job: let it have this core
    }
  }
}

void Pool::Workers::work(int worker) {
  std::uint32_t last = 0;
  while (true) {
    std::uint64_t state = wait_for_job(last);
    if (stopping_.load(std::memory_order_relaxed)) return;
    // The generation is part of what is compared, so that no thread enters a job that has been closed.
    if (!state_.compare_exchange_strong(state, state + 1, std::memory_order_acq_rel)) continue;
    last = generation(state);
    call(body_, context_, worker);
    state_.fetch_sub(1, std::memory_order_release);
  }
}

std::uint64_t Pool::Workers::wait_for_job(std::uint32_t last) {
  const auto due = [&](std::uint64_t state) { return (state & open_bit) != 0 && generation(state) != last; };
  while (true) {
    const auto deadline = std::chrono::steady_clock::now() + spin_time;
    do {
      for (int spins = 0; spins < 64; ++spins) {
        const std::uint64_t state = state_.load(std::memory_order_acquire);
        if (due(state)) return state;
        pause();
      }
      if (stopping_.load(std::memory_order_relaxed)) return 0;
    } while (std::chrono::steady_clock::now() < deadline);

    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = wake_.load(std::memory_order_seq_cst);
    if (!due(state_.load(std::memory_order_seq_cst)) && !stopping_.load(std::memory_order_seq_cst)) {
      wake_.wait(seen, std::memory_order_seq_cst);
    }
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }
}

Buffer::~Buffer() { std::free(data_); }

void* Buffer::reserve(std::size_t bytes) {
  if (bytes_ < bytes) {
    std::free(std::exchange(data_, nullptr));
    bytes_ = 0;
    const std::size_t wanted = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    data_ = std::aligned_alloc(4096, wanted);
    if (data_ == nullptr) throw std::bad_alloc();
    bytes_ = wanted;
  }
  return data_;
}

Pool::Pool(int threads, const Cpus* cpus, bool hold_caller) {
  auto workers = std::make_unique<Workers>(threads, cpus, hold_caller);
  buffers_ = new Buffer[caller_slots + threads];
  workers_ = workers.release();
}

Pool::~Pool() {
  delete workers_;
  delete[] buffers_;
}

int Pool::threads() const { return workers_->count() + 1; }

void Pool::run(Body body, void* context) { workers_->run(body, context); }

void Pool::touch(char* data, std::size_t bytes) {
  struct Job {
    char* data;
    std::size_t bytes;
    int threads;
    std::atomic<int> entered{0};
  } job{data, bytes, threads()};
  const StayOn here(workers_->caller());
  const auto write = [](void* context, int worker) {
    Job& all = *static_cast<Job*>(context);
    all.entered.fetch_add(1);
    const std::size_t part = static_cast<std::size_t>(worker), parts = static_cast<std::size_t>(all.threads);
    const std::size_t end = all.bytes * (part + 1) / parts;
    for (std::size_t at = all.bytes * part / parts; at < end; at += page) static_cast<volatile char*>(all.data)[at] = 0;
    // A job ends without workers that come late; here each has a part that no other may do.
    while (worker == 0 && all.entered.load() < all.threads) std::this_thread::yield();
  };
  run(write, &job);
}
void Pool::record(Trace* trace) { workers_->record(trace); }

void* Pool::scratch(int slot, std::size_t bytes) { return buffers_[slot].reserve(bytes); }

void* Pool::own(int worker) const { return buffers_[caller_slots + worker].data_; }

void Pool::reserve(std::size_t bytes) {
  for (int worker = 0; worker < threads(); ++worker) buffers_[caller_slots + worker].reserve(bytes);
}

}  // namespace inflight
