#include "pool.h"

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include <chrono>
#include <cstdlib>
#include <new>

namespace inflight {
namespace {

constexpr std::uint64_t open_bit = 1ull << 31;
constexpr std::uint64_t count_mask = open_bit - 1;
constexpr auto spin_time = std::chrono::microseconds(150);

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Keeps the calling thread on one core, where the system has such a thing and lets it.
void stay_on([[maybe_unused]] int core) {
#if defined(__linux__)
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  pthread_setaffinity_np(pthread_self(), sizeof one, &one);
#endif
}

std::uint32_t generation(std::uint64_t state) { return static_cast<std::uint32_t>(state >> 32); }

}  // namespace

Pool::Pool(int threads, const std::vector<int>& cores) : buffers_(threads + 4) {
  try {
    for (int worker = 1; worker < threads; ++worker) {
      const int core = cores.empty() ? -1 : cores[worker % cores.size()];
      workers_.emplace_back([this, worker, core] {
        if (core >= 0) stay_on(core);
        work(worker);
      });
    }
  } catch (...) {  // the system gives no more threads
    end_workers();
    throw;
  }
}

void Pool::end_workers() {
  stopping_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

Pool::~Pool() {
  end_workers();
  for (auto& buffer : buffers_) std::free(buffer.data);
}

int Pool::threads() const { return static_cast<int>(workers_.size()) + 1; }

void* Pool::scratch(int slot, std::size_t bytes) {
  Buffer& buffer = buffers_[slot];
  if (buffer.bytes < bytes) {
    std::free(buffer.data);
    buffer.bytes = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    buffer.data = std::aligned_alloc(4096, buffer.bytes);
    if (buffer.data == nullptr) std::abort();
  }
  return buffer.data;
}

void Pool::run(Body body, void* context) {
  if (workers_.empty()) {
    body(context, 0);
    return;
  }
  body_ = body;
  context_ = context;
  const std::uint64_t next = (static_cast<std::uint64_t>(generation(state_.load(std::memory_order_relaxed)) + 1) << 32);
  state_.store(next | open_bit, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    wake_.fetch_add(1, std::memory_order_seq_cst);
    wake_.notify_all();
  }
  body(context, 0);
  state_.fetch_and(~open_bit, std::memory_order_acq_rel);
  for (int spins = 0; (state_.load(std::memory_order_acquire) & count_mask) != 0; ++spins) {
    if (spins < 4096) {
      pause();
    } else {
      std::this_thread::yield();  // a worker was put aside inside the job: let it have this core
    }
  }
}

void Pool::work(int worker) {
  std::uint32_t last = 0;
  while (true) {
    std::uint64_t state = wait_for_job(last);
    if (stopping_.load(std::memory_order_relaxed)) return;
    // The generation is part of what is compared, so that nobody enters a job that has been closed.
    if (!state_.compare_exchange_strong(state, state + 1, std::memory_order_acq_rel)) continue;
    last = generation(state);
    body_(context_, worker);
    state_.fetch_sub(1, std::memory_order_release);
  }
}

std::uint64_t Pool::wait_for_job(std::uint32_t last) {
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

}  // namespace inflight
