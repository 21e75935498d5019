// Matrix products y = x · Wᵀ over packed weights, packing, and rows taken back out of a packed table.
//
// Knows how work is cut for caches and threads. A task is a group of 64 outputs (or half of one, when there are few)
// for up to 192 tokens. Over many tokens the group goes through the second-level cache in blocks along K, each read
// from memory once and used by every tile of tokens, while the next block is fetched; sums wait in scratch memory
// between blocks, exactly, so cutting changes no bits.
#pragma once
#include "parallel.h"
#include "tile.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

constexpr std::int64_t block_steps = 1024;   // × 256 bytes: a quarter of a usual second-level cache
constexpr std::int64_t tokens_per_task = 192;

template <class F>
const typename F::X* staged(Pool& pool, const void* x, std::int64_t tokens, std::int64_t columns, std::int64_t steps,
                            std::int64_t* stride) {
  using X = typename F::X;
  using Value = typename F::Value;
  const Value* from = static_cast<const Value*>(x);
  *stride = steps * F::x_per_step;
  constexpr bool same = sizeof(X) == sizeof(Value) * F::values_per_step / F::x_per_step;
  if (same && columns == steps * F::values_per_step) return reinterpret_cast<const X*>(from);
  const std::int64_t width = steps * F::values_per_step;  // columns, rounded up to whole steps
  X* to = static_cast<X*>(pool.scratch(pool.shared_slot(), tokens * *stride * sizeof(X)));
  parallel_rows(pool, tokens, tokens * columns * 2, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const Value* row = from + t * columns;
      if constexpr (same) {
        Value* out = reinterpret_cast<Value*>(to) + t * width;
        std::memcpy(out, row, columns * sizeof(Value));
        for (std::int64_t k = columns; k < width; ++k) out[k] = 0;
      } else {
        float* out = reinterpret_cast<float*>(to) + t * width;
        std::int64_t k = 0;
        for (; k + lanes <= columns; k += lanes) store(out + k, load_bf16(row + k));
        for (; k < columns; ++k) out[k] = from_bf16(row[k]);
        for (; k < width; ++k) out[k] = 0;
      }
    }
  });
  return to;
}

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

// Sums of `tokens` rows for outputs [lane, lane + width) of a group → out.
template <class F>
void finish(const Weights& w, Epilogue epilogue, const float* sums, std::int64_t sums_stride, std::int64_t group,
            std::int64_t lane, std::int64_t width, std::int64_t token, std::int64_t tokens, void* out) {
  using Value = typename F::Value;
  if (epilogue == Epilogue::gated) {
    for (std::int64_t half = 0; half < width / 32; ++half) {
      const std::int64_t first = group * 32 + lane / 2 + half * panel;
      const std::int64_t count = w.rows - first < panel ? w.rows - first : panel;
      for (std::int64_t t = 0; t < tokens; ++t) {
        const float* gate = sums + t * sums_stride + half * 32;
        Value* to = static_cast<Value*>(out) + (token + t) * w.rows + first;
        Value held[panel];
        Value* at = count == panel ? to : held;
        for (int v = 0; v < panel; v += lanes)
          store_value(at + v, silu_times(load<vf>(gate + v), load<vf>(gate + panel + v)));
        for (std::int64_t i = 0; i < count && at != to; ++i) to[i] = held[i];
      }
    }
    return;
  }
  const std::int64_t first = group * group_lanes + lane;
  const std::int64_t count = w.rows - first < width ? w.rows - first : width;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float* from = sums + t * sums_stride;
    float* to = static_cast<float*>(out) + (token + t) * w.rows + first;
    const float* bias = w.bias ? w.bias + first : nullptr;
    const bool add = epilogue == Epilogue::add;
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = bias ? from[i] + bias[i] : from[i];
      to[i] = add ? to[i] + value : value;
    }
  }
}

