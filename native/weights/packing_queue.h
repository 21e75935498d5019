// Packing that goes on while its caller prepares what comes next.
//
// Jobs are done in the order of calls, and the caller may be some bytes ahead of them. The caller is Python, which may
// have to wait for the interpreter lock (building a tokenizer holds it for a third of a second): what it has given
// before keeps the threads busy meanwhile. A job touches no Python object; what it reads is let go by a caller, who has
// the lock.
#pragma once
#include <nanobind/nanobind.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace inflight {

namespace nb = nanobind;

class PackingQueue {
 public:
  using Work = std::function<void()>;

  PackingQueue() = default;
  PackingQueue(const PackingQueue&) = delete;
  // Jobs that have not begun are left undone: no caller is left to read what they would pack.
  ~PackingQueue() { end_thread(); }

  // In the order of calls. sources: what the job reads, of so many bytes. Returns when not too many of them are left;
  // throws what a job threw.
  void add(Work work, std::shared_ptr<void> sources, std::size_t bytes) {
    if (!thread_.joinable()) thread_ = std::thread([this] { go_through(); });
    {
      std::lock_guard lock(mutex_);
      jobs_.push_back({std::move(work), std::move(sources), bytes});
      ahead_ += bytes;
      ++unfinished_;
    }
    changed_.notify_all();
    const std::exception_ptr fault = wait([this] { return ahead_ <= max_ahead; });
    if (fault) std::rethrow_exception(fault);
  }

  // Returns when all jobs are done, and the thread with them; throws what one of them threw.
  void finish() {
    if (!thread_.joinable()) return;  // as for every step of an engine: nothing has been added since
    const std::exception_ptr fault = wait([this] { return unfinished_ == 0; });
    if (is_idle()) end_thread();  // or another caller has added something while the interpreter lock was let go
    if (fault) std::rethrow_exception(fault);
  }

 private:
  struct Job {
    Work work;
    std::shared_ptr<void> sources;
    std::size_t bytes;
  };
  static constexpr std::size_t max_ahead = 256u << 20;  // seconds at most, and progress is still reported as it is made

  // What a job threw meanwhile.
  template <class Until>
  std::exception_ptr wait(Until&& until) {
    std::vector<std::shared_ptr<void>> read;  // let go where the interpreter lock is held again
    nb::gil_scoped_release release;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, until);
    read.swap(read_);
    return std::exchange(fault_, nullptr);
  }

  bool is_idle() {
    std::lock_guard lock(mutex_);
    return unfinished_ == 0;
  }

  // The caller has the interpreter lock, so that no two of them are here; the thread never waits for it.
  void end_thread() {
    if (!thread_.joinable()) return;
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
    stopping_ = false;
  }

  void go_through() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      std::exception_ptr fault;
      try {
        job.work();
      } catch (...) {
        fault = std::current_exception();
      }
      lock.lock();
      if (!fault_) fault_ = fault;
      read_.push_back(std::move(job.sources));
      ahead_ -= job.bytes;
      --unfinished_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::vector<std::shared_ptr<void>> read_;  // sources of jobs that are done
  std::size_t ahead_ = 0;                    // bytes of sources of the others
  int unfinished_ = 0;
  std::exception_ptr fault_;  // of the first that threw
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace inflight
