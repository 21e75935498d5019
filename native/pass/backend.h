// The instruction set, the threads and the format that all else is computed with.
//
// One caller at a time has its turn at the pool, with the interpreter lock released. packing.h, kv_cache.h,
// state_cache.h, logits.h and program.h take turns.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pass/array.h"
#include "pool/memory.h"
#include "pool/pool.h"
#include "pool/trace.h"
#include "types.h"
#include "weights/packing_queue.h"

namespace inflight {

// The size of an activation's number, and how many of them a lane holds.
inline std::int64_t item_bytes(Format format) { return format == Format::bf16 ? 2 : 4; }
inline std::int64_t per_step(Format format) { return format == Format::bf16 ? 2 : 1; }

// Where what adapters add to a product is made: sums of x · Aᵀ, those as activations are held, those of one part, and
// what is added.
struct LowRankMemory {
  Buffer sums, lowered, part, added;
};

// Of the instruction set of this name, or of the best: "auto".
inline const Kernels* kernels_of(const std::string& isa) {
  int count = 0;
  const InstructionSet* sets = instruction_sets(&count);
  std::string available, compiled;
  for (int i = 0; i < count; ++i) {
    const InstructionSet& one = sets[i];
    if (one.available() && (isa == "auto" || isa == one.name)) return one.kernels;
    if (one.available()) available += (available.empty() ? "" : ", ") + std::string(one.name);
    if (one.kernels) compiled += (compiled.empty() ? "" : ", ") + std::string(one.name);
    if (isa == one.name && one.runs)
      refuse("this build has no kernels for \"" + isa + "\"; `inflight doctor --kernels all` compiles all of them");
  }
  if (available.empty())
    refuse("this build has kernels for " + compiled + ", which this processor does not run; "
           "`inflight doctor --kernels all` compiles those for it");
  refuse("this machine has no instruction set \"" + isa + "\"; it has " + available);
}

class Backend {
 public:
  Backend(const std::string& dtype, int threads, const std::string& isa, const std::vector<std::vector<int>>& cpus,
          bool hold_caller, bool first_touch)
      : weight_arena_(first_touch ? std::function<void(char*, std::size_t)>([this](char* data, std::size_t bytes) {
          touch(data, bytes);
        }) : nullptr) {
    if (dtype != "bfloat16" && dtype != "float32") refuse("dtype must be bfloat16 or float32, not " + dtype);
    if (threads < 1 || threads > 1024) refuse("threads must be between 1 and 1024, not " + std::to_string(threads));
    format_ = dtype == "bfloat16" ? Format::bf16 : Format::f32;
    act_ = format_ == Format::bf16 ? Kind::u16 : Kind::f32;
    kernels_ = kernels_of(isa);
    if (!cpus.empty() && cpus.size() != static_cast<std::size_t>(threads))
      refuse("there are CPUs for " + std::to_string(cpus.size()) + " threads, not for " + std::to_string(threads));
    std::vector<Pool::Cpus> each(static_cast<std::size_t>(threads), Pool::Cpus{nullptr, 0});
    for (std::size_t i = 0; i < cpus.size(); ++i) {
      for (const int cpu : cpus[i])
        if (cpu < 0 || cpu >= 1024)
          refuse("CPUs are numbered from 0 to 1023, so that there is no " + std::to_string(cpu));
      each[i] = {cpus[i].data(), static_cast<int>(cpus[i].size())};
    }
    pool_ = std::make_unique<Pool>(threads, each.data(), hold_caller);
  }

  std::string isa() const { return kernels_->name; }

  Format format() const { return format_; }
  Kind act() const { return act_; }
  std::int64_t item() const { return item_bytes(format_); }

  void same_format(Format given) const {
    if (given != format_) refuse("these weights were packed by a backend of another dtype");
  }

  // For weights, or keys and values, that are held so.
  const ProductKernels& products(Hold hold) const {
    const bool bf16 = format_ == Format::bf16;
    switch (hold) {
      case Hold::int4: return bf16 ? kernels_->int4_bf16 : kernels_->int4_f32;
      case Hold::int8: return bf16 ? kernels_->int8_bf16 : kernels_->int8_f32;
      case Hold::act: break;
    }
    return bf16 ? kernels_->bf16 : kernels_->f32;
  }

  WeightArena& weight_arena() { return weight_arena_; }
  LowRankMemory& low_rank_memory() { return low_rank_memory_; }  // of the caller at the pool

