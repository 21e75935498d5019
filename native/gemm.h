// Matrix products y = x · Wᵀ over packed weights.
//
// Knows how sums become outputs and how work is cut for caches and threads. A task is a group of 32 outputs for up to 192
// tokens. Over many tokens the group goes through the second-level cache in blocks along K, each read from memory once
// and used by every tile of tokens, while the next block is fetched; sums wait in scratch memory between blocks, exactly,
// so cutting changes no bits.
#pragma once
#include "parallel.h"
#include "stage.h"
#include "tile.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

constexpr std::int64_t block_lanes = 2048 * group_lanes;   // 256 KiB: a quarter of a usual second-level cache
constexpr std::int64_t tokens_per_task = 192;

INLINE vf silu_times(vf gate, vf up) { return gate / (all(1.0f) + exp(-gate)) * up; }

template <class Value>
INLINE void store_value(Value* to, vf x) {
  if constexpr (sizeof(Value) == 2) {
    store_bf16_fast(to, x);
  } else {
    store(to, x);
  }
}

// What the sums of a row's outputs [lane, lane + lanes) stand for. int8: (sum · token's scale) · output's scale; int4:
// its factor.
template <class F>
INLINE vf meant(const Weights& w, const Staged<F>& x, const float* sums, std::int64_t token, std::int64_t lane) {
  if constexpr (by_spans<F>) {
    return load<vf>(sums) * x.scales[token] * load<vf>(w.scales + lane);
  } else if constexpr (F::values_per_step == 4) {
    const vf whole = __builtin_convertvector((vi)(load<vu>(sums) - static_cast<std::uint32_t>(x.excess[token])), vf);
    return whole * x.scales[token] * load<vf>(w.scales + lane);
  } else {
    return load<vf>(sums);
  }
}

// A tile's sums and where they belong: [tokens][32], rows from `token` on, outputs from `lane` of all lanes on.
struct Finished {
  const float* sums;
  std::int64_t token, tokens, lane;
};

// silu(gate) · up, of the group's two panels.
template <class F, class Value>
void finish_gate_up(const Weights& w, const Staged<F>& x, const Finished& tile, Value* out) {
  const std::int64_t first = tile.lane / 2, count = w.rows - first < panel ? w.rows - first : panel;
  for (std::int64_t t = 0; t < tile.tokens; ++t) {
    const float* gate = tile.sums + t * group_lanes;
    Value* to = out + (tile.token + t) * w.out_stride + first;
    Value held[panel];
    Value* at = count == panel ? to : held;
    for (int v = 0; v < panel; v += lanes)
      store_value(at + v, silu_times(meant<F>(w, x, gate + v, tile.token + t, tile.lane + v),
                                     meant<F>(w, x, gate + panel + v, tile.token + t, tile.lane + panel + v)));
    for (std::int64_t k = 0; k < count && at != to; ++k) to[k] = held[k];
  }
}

enum class Write { over, past_caches, add };

template <class F, Write write>
void finish(const Weights& w, const Staged<F>& x, const Finished& tile, float* out) {
  const std::int64_t left = w.rows - tile.lane, count = left < group_lanes ? left : group_lanes;
  for (std::int64_t t = 0; t < tile.tokens; ++t) {
    float* to = out + (tile.token + t) * w.out_stride + tile.lane;
    for (std::int64_t i = 0; i < count; i += lanes) {
      vf value = meant<F>(w, x, tile.sums + t * group_lanes + i, tile.token + t, tile.lane + i);
      if (i + lanes <= count) {
        if (w.bias) value += load<vf>(w.bias + tile.lane + i);
        if constexpr (write == Write::past_caches) {
          stream(to + i, value);
        } else {
          store(to + i, write == Write::add ? load<vf>(to + i) + value : value);
        }
        continue;
      }
      for (std::int64_t k = i; k < count; ++k) {
        const float one = w.bias ? value[k - i] + w.bias[tile.lane + k] : value[k - i];
        to[k] = write == Write::add ? to[k] + one : one;
      }
    }
  }
}

// One product of activations that are held as `Value`. A task is a group of outputs for some of the tokens.
template <class F, class Value>
class Product {
  using X = typename F::X;