template <class F>
void product(Pool& pool, const void* values, const Weights& w, std::int64_t tokens, Epilogue epilogue, void* out) {
  if (tokens == 0 || w.rows == 0) return;
  std::int64_t x_stride;
  const typename F::X* x = staged<F>(pool, values, tokens, w.columns, w.steps, &x_stride);

  const std::int64_t token_blocks = (tokens + tokens_per_task - 1) / tokens_per_task;
  const std::int64_t halves = w.groups * token_blocks < 4 * pool.threads() ? 2 : 1;
  const std::int64_t width = group_lanes / halves;
  const std::int64_t tasks = w.groups * halves * token_blocks;

  // Below about two microseconds of work it costs more to share it.
  const bool tiny = w.groups * w.steps * (4 + tokens) < 2048;
  on_all(pool, tiny ? 1 : tasks, [&](Claims& claims, int worker) {
    const bool alone = claims.count() == 1;
    const std::int64_t most = (tokens + token_blocks - 1) / token_blocks;
    float* sums = static_cast<float*>(pool.scratch(worker, most * width * sizeof(float)));
    for (std::int64_t task = alone ? 0 : claims.next(); task < tasks; task = alone ? task + 1 : claims.next()) {
      const std::int64_t group = task / (halves * token_blocks), lane = task % halves * width;
      const std::int64_t part = task / halves % token_blocks;
      const std::int64_t first = tokens * part / token_blocks, count = tokens * (part + 1) / token_blocks - first;
      const std::int64_t tiles = (count + tile_tokens - 1) / tile_tokens;
      const std::uint32_t* base = w.data + group * w.steps * group_lanes + lane;
      // The group this thread takes next, if all go at the same pace: a hint for fetching, no more.
      const std::int64_t next_group = (task + pool.threads()) / (halves * token_blocks);
      const std::uint32_t* next_base =
          next_group != group && next_group < w.groups ? w.data + next_group * w.steps * group_lanes + lane : nullptr;

      const std::int64_t blocks = tiles == 1 ? 1 : (w.steps + block_steps - 1) / block_steps;
      for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t begin = w.steps * block / blocks, steps = w.steps * (block + 1) / blocks - begin;
        const bool last_block = block + 1 == blocks;
        const std::uint32_t* next = last_block ? next_base : base + (begin + steps) * group_lanes;
        for (std::int64_t i = 0; i < tiles; ++i) {
          const std::int64_t row = count * i / tiles;
          const int rows = static_cast<int>(count * (i + 1) / tiles - row);
          const typename F::X* x_rows[tile_tokens];
          for (int m = 0; m < rows; ++m) x_rows[m] = x + (first + row + m) * x_stride + begin * F::x_per_step;
          float* at = sums + row * width;
          for (std::int64_t p = 0; p < width / panel;) {
            const int panels = tile_width(width / panel - p, rows);
            const std::uint32_t* starts[most_panels];
            for (int j = 0; j < panels; ++j) starts[j] = base + begin * group_lanes + (p + j) * panel;
            Work<F> work{starts, group_lanes, 1, static_cast<int>(steps), x_rows, at + p * panel, width, block == 0, {}};
            if (p > 0 || halves > 1) {
              run_tile(rows, panels, work);  // the first panels' tile fetches for all of the group
            } else if (tiles == 1) {
              // A single pass over the stream: fetch a little ahead in it, and at its end the beginning of the next.
              // The more rows, the slower a step, the fewer steps ahead: measured, about a kilobyte to three.
              const std::int64_t ahead_steps = rows < 5 ? 24 / (rows + 1) : 4;
              const std::int64_t tail = steps < ahead_steps ? steps : ahead_steps, head = (steps - tail) / 4 * 4;
              work.steps = static_cast<int>(head);
              work.ahead = bytes_at(starts[0] + ahead_steps * group_lanes, head * 4, 4);
              run_tile(rows, panels, work);
              for (int j = 0; j < panels; ++j) starts[j] += head * group_lanes;
              const typename F::X* x_tail[tile_tokens];
              for (int m = 0; m < rows; ++m) x_tail[m] = x_rows[m] + head * F::x_per_step;
              work.x = x_tail;
              work.steps = static_cast<int>(steps - head);
              work.fresh = false;
              work.ahead = bytes_at(next_base, next_base ? work.steps * 4 : 0, 4);
              run_tile(rows, panels, work);
            } else {
              // Each tile of tokens fetches its share of the next block.
              const std::int64_t lines = steps * 4, share = (lines + tiles - 1) / tiles;
              if (next != nullptr)
                work.ahead = bytes_at(next + i * share * panel, share, static_cast<int>((share + steps - 1) / steps));
              run_tile(rows, panels, work);
            }
            p += panels;
          }
          if (last_block) finish<F>(w, epilogue, at, width, group, lane, width, first + row, rows, out);
        }
      }
    }
  });
}

