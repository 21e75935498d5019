// Matrix products y = x · Wᵀ over packed weights.
//
// Knows how sums become outputs and how work is cut for caches and threads. A task is a group of 64 outputs (or half of one, when there are few)
// for up to 192 tokens. Over many tokens the group goes through the second-level cache in blocks along K, each read
// from memory once and used by every tile of tokens, while the next block is fetched; sums wait in scratch memory
// between blocks, exactly, so cutting changes no bits.
#pragma once
#include "parallel.h"
#include "stage.h"
#include "tile.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

constexpr std::int64_t block_steps = 1024;   // × 256 bytes: a quarter of a usual second-level cache
constexpr std::int64_t tokens_per_task = 192;

INLINE Ahead bytes_at(const std::uint32_t* from, std::int64_t lines, int lines_per_step) {
  const char* at = reinterpret_cast<const char*>(from);
  return {at, at + lines * 64, lines_per_step};
}

INLINE vf silu_times(vf gate, vf up) { return gate / (all(1.0f) + exp(-gate)) * up; }

template <class Value>
INLINE void store_value(Value* to, vf x) {
  if constexpr (sizeof(Value) == 2) {
    store_bf16(to, x);
  } else {
    store(to, x);
  }
}

// What the sums of a row's outputs [lane, lane + lanes) stand for. int8: (sum · token's scale) · output's scale.
template <class F>
INLINE vf meant(const Weights& w, const Staged<F>& x, const float* sums, std::int64_t token, std::int64_t lane) {
  if constexpr (F::values_per_step == 4) {
    const vf whole = __builtin_convertvector(load<vi>(sums) - x.excess[token], vf);
    return whole * x.scales[token] * load<vf>(w.scales + lane);
  } else {
    return load<vf>(sums);
  }
}

// A tile's sums and where they belong: `tokens` rows from `token` on, outputs [lane, lane + width) of all lanes.
struct Finished {
  const float* sums;
  std::int64_t stride, token, tokens, lane, width;
};

// silu(gate) · up, of panels that stand by turns.
template <class F>
void finish_gated(const Weights& w, const Staged<F>& x, const Finished& tile, typename F::Value* out) {
  using Value = typename F::Value;
  for (std::int64_t i = 0; i < tile.width; i += 2 * panel) {
    const std::int64_t lane = tile.lane + i, first = lane / 2;
    const std::int64_t count = w.rows - first < panel ? w.rows - first : panel;
    for (std::int64_t t = 0; t < tile.tokens; ++t) {
      const float* gate = tile.sums + t * tile.stride + i;
      Value* to = out + (tile.token + t) * w.rows + first;
      Value held[panel];
      Value* at = count == panel ? to : held;
      for (int v = 0; v < panel; v += lanes)
        store_value(at + v, silu_times(meant<F>(w, x, gate + v, tile.token + t, lane + v),
                                       meant<F>(w, x, gate + panel + v, tile.token + t, lane + panel + v)));
      for (std::int64_t k = 0; k < count && at != to; ++k) to[k] = held[k];
    }
  }
}

template <class F, bool add>
void finish(const Weights& w, const Staged<F>& x, const Finished& tile, float* out) {
  const std::int64_t left = w.rows - tile.lane, count = left < tile.width ? left : tile.width;
  for (std::int64_t t = 0; t < tile.tokens; ++t) {
    float* to = out + (tile.token + t) * w.rows + tile.lane;
    for (std::int64_t i = 0; i < count; i += lanes) {
      vf value = meant<F>(w, x, tile.sums + t * tile.stride + i, tile.token + t, tile.lane + i);
      if (i + lanes <= count) {
        if (w.bias) value += load<vf>(w.bias + tile.lane + i);
        store(to + i, add ? load<vf>(to + i) + value : value);
        continue;
      }
      for (std::int64_t k = i; k < count; ++k) {
        const float one = w.bias ? value[k - i] + w.bias[tile.lane + k] : value[k - i];
        to[k] = add ? to[k] + one : one;
      }
    }
  }
}

// Sums → out, as the epilogue says.
template <class F>
void finish(const Weights& w, const Staged<F>& x, Epilogue epilogue, const Finished& tile, void* out) {
  switch (epilogue) {
    case Epilogue::gated: return finish_gated<F>(w, x, tile, static_cast<typename F::Value*>(out));
    case Epilogue::add: return finish<F, true>(w, x, tile, static_cast<float*>(out));
    case Epilogue::store: return finish<F, false>(w, x, tile, static_cast<float*>(out));
  }
}

