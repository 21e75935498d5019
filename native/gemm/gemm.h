// Matrix products y = x · Wᵀ over packed weights: how work is cut for caches and threads, and how sums become outputs.
//
// A product may be several (the experts of a mixture, each for its own rows of x): they are one job of the pool. A task
// is a group of 32 outputs for up to 192 tokens. Over many tokens the group goes through the second-level cache in
// blocks along K, each read from memory once and used by every tile of tokens, while the next block is fetched; sums
// wait in scratch memory between blocks, exactly, so cutting changes no bits.
#pragma once
#include "gemm/stage.h"
#include "gemm/tile.h"
#include "isa/elementary.h"
#include "isa/float16.h"
#include "pool/parallel.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

constexpr std::int64_t block_lanes = 2048 * group_lanes;   // 256 KiB: a quarter of a usual second-level cache
constexpr std::int64_t tokens_per_task = 192;

// (up + 1) · gate · sigmoid(1.702 · gate), gate to 7 and up from −7 to 7 (gpt-oss). NaN stays NaN.
INLINE vf clamped_times(vf gate, vf up) {
  const vf opening = min(all(7.0f), gate), bounded = max(all(-7.0f), min(all(7.0f), up));
  return opening / (all(1.0f) + exp(opening * -1.702f)) * (bounded + 1.0f);
}

template <Epilogue epilogue>
INLINE vf gated(vf gate, vf up) {
  if constexpr (epilogue == Epilogue::gate_up_clamped) return clamped_times(gate, up);
  if constexpr (epilogue == Epilogue::gate_up_gelu_erf) return gelu_erf(gate) * up;
  return (epilogue == Epilogue::gate_up_gelu ? gelu(gate) : silu(gate)) * up;
}

INLINE vf activated(Epilogue epilogue, vf x) {
  return epilogue == Epilogue::gelu_erf ? gelu_erf(x) : epilogue == Epilogue::gelu ? gelu(x) : relu(x);
}

// Over spans the same bits on every instruction set.
template <class F, class Value>
INLINE void store_value(Value* to, vf x) {
  if constexpr (sizeof(Value) == 2 && by_spans<F>) {
    store_bf16(to, x);
  } else if constexpr (sizeof(Value) == 2) {
    store_bf16_fast(to, x);
  } else {
    store(to, x);
  }
}

// The numbers that the sums of outputs from `lane` on stand for: of int8 and int4 times the output's factor.
template <class F>
INLINE vf meant(const Weights& w, const float* sums, std::int64_t lane) {
  if constexpr (by_spans<F>) {
    return load<vf>(sums) * load<vf>(w.factors + lane);
  } else {
    return load<vf>(sums);
  }
}

// A tile's sums and where they belong: [tokens][32], rows from `token` on, outputs from `lane` of all lanes on. added:
// as of a share.
struct Finished {
  const float* sums;
  std::int64_t token, tokens, lane;
  const float* const* shared;
  const float* added(std::int64_t t) const { return shared ? shared[token + t] : nullptr; }
};

// What the epilogue makes of the group's two panels, gate and up.
template <class F, Epilogue epilogue, class Value>
void finish_gate_up(const Weights& w, const Finished& tile, Value* out) {
  const std::int64_t first = tile.lane / 2, count = w.rows - first < panel ? w.rows - first : panel;
  for (std::int64_t t = 0; t < tile.tokens; ++t) {
    const float* gate = tile.sums + t * group_lanes;
    Value* to = out + (tile.token + t) * w.out_stride + first;
    Value held[panel];
    Value* at = count == panel ? to : held;
    const float* added = tile.added(t);
    for (int v = 0; v < panel; v += lanes) {
      vf opening = meant<F>(w, gate + v, tile.lane + v);
      vf up = meant<F>(w, gate + panel + v, tile.lane + panel + v);
      if (w.bias) opening += load<vf>(w.bias + first + v), up += load<vf>(w.bias + w.groups * panel + first + v);
      if (added) opening += load<vf>(added + first + v), up += load<vf>(added + w.rows + first + v);
      store_value<F>(at + v, gated<epilogue>(opening, up));
    }
    for (std::int64_t k = 0; k < count && at != to; ++k) to[k] = held[k];
  }
}