// One value of a checkpoint → float32.
INLINE float read(const SourceMatrix& m, std::int64_t at) {
  if (m.kind == Source::f32) return static_cast<const float*>(m.data)[at];
  const std::uint16_t half = static_cast<const std::uint16_t*>(m.data)[at];
  return m.kind == Source::bf16 ? from_bf16(half) : from_f16(half);
}

// `count` values from `at` on → the held format.
template <class Value>
void convert(const SourceMatrix& m, std::int64_t at, std::int64_t count, Value* to) {
  if constexpr (sizeof(Value) == 2) {
    if (m.kind == Source::bf16) {
      std::memcpy(to, static_cast<const std::uint16_t*>(m.data) + at, count * sizeof(Value));
    } else {
      for (std::int64_t i = 0; i < count; ++i) to[i] = to_bf16(read(m, at + i));
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = read(m, at + i);
  }
}

// Rows of stacked parts (gated: gate and up, by turns of 16) → packed groups, a piece of 64 rows × `piece` values at a
// time through the stack.
template <class F>
void pack_weights(Pool& pool, const SourceMatrix* parts, std::int64_t count, const Weights& w) {
  using Value = typename F::Value;
  constexpr std::int64_t piece = 256, per_step = F::values_per_step;
  parallel_for(pool, w.groups, [&](std::int64_t group, int) {
    alignas(64) Value held[group_lanes][piece];
    std::uint32_t* out = w.data + group * w.steps * group_lanes;
    for (std::int64_t k = 0; k < w.columns; k += piece) {
      const std::int64_t width = w.columns - k < piece ? w.columns - k : piece;
      for (std::int64_t lane = 0; lane < group_lanes; ++lane) {
        const std::int64_t turn = lane / panel;  // g0 u0 g1 u1
        std::int64_t row = w.gated ? group * 32 + turn / 2 * panel + lane % panel : group * group_lanes + lane;
        const SourceMatrix* part = nullptr;
        if (row < w.rows) {
          part = w.gated ? parts + turn % 2 : parts;
          while (!w.gated && row >= part->rows) row -= part->rows, ++part;
        }
        std::int64_t filled = 0;
        if (part) convert(*part, row * w.columns + k, filled = width, held[lane]);
        for (; filled < piece; ++filled) held[lane][filled] = 0;
      }
      const std::int64_t steps = (width + per_step - 1) / per_step;
      for (std::int64_t s = 0; s < steps; ++s)
        for (std::int64_t lane = 0; lane < group_lanes; ++lane)
          std::memcpy(out + (k / per_step + s) * group_lanes + lane, &held[lane][s * per_step], 4);
    }
  });
  (void)count;
}

template <class Value>
void copy_table(Pool& pool, const SourceMatrix& m, std::int64_t columns, Value* out) {
  parallel_rows(pool, m.rows, m.rows * columns, [&](std::int64_t first, std::int64_t last) {
    convert(m, first * columns, (last - first) * columns, out + first * columns);
  });
}

template <class F>
void embed_from_packed(Pool& pool, const Weights& w, const std::int32_t* ids, std::int64_t tokens, float* out) {
  // Every lane of a row lies in a cache line of its own, hence the weight of a token.
  parallel_rows(pool, tokens, tokens * w.steps * 64, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const std::uint32_t* from = w.data + ids[t] / group_lanes * w.steps * group_lanes + ids[t] % group_lanes;
      float* to = out + t * w.columns;
      for (std::int64_t s = 0; s < w.steps; ++s) {
        const std::uint32_t lane = from[s * group_lanes];
        const std::uint32_t low_bits = lane << 16, high_bits = lane & 0xffff0000u;
        if constexpr (F::values_per_step == 1) {
          std::memcpy(to + s, &lane, 4);
        } else {
          std::memcpy(to + 2 * s, &low_bits, 4);
          if (2 * s + 1 < w.columns) std::memcpy(to + 2 * s + 1, &high_bits, 4);
        }
      }
    }
  });
}

template <class Value>
void embed_from_rows(Pool& pool, const Value* rows, std::int64_t columns, const std::int32_t* ids, std::int64_t tokens,
                     float* out) {
  parallel_rows(pool, tokens, tokens * columns * 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      const Value* from = rows + ids[t] * columns;
      for (std::int64_t k = 0; k < columns; ++k) {
        if constexpr (sizeof(Value) == 2) {
          out[t * columns + k] = from_bf16(from[k]);
        } else {
          out[t * columns + k] = from[k];
        }
      }
    }
  });
}

}  // namespace inflight::INFLIGHT_ISA