 public:
  Product(Pool& pool, const void* values, const Weights& w, std::int64_t tokens, Epilogue epilogue, void* out)
      : pool_(pool), w_(w), x_(stage<F>(pool, static_cast<const Value*>(values), tokens, w)),
        tokens_(tokens), epilogue_(epilogue), out_(out),
        parts_((tokens + tokens_per_task - 1) / tokens_per_task),
        past_caches_(epilogue == Epilogue::store && w.rows >= vocabulary && tokens * w.rows * 4 >= beyond_caches &&
                     on_lines(out, w.out_stride)) {}

  void run() {
    // A thread goes through neighbouring groups: to the memory they are one stream.
    const std::int64_t tasks = w_.groups * parts_, most = (tokens_ + parts_ - 1) / parts_;
    void* bounds = pool_.scratch(1, WorkRanges::bytes(pool_.threads()));
    WorkRanges ranges(tasks, pool_.threads(), static_cast<std::uint64_t*>(bounds));
    // Below about two microseconds of work it costs more to share it.
    const bool tiny = w_.groups * w_.steps * step_lanes() / group_lanes * (4 + tokens_) < 4096;
    pool_.reserve(most * group_lanes * sizeof(float));
    on_all(pool_, tiny || tasks == 1, [&](int worker) {
      float* sums = static_cast<float*>(pool_.own(worker));
      for (std::int64_t task = ranges.next(worker); task >= 0; task = ranges.next(worker)) this->task(task, sums);
      if (past_caches_) streamed();
    });
  }

 private:
  // Outputs that are written past the caches: of a vocabulary (what a layer's product writes is read at once), and many.
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
    return {index / parts_, first, count, (count + most_rows<F> - 1) / most_rows<F>, part + 1 == parts_};
  }

  void task(std::int64_t index, float* sums) const {
    const Task task = task_of(index);
    // What is read once need not stay; panels that are read one after the other are fetched together.
    const bool once = task.tiles == 1 && tile_width(static_cast<int>(task.count)) * panel == group_lanes;
    const std::int64_t blocks = once ? 1 : (w_.steps * step_lanes() + block_lanes - 1) / block_lanes;
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t begin = w_.steps * b / blocks, end = w_.steps * (b + 1) / blocks;
      const Block block{begin, end - begin, b == 0, b + 1 == blocks};
      for (std::int64_t i = 0; i < task.tiles; ++i) {
        tiles(task, block, i, sums + task.row(i) * group_lanes);
        if (block.last) finished(task, i, sums + task.row(i) * group_lanes);
      }
    }
  }

  // The i-th tokens of a task over the group's panels.
  void tiles(const Task& task, const Block& block, std::int64_t i, float* sums) const {
    const std::int64_t row = task.row(i);
    const int rows = static_cast<int>(task.row(i + 1) - row);
    const X* x = x_.x + (task.first + row) * x_.stride + block.begin * x_lanes();
    const std::uint32_t* from = w_.data + (task.group * w_.steps + block.begin) * step_lanes();
    for (std::int64_t at = 0; at < group_lanes; at += tile_width(rows) * panel) {
      const Ahead ahead = at == 0 ? this->ahead(task, block, i, from) : Ahead{};  // the first fetch for all of the group
      run_tile<F>(rows, {from, at, w_.spans, static_cast<int>(block.steps), x, x_.stride, sums + at, group_lanes,
                         block.first, ahead});
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
    const Finished tile{sums, task.first + row, count, task.group * group_lanes};
    if (epilogue_ == Epilogue::gate_up) return finish_gate_up<F>(w_, x_, tile, static_cast<Value*>(out_));
    float* out = static_cast<float*>(out_);
    if (epilogue_ == Epilogue::residual) return finish<F, Write::add>(w_, x_, tile, out);
    if (past_caches_) return finish<F, Write::past_caches>(w_, x_, tile, out);
    finish<F, Write::over>(w_, x_, tile, out);
  }

  Pool& pool_;
  const Weights& w_;
  Staged<F> x_;
  std::int64_t tokens_;
  Epilogue epilogue_;
  void* out_;
  std::int64_t parts_;  // of the tokens
  bool past_caches_;
};

template <class F, class Value>
void gemm(Pool& pool, const void* x, const Weights& w, std::int64_t tokens, Epilogue epilogue, void* out) {
  if (tokens > 0 && w.rows > 0) Product<F, Value>(pool, x, w, tokens, epilogue, out).run();
}

}  // namespace inflight::INFLIGHT_ISA