// What the epilogue makes of each sum by itself, as activations are held.
template <class F, class Value>
void finish_activated(const Weights& w, const Finished& tile, Epilogue epilogue, Value* out) {
  const std::int64_t left = w.rows - tile.lane, count = left < group_lanes ? left : group_lanes;
  for (std::int64_t t = 0; t < tile.tokens; ++t) {
    Value* to = out + (tile.token + t) * w.out_stride + tile.lane;
    const float* added = tile.added(t);
    for (std::int64_t i = 0; i < count; i += lanes) {
      vf value = meant<F>(w, tile.sums + t * group_lanes + i, tile.lane + i);
      if (i + lanes <= count) {
        if (w.bias) value += load<vf>(w.bias + tile.lane + i);
        if (added) value += load<vf>(added + tile.lane + i);
        store_value<F>(to + i, activated(epilogue, value));
        continue;
      }
      float bias[lanes] = {};
      for (std::int64_t k = i; k < count && w.bias; ++k) bias[k - i] = w.bias[tile.lane + k];
      value += load<vf>(bias);
      if (added) value += load<vf>(added + tile.lane + i);
      Value held[lanes];
      store_value<F>(held, activated(epilogue, value));
      for (std::int64_t k = i; k < count; ++k) to[k] = held[k - i];
    }
  }
}

enum class Write { over, past_caches, add };

template <class F, Write write>
void finish(const Weights& w, const Finished& tile, float* out) {
  const std::int64_t left = w.rows - tile.lane, count = left < group_lanes ? left : group_lanes;
  for (std::int64_t t = 0; t < tile.tokens; ++t) {
    float* to = out + (tile.token + t) * w.out_stride + tile.lane;
    const float* added = tile.added(t);
    for (std::int64_t i = 0; i < count; i += lanes) {
      vf value = meant<F>(w, tile.sums + t * group_lanes + i, tile.lane + i);
      if (i + lanes <= count) {
        if (w.bias) value += load<vf>(w.bias + tile.lane + i);
        if (added) value += load<vf>(added + tile.lane + i);
        if constexpr (write == Write::past_caches) {
          stream(to + i, value);
        } else {
          store(to + i, write == Write::add ? load<vf>(to + i) + value : value);
        }
        continue;
      }
      for (std::int64_t k = i; k < count; ++k) {
        const float biased = w.bias ? value[k - i] + w.bias[tile.lane + k] : value[k - i];
        const float one = added ? biased + added[tile.lane + k] : biased;
        to[k] = write == Write::add ? to[k] + one : one;
      }
    }
  }
}

// The product of a share of the rows of activations that are held as `Value`.
template <class F, class Value>
class Product {
  using X = typename F::X;

 public:
  Product(const Staged<F>& x, const Share& share, Epilogue epilogue, void* out)
      : w_(*share.weights), x_(x), first_(share.first), tokens_(share.rows), added_(share.added), epilogue_(epilogue),
        out_(out),
        parts_((tokens_ + tokens_per_task - 1) / tokens_per_task),
        past_caches_(epilogue == Epilogue::store && w_.rows >= vocabulary && tokens_ * w_.rows * 4 >= beyond_caches &&
                     on_lines(out, w_.out_stride)) {}

  std::int64_t tasks() const { return w_.groups * parts_; }
  std::int64_t widest_task() const { return parts_ == 0 ? 0 : (tokens_ + parts_ - 1) / parts_; }  // rows
  std::int64_t work() const { return w_.groups * w_.steps * step_lanes() / group_lanes * (4 + tokens_); }
  bool past_caches() const { return past_caches_; }