template <class F>
void product(Pool& pool, const void* values, const Weights& w, std::int64_t tokens, Epilogue epilogue, void* out) {
  if (tokens == 0 || w.rows == 0) return;
  const Staged<F> x = stage<F>(pool, static_cast<const typename F::Value*>(values), tokens, w);

  const std::int64_t token_blocks = (tokens + tokens_per_task - 1) / tokens_per_task;
  const std::int64_t halves = w.groups * token_blocks < 4 * pool.threads() ? 2 : 1;
  const std::int64_t width = group_lanes / halves;
  const std::int64_t tasks = w.groups * halves * token_blocks;
  // A thread goes through neighbouring groups: to the memory they are one stream.
  void* bounds = pool.scratch(pool.shared_slot() + 3, Runs::bytes(pool.threads()));
  Runs runs(tasks, pool.threads(), static_cast<std::uint64_t*>(bounds));

  // Below about two microseconds of work it costs more to share it.
  const bool tiny = w.groups * w.steps * (4 + tokens) < 2048;
  on_all(pool, tiny || tasks == 1, [&](int worker) {
    const std::int64_t most = (tokens + token_blocks - 1) / token_blocks;
    float* sums = static_cast<float*>(pool.scratch(worker, most * width * sizeof(float)));
    for (std::int64_t task = runs.next(worker); task >= 0; task = runs.next(worker)) {
      const std::int64_t group = task / (halves * token_blocks), lane = task % halves * width;
      const std::int64_t part = task / halves % token_blocks;
      const std::int64_t first = tokens * part / token_blocks, count = tokens * (part + 1) / token_blocks - first;
      const std::int64_t tiles = (count + tile_tokens - 1) / tile_tokens;
      const std::uint32_t* base = w.data + group * w.steps * group_lanes + lane;
      // The thread most likely goes on in the memory that follows, unless its next task is of the same group.
      const bool goes_on = (task + 1) / (halves * token_blocks) != group && group + 1 < w.groups;

      const std::int64_t blocks = tiles == 1 ? 1 : (w.steps + block_steps - 1) / block_steps;
      for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t begin = w.steps * block / blocks, steps = w.steps * (block + 1) / blocks - begin;
        const bool last_block = block + 1 == blocks;
        const std::uint32_t* next = last_block && !goes_on ? nullptr : base + (begin + steps) * group_lanes;
        for (std::int64_t i = 0; i < tiles; ++i) {
          const std::int64_t row = count * i / tiles;
          const int rows = static_cast<int>(count * (i + 1) / tiles - row);
          const typename F::X* x_rows[tile_tokens];
          for (int m = 0; m < rows; ++m) x_rows[m] = x.x + (first + row + m) * x.stride + begin * F::x_per_step;
          float* at = sums + row * width;
          for (std::int64_t p = 0; p < width / panel;) {
            const int panels = tile_width(width / panel - p, rows);
            const std::uint32_t* starts[most_panels];
            for (int j = 0; j < panels; ++j) starts[j] = base + begin * group_lanes + (p + j) * panel;
            Work<F> work{starts, group_lanes, 1, static_cast<int>(steps), x_rows, at + p * panel, width, block == 0, {}};
            // The first panels' tile fetches for all of the group.
            if (p == 0 && tiles == 1 && rows < 4) {
              // A single pass over the stream: fetch a little ahead in it, and at its end in what follows. The more rows,
              // the slower a step, the fewer steps ahead; from four on the machine's own prefetcher does better.
              work.ahead = bytes_at(base + 24 / (rows + 1) * group_lanes, steps * 4, 4);
            } else if (p == 0 && tiles > 1 && next != nullptr) {
              // Each tile of tokens fetches its share of the next block.
              const std::int64_t lines = steps * 4, share = (lines + tiles - 1) / tiles;
              work.ahead = bytes_at(next + i * share * panel, share, static_cast<int>((share + steps - 1) / steps));
            }
            run_tile(rows, panels, work);
            p += panels;
          }
          if (last_block)
            finish<F>(w, x, epilogue, {at, width, first + row, rows, group * group_lanes + lane, width}, out);
        }
      }
    }
  });
}

}  // namespace inflight::INFLIGHT_ISA