  // turn() is alone at the pool and at the memory of caches while it runs, after all packing. The interpreter goes on
  // meanwhile: nothing of Python's may be touched.
  template <class Turn>
  void take_turn(Turn&& turn) {
    packing_.finish();
    nb::gil_scoped_release release;
    std::lock_guard lock(turn_);
    turn();
  }
  // work(pool, kernels), for a caller whose turn it is.
  template <class Work>
  void run_in_turn(Work&& work) {
    const TracedCall traced(trace_.get());
    work(*pool_, kernels_->rows);
  }
  template <class Work>
  void run(Work&& work) {
    take_turn([&] { run_in_turn(work); });
  }
  // The same of work that takes a fraction of a millisecond: where no turn is being waited for, the interpreter lock is
  // kept, since beside a thread that computes in Python it comes back after milliseconds.
  template <class Work>
  void run_briefly(Work&& work) {
    packing_.finish();
    std::unique_lock turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return run(work);
    run_in_turn(work);
  }

  // The same, later and in the order of calls. sources: what it reads, of so many bytes.
  template <class Work>
  void run_later(Work work, std::shared_ptr<void> sources, std::size_t bytes) {
    const auto alone = [this, work = std::move(work)] {
      std::lock_guard lock(turn_);
      run_in_turn(work);
    };
    packing_.add(alone, std::move(sources), bytes);
  }

  void finish_packing() { packing_.finish(); }

  // From now on each call and job is recorded, until `stop_trace` gives what was.
  void start_trace() {
    const std::unique_lock turn = wait_for_turn();
    trace_ = std::make_unique<Trace>(pool_->threads());
    pool_->record(trace_.get());
  }
  std::unique_ptr<Trace> stop_trace() {
    const std::unique_lock turn = wait_for_turn();
    pool_->record(nullptr);
    return std::move(trace_);
  }
  // What is packed until now belongs to the calls before.
  void begin_traced_call(std::int64_t call) {
    if (!trace_) return;
    packing_.finish();
    trace_->begin_call(call);
  }
  Trace* trace() { return trace_.get(); }  // or null

  // Best of a few passes over memory that no cache holds; bytes per second.
  double read_bandwidth(std::int64_t bytes, int passes) {
    double best = 0;
    run([&](Pool& pool, const RowKernels& kernels) {
      if (probe_.bytes() < static_cast<std::size_t>(bytes)) {
        probe_ = Memory(static_cast<std::size_t>(bytes));
        std::memset(probe_.data(), 1, probe_.bytes());
      }
      for (int i = 0; i < passes; ++i) best = std::max(best, kernels.read_bandwidth(pool, probe_.data(), bytes));
    });
    return best;
  }

  // Operations per second of products over numbers that are held so.
  double peak(const std::string& kind, double seconds) {
    if (kind != "bf16" && kind != "f32" && kind != "int8") refuse("kind must be bf16, f32 or int8, not " + kind);
    const ProductKernels& kernels =
        kind == "bf16" ? kernels_->bf16 : kind == "f32" ? kernels_->f32 : kernels_->int8_bf16;
    double result = 0;
    run([&](Pool& pool, const RowKernels&) { result = kernels.peak(pool, seconds); });
    return result;
  }

 private:
  // The turn, with the interpreter lock. While another caller has the turn, Python goes on: no caller waits for a turn
  // with the interpreter lock, which the one that has the turn may need.
  std::unique_lock<std::mutex> wait_for_turn() {
    std::unique_lock turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) {
      const nb::gil_scoped_release release;
      turn.lock();
    }
    return turn;
  }

  // Pages that each thread will read are first written by it.
  void touch(char* data, std::size_t bytes) {
    nb::gil_scoped_release release;
    std::lock_guard lock(turn_);
    pool_->touch(data, bytes);
  }

  Format format_{};
  Kind act_{};
  const Kernels* kernels_ = nullptr;
  std::unique_ptr<Pool> pool_;
  std::mutex turn_;  // calls from several Python threads take turns
  std::unique_ptr<Trace> trace_;  // or null; the pool knows it, too
  WeightArena weight_arena_;  // of packed weights; touched by the pool
  LowRankMemory low_rank_memory_;
  Memory probe_;
  PackingQueue packing_;  // the last, so that it ends before what it works with
};

inline std::vector<std::string> available_isas() {
  int count = 0;
  const InstructionSet* sets = instruction_sets(&count);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i)
    if (sets[i].available()) names.emplace_back(sets[i].name);
  return names;
}

// Of each instruction set its name, the CPU's features that it needs, whether this machine runs it, and whether this
// build has it; best first.
inline nb::list list_instruction_sets() {
  int count = 0;
  const InstructionSet* sets = instruction_sets(&count);
  nb::list found;
  for (int i = 0; i < count; ++i)
    found.append(nb::make_tuple(sets[i].name, sets[i].needs, sets[i].runs, sets[i].kernels != nullptr));
  return found;
}

}  // namespace inflight