  // sums: memory for a task's.
  void task(std::int64_t index, float* sums) const {
    const Task task = task_of(index);
    // What is read once need not stay; panels that are read one after the other are fetched together.
    const bool once = task.tiles == 1 && tile_width<F>(static_cast<int>(task.count)) * panel == group_lanes;
    const std::int64_t blocks = once ? 1 : (w_.steps * step_lanes() + block_lanes - 1) / block_lanes;
    for (std::int64_t b = 0, begin = 0, end = 0; b < blocks; ++b, begin = end) {
      end = b + 1 == blocks ? w_.steps : w_.steps * (b + 1) / blocks / unit_steps<F> * unit_steps<F>;
      const Block block{begin, end - begin, b == 0, b + 1 == blocks};
      for (std::int64_t i = 0; i < task.tiles; ++i) {
        tiles(task, block, i, sums + task.row(i) * group_lanes);
        if (block.last) finished(task, i, sums + task.row(i) * group_lanes);
      }
    }
  }

 private:
  // Outputs that are written past the caches: of a vocabulary (what a layer's product writes is read at once), and
  // many.
  static constexpr std::int64_t vocabulary = 1 << 15, beyond_caches = 1 << 22;
  static bool on_lines(const void* out, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(out) % 64 == 0 && stride % panel == 0;
  }

  // Tokens [first, first + count), in `tiles` tiles, by a group.
  struct Task {
    std::int64_t group, first, count, tiles;
    bool goes_on;  // the thread's next task is in the memory that follows
    std::int64_t row(std::int64_t tile) const { return count * tile / tiles; }
  };
  // Of a step, in the memory of a group and of a row of x.
  std::int64_t step_lanes() const {
    if constexpr (by_spans<F>) return w_.step_lanes;
    return group_lanes;
  }
  std::int64_t x_lanes() const {
    if constexpr (by_spans<F>) return x_lanes_of<F>(w_.spans.inputs);
    return F::x_per_step;
  }
  // Steps [begin, begin + steps) of the sums.
  struct Block {
    std::int64_t begin, steps;
    bool first, last;
  };

  Task task_of(std::int64_t index) const {
    const std::int64_t part = index % parts_, first = tokens_ * part / parts_;
    const std::int64_t count = tokens_ * (part + 1) / parts_ - first;
    return {index / parts_, first_ + first, count, (count + max_rows<F> - 1) / max_rows<F>, part + 1 == parts_};
  }

  // The i-th tokens of a task over the group's panels.
  void tiles(const Task& task, const Block& block, std::int64_t i, float* sums) const {
    const std::int64_t row = task.row(i);
    const int rows = static_cast<int>(task.row(i + 1) - row);
    const X* x = x_.x + (task.first + row) * x_.stride + block.begin * x_lanes();
    const std::uint32_t* from = w_.data + (task.group * w_.steps + block.begin) * step_lanes();
    // The last group may have outputs in one panel alone.
    const std::int64_t lanes = w_.gate_up || w_.rows - task.group * group_lanes > panel ? group_lanes : panel;
    for (std::int64_t at = 0; at < lanes; at += tile_width<F>(rows) * panel) {
      // The first fetch for all of the group.
      const Ahead ahead = at == 0 ? this->ahead(task, block, i, from) : Ahead{};
      const int steps = static_cast<int>(block.steps);
      run_tile<F>(rows, {from, at, w_.spans, steps, x, x_.stride, sums + at, block.first, ahead});
    }
  }

  // What the i-th tile of tokens brings near.
  Ahead ahead(const Task& task, const Block& block, std::int64_t i, const std::uint32_t* from) const {
    if (task.tiles == 1) {
      // A single pass over the stream: the machine's own prefetcher follows it best, but not where a step takes long or
      // the panels are read one after the other.
      if (!fetches<F>(static_cast<int>(task.count), 2)) return {};
      return {from + 64 * group_lanes, 2};
    }
    if (block.last && !task.goes_on) return {};
    // Each tile fetches its share of the next block, which is as long: of two lines a step none or one.
    const std::int64_t first = 2 * i / task.tiles, last = 2 * (i + 1) / task.tiles;
    return {from + block.steps * step_lanes() * (2 + first) / 2, static_cast<int>(last - first)};
  }

  // Sums → out, as the epilogue says.
  void finished(const Task& task, std::int64_t i, const float* sums) const {
    const std::int64_t row = task.row(i), count = task.row(i + 1) - row;
    const Finished tile{sums, task.first + row, count, task.group * group_lanes, added_};
    if (epilogue_ == Epilogue::gate_up)
      return finish_gate_up<F, Epilogue::gate_up>(w_, tile, static_cast<Value*>(out_));
    if (epilogue_ == Epilogue::gate_up_clamped)
      return finish_gate_up<F, Epilogue::gate_up_clamped>(w_, tile, static_cast<Value*>(out_));
    if (epilogue_ == Epilogue::gate_up_gelu)
      return finish_gate_up<F, Epilogue::gate_up_gelu>(w_, tile, static_cast<Value*>(out_));
    if (epilogue_ == Epilogue::gate_up_gelu_erf)
      return finish_gate_up<F, Epilogue::gate_up_gelu_erf>(w_, tile, static_cast<Value*>(out_));
    if (epilogue_ == Epilogue::gelu || epilogue_ == Epilogue::gelu_erf || epilogue_ == Epilogue::relu)
      return finish_activated<F>(w_, tile, epilogue_, static_cast<Value*>(out_));
    float* out = static_cast<float*>(out_);
    if (epilogue_ == Epilogue::residual) return finish<F, Write::add>(w_, tile, out);
    if (past_caches_) return finish<F, Write::past_caches>(w_, tile, out);
    finish<F, Write::over>(w_, tile, out);
  }

  const Weights& w_;
  const Staged<F>& x_;
  std::int64_t first_, tokens_;
  const float* const* added_;
  Epilogue epilogue_;
  void* out_;
  std::int64_t parts_;  // of the tokens
  bool past_caches_;
};

template <class F, class Value>
void gemm(Pool& pool, const void* x, const Share* shares, std::int64_t count, Epilogue epilogue, void* out) {
  const std::int64_t rows = count > 0 ? shares[count - 1].first + shares[count - 1].rows : 0;
  if (rows == 0 || shares[0].weights->rows == 0) return;
  const Staged<F> staged = stage<F>(pool, static_cast<const Value*>(x), rows, *shares[0].weights);
  const auto product = [&](std::int64_t i) { return Product<F, Value>(staged, shares[i], epilogue, out); };

  const std::size_t of_ranges = WorkRanges::bytes(pool.threads());
  auto* bounds = static_cast<std::uint64_t*>(pool.scratch(1, of_ranges + (count + 1) * sizeof(std::int64_t)));
  auto* begins = reinterpret_cast<std::int64_t*>(reinterpret_cast<char*>(bounds) + of_ranges);  // tasks before each
  std::int64_t most = 0, work = 0;
  bool past_caches = false;
  begins[0] = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const Product<F, Value> one = product(i);
    begins[i + 1] = begins[i] + one.tasks();
    work += one.work();
    most = one.widest_task() > most ? one.widest_task() : most;
    past_caches |= one.past_caches();
  }
  // A thread goes through neighbouring groups: to the memory they are one stream.
  WorkRanges ranges(begins[count], pool.threads(), bounds);
  const bool tiny = work < 4096;  // below about two microseconds of work it costs more to share it
  pool.reserve(most * group_lanes * sizeof(float));
  on_all(pool, tiny || begins[count] == 1, [&](int worker) {
    float* sums = static_cast<float*>(pool.own(worker));
    for (std::int64_t task = ranges.next(worker); task >= 0; task = ranges.next(worker)) {
      std::int64_t low = 0, high = count;  // the last share that begins at the task or before
      while (high - low > 1) (begins[(low + high) / 2] <= task ? low : high) = (low + high) / 2;
      product(low).task(task - begins[low], sums);
    }
    if (past_caches) streamed();
    if constexpr (has_own_tile<F>) F::end();
  });
}

}  // namespace inflight::INFLIGHT_ISA
