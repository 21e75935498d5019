// Paged attention with an online softmax.
//
// A task is one key/value head of one chunk for a tile of queries, with all query heads that read it. Positions are
// taken in tiles of 64 and partitions of 512, both aligned to absolute positions. Within a partition the running
// maximum, sum and mix go on from tile to tile; partitions are then merged in rising order. For one query the tiles
// that it does not see change nothing, so its bits depend on its own positions alone. When there are too few tasks for
// the threads (long contexts, few rows), each partition becomes a task, with the same arithmetic.
//
// Slots past the chunk's last position may hold anything, NaN too: their scores are replaced before use, and their
// values are replaced by zeros in a copy of the segment.
#pragma once
#include "norm_rope.h"
#include "parallel.h"
#include "tile.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

constexpr std::int64_t tile_positions = 64, segment_positions = 16, partition_positions = 512;
constexpr std::int64_t rows_per_task = 96;

struct AttentionTask {
  std::int32_t chunk, head, token, tokens;  // token: row of q
};

// What is known of R rows after some positions: the largest score, the sum of e^(score − largest), the mix of values.
struct Mixture {
  float* largest;  // [R]
  float* sum;      // [R]
  float* mix;      // [R][padded D]
};

// mix into total what another partition found.
INLINE void merge(const Mixture& total, const Mixture& part, std::int64_t rows, std::int64_t width) {
  for (std::int64_t r = 0; r < rows; ++r) {
    if (part.largest[r] == -__builtin_inff()) continue;
    const float both = total.largest[r] > part.largest[r] ? total.largest[r] : part.largest[r];
    const float a = exp(total.largest[r] - both), b = exp(part.largest[r] - both);
    total.largest[r] = both;
    total.sum[r] = total.sum[r] * a + part.sum[r] * b;
    for (std::int64_t i = 0; i < width; i += lanes) {
      float* to = total.mix + r * width + i;
      store(to, load<vf>(to) * a + load<vf>(part.mix + r * width + i) * b);
    }
  }
}

template <class F>
class Attention {
  using X = typename F::X;
  using Value = typename F::Value;
  static constexpr int per_step = F::values_per_step;

 public:
  Attention(const Value* q, std::int64_t heads, const Arena& arena, std::int64_t layer, const Layout& layout,
            float scale, std::int64_t window, Value* out)
      : q_(q), heads_(heads), group_(heads / arena.kv_heads), arena_(arena), layout_(layout), scale_(scale),
        window_(window), out_(out),
        layer_data_(arena.data + layer * arena.blocks * arena.kv_heads * arena.head_lanes) {}

  void run(Pool& pool) {
    const std::int64_t tokens_per_task = group_ >= rows_per_task ? 1 : rows_per_task / group_;
    auto* tasks = static_cast<AttentionTask*>(
        pool.scratch(pool.shared_slot() + 1, (layout_.tokens * arena_.kv_heads + 1) * sizeof(AttentionTask)));
    std::int64_t count = 0, longest = 0, work = 0;
    for (std::int64_t c = 0; c < layout_.chunks; ++c) {
      const std::int64_t length = layout_.offsets[c + 1] - layout_.offsets[c];
      if (length > 0 && layout_.starts[c] + length > longest) longest = layout_.starts[c] + length;
      work += length * (layout_.starts[c] + length) * heads_;
      for (std::int64_t t = 0; t < length; t += tokens_per_task) {
        const std::int64_t n = length - t < tokens_per_task ? length - t : tokens_per_task;
        for (std::int64_t g = 0; g < arena_.kv_heads; ++g)
          tasks[count++] = {std::int32_t(c), std::int32_t(g), std::int32_t(layout_.offsets[c] + t), std::int32_t(n)};
      }
    }
    const std::int64_t rows = tokens_per_task * group_, width = arena_.padded_dim;
    const std::int64_t partitions = (longest + partition_positions - 1) / partition_positions;

    if (count >= 4 * pool.threads() || partitions <= 1 || pool.threads() == 1) {
      // From the back: in a long prompt the last queries see most, and the longest tasks should begin first.
      const auto task = [&](std::int64_t i, int worker) {
        Scratch scratch(pool, worker, rows, *this);
        whole(tasks[count - 1 - i], scratch);
      };
      if (work < 2048) {
        for (std::int64_t i = 0; i < count; ++i) task(i, 0);
      } else {
        parallel_for(pool, count, task);
      }
      return;
    }
    const std::int64_t floats = rows * (width + 2);
    float* parts = static_cast<float*>(
        pool.scratch(pool.shared_slot() + 2, count * partitions * floats * sizeof(float)));
    const auto part = [&](std::int64_t i) {
      float* at = parts + i * floats;
      return Mixture{at, at + rows, at + 2 * rows};
    };
    parallel_for(pool, count * partitions, [&](std::int64_t i, int worker) {
      Scratch scratch(pool, worker, rows, *this);
      const AttentionTask& task = tasks[i / partitions];
      begin(task, scratch);
      partition(task, scratch, i % partitions, part(i));
    });
    parallel_for(pool, count, [&](std::int64_t i, int worker) {
      Scratch scratch(pool, worker, rows, *this);
      begin(tasks[i], scratch);
      for (std::int64_t p = 0; p < partitions; ++p)
        merge(scratch.total, part(i * partitions + p), tasks[i].tokens * group_, width);
      finish(tasks[i], scratch.total);
    });
  }

 private:
  // Keys and values of 64 positions.
  struct Tile {
    const std::uint32_t* keys[tile_positions / panel];
    const std::uint32_t* values[tile_positions / segment_positions];  // without the segments that nobody sees
    int segments;
    std::int64_t skipped;
  };

  struct Scratch {
    X* probabilities;       // [rows of a tile][64 positions]
    X* queries;             // [R][D], where x is not read in place
    const X** rows;         // [R]
    float *scores, *sums;   // [rows of a tile][64], [R][lanes]
    std::int32_t* last;     // [R] position of the query
    Mixture total, part;
    std::uint32_t* segment;  // one segment of values

    Scratch(Pool& pool, int worker, std::int64_t r, const Attention& a) {
      const std::int64_t width = a.arena_.padded_dim;
      const std::int64_t x_lanes = sizeof(X) * F::x_per_step / 4;
      std::int64_t floats = 0;
      const auto take = [&](std::int64_t n) {
        const std::int64_t at = floats;
        floats += (n + 15) / 16 * 16;
        return at;
      };
      const std::int64_t p = take(tile_tokens * tile_positions / per_step * x_lanes), q = take(r * width / per_step * x_lanes),
                         x = take(r * 2), s = take(tile_tokens * tile_positions), l = take(r * lanes), o = take(r),
                         t = take(r * (width + 2)), m = take(r * (width + 2)), v = take(segment_positions * width);
      float* base = static_cast<float*>(pool.scratch(worker, floats * sizeof(float)));
      probabilities = reinterpret_cast<X*>(base + p);
      queries = reinterpret_cast<X*>(base + q);
      rows = reinterpret_cast<const X**>(base + x);
      scores = base + s, sums = base + l, last = reinterpret_cast<std::int32_t*>(base + o);
      total = {base + t, base + t + r, base + t + 2 * r};
      part = {base + m, base + m + r, base + m + 2 * r};
      segment = reinterpret_cast<std::uint32_t*>(base + v);
    }
  };

  std::int64_t chunk_end(const AttentionTask& task) const {
    return layout_.starts[task.chunk] + layout_.offsets[task.chunk + 1] - layout_.offsets[task.chunk];
  }
  std::int64_t first_position(const AttentionTask& task) const {
    return layout_.starts[task.chunk] + task.token - layout_.offsets[task.chunk];
  }
  std::int64_t first_seen(std::int64_t position) const {
    return window_ > 0 && position + 1 > window_ ? position + 1 - window_ : 0;
  }

  void begin(const AttentionTask& task, Scratch& s) const {
    const std::int64_t dim = arena_.head_dim;
    for (std::int64_t r = 0; r < task.tokens * group_; ++r) {
      const Value* from = q_ + ((task.token + r / group_) * heads_ + task.head * group_ + r % group_) * dim;
      if constexpr (F::x_per_step == 2) {
        float* to = s.queries + r * dim;
        for (std::int64_t i = 0; i < dim; ++i) to[i] = from_bf16(from[i]);
        s.rows[r] = to;
      } else {
        s.rows[r] = reinterpret_cast<const X*>(from);
      }
      s.last[r] = static_cast<std::int32_t>(first_position(task) + r / group_);
      clear(s.total, r);
    }
  }

  void clear(const Mixture& m, std::int64_t row) const {
    m.largest[row] = -__builtin_inff();
    m.sum[row] = 0;
    for (std::int64_t i = 0; i < arena_.padded_dim; ++i) m.mix[row * arena_.padded_dim + i] = 0;
  }

  void whole(const AttentionTask& task, Scratch& s) const {
    begin(task, s);
    const std::int64_t from = first_seen(first_position(task)) / partition_positions;
    const std::int64_t to = (first_position(task) + task.tokens - 1) / partition_positions;
    for (std::int64_t p = from; p <= to; ++p) {
      partition(task, s, p, s.part);
      merge(s.total, s.part, task.tokens * group_, arena_.padded_dim);
    }
    finish(task, s.total);
  }

  // Positions of one partition, as far as any query of the task sees them → part.
  void partition(const AttentionTask& task, Scratch& s, std::int64_t index, const Mixture& part) const {
    const std::int64_t rows = task.tokens * group_;
    for (std::int64_t r = 0; r < rows; ++r) {
      clear(part, r);
      for (int i = 0; i < lanes; ++i) s.sums[r * lanes + i] = 0;
    }
    std::int64_t begin = index * partition_positions, end = begin + partition_positions;
    const std::int64_t seen = first_seen(first_position(task)) / tile_positions * tile_positions;
    const std::int64_t past = first_position(task) + task.tokens;
    if (begin < seen) begin = seen;
    if (end > past) end = past;
    const std::int64_t tiles = (rows + tile_tokens - 1) / tile_tokens;
    for (std::int64_t p = begin; p < end; p += tile_positions) {
      const Tile tile = look_up(task, s, p);
      for (std::int64_t i = 0; i < tiles; ++i) {
        const std::int64_t row = rows * i / tiles;
        const int count = static_cast<int>(rows * (i + 1) / tiles - row);
        fetch(task, p + tile_positions, end, i, tiles);
        score(s, tile, row, count);
        for (std::int64_t r = row; r < row + count; ++r) {
          if (first_seen(s.last[r]) <= p && p + tile_positions - 1 <= s.last[r]) {
            weigh<true>(s, p, r, r - row, part);
          } else {
            weigh<false>(s, p, r, r - row, part);
          }
        }
        mix(s, tile, row, count, part);
      }
    }
    for (std::int64_t r = 0; r < rows; ++r) part.sum[r] = sum(load<vf>(s.sums + r * lanes));
  }

  const std::uint32_t* head_at(const AttentionTask& task, std::int64_t position) const {
    const std::int64_t id = layout_.tables[task.chunk * layout_.table_width + position / arena_.block_size];
    return layer_data_ + (id * arena_.kv_heads + task.head) * arena_.head_lanes;
  }

  // Where the keys and values of the 64 positions from `position` on lie. Blocks that nobody sees are not looked up.
  Tile look_up(const AttentionTask& task, Scratch& s, std::int64_t position) const {
    const std::int64_t seen = first_seen(first_position(task)), past = first_position(task) + task.tokens;
    Tile tile;
    for (std::int64_t j = 0; j < tile_positions / panel; ++j) {
      const std::int64_t at = position + j * panel;
      const std::int64_t read = at + panel <= seen ? seen / panel * panel : at < past ? at : (past - 1) / panel * panel;
      tile.keys[j] = head_at(task, read) + read % arena_.block_size;
    }
    tile.skipped = seen > position ? (seen - position) / segment_positions : 0;
    tile.segments = 0;
    const std::int64_t width = arena_.padded_dim, end = chunk_end(task);
    for (std::int64_t at = position + tile.skipped * segment_positions; at < position + tile_positions && at < past;
         at += segment_positions) {
      const std::uint32_t* values =
          head_at(task, at) + arena_.key_lanes + at % arena_.block_size / per_step * width;
      tile.values[tile.segments++] = at + segment_positions > end ? cleaned(s, values, end - at) : values;
    }
    return tile;
  }

  // Share i of n of the next tile's keys and values into the second-level cache: blocks lie apart, and the machine
  // cannot guess the next.
  void fetch(const AttentionTask& task, std::int64_t position, std::int64_t end, std::int64_t i, std::int64_t n) const {
    if (position >= end || arena_.block_size > tile_positions) return;
    const std::int64_t past = end < position + tile_positions ? end : position + tile_positions;
    const std::int64_t lines = arena_.head_lanes / panel;
    for (std::int64_t at = position; at < past; at += arena_.block_size) {
      const std::uint32_t* from = head_at(task, at);
      for (std::int64_t line = lines * i / n; line < lines * (i + 1) / n; ++line) prefetch_to_l2(from + line * panel);
    }
  }

  // Scores of a few rows against a tile of positions.
  void score(Scratch& s, const Tile& tile, std::int64_t row, int count) const {
    for (int j = 0; j < tile_positions / panel; j += tile_panels) {
      const Work<F> work{tile.keys + j, arena_.block_size, 1, static_cast<int>(arena_.head_dim / per_step),
                         s.rows + row, s.scores + j * panel, tile_positions, true, {}};
      run_tile(count, tile_panels, work);
    }
  }

  // Scores of one row → probabilities relative to the largest score so far; what was found before is scaled to it.
  // `all_seen`: the row sees every position of the tile.
  template <bool all_seen>
  void weigh(Scratch& s, std::int64_t position, std::int64_t row, std::int64_t slot, const Mixture& part) const {
    constexpr int count = tile_positions / lanes;
    vf p[count];
    for (int i = 0; i < count; ++i) p[i] = load<vf>(s.scores + slot * tile_positions + i * lanes);
    [[maybe_unused]] vi seen[count];
    if constexpr (!all_seen) {
      const auto last = s.last[row], first = static_cast<std::int32_t>(first_seen(last));
      vi lane;
      for (int i = 0; i < lanes; ++i) lane[i] = i;
      for (int i = 0; i < count; ++i) {
        const vi at = lane + static_cast<std::int32_t>(position + i * lanes);
        seen[i] = (at >= first) & (at <= last);
        p[i] = seen[i] ? p[i] : all(-__builtin_inff());
      }
    }
    vf top = p[0];
    for (int i = 1; i < count; ++i) top = max(p[i], top);
    const float before = part.largest[row], found = largest(top) * scale_, now = found > before ? found : before;
    if (now == -__builtin_inff()) {
      for (int i = 0; i < count; ++i) p[i] = vf{};
    } else {
      float* sums = s.sums + row * lanes;
      vf total = load<vf>(sums);
      if (now != before) {
        part.largest[row] = now;
        const float factor = exp(before - now);
        total = total * factor;
        float* mixed = part.mix + row * arena_.padded_dim;
        for (std::int64_t i = 0; i < arena_.padded_dim; i += lanes) store(mixed + i, load<vf>(mixed + i) * factor);
      }
      for (int i = 0; i < count; ++i) {
        p[i] = exp_of_negative(fma(p[i], all(scale_), all(-now)));
        if constexpr (!all_seen) p[i] = seen[i] ? p[i] : vf{};
        total += p[i];
      }
      store(sums, total);
    }
    for (int i = 0; i < count; ++i) {
      if constexpr (sizeof(Value) == 4) {
        store(s.probabilities + slot * tile_positions + i * lanes, p[i]);
      } else if constexpr (F::x_per_step == 2) {
        store(s.probabilities + slot * tile_positions + i * lanes, (vf)(to_bf16_bits(p[i]) << 16));
      } else {
        store_bf16_fast(reinterpret_cast<std::uint16_t*>(s.probabilities) + slot * tile_positions + i * lanes, p[i]);
      }
    }
  }

  // part.mix += probabilities · values of the tile, for a few rows.
  void mix(Scratch& s, const Tile& tile, std::int64_t row, int count, const Mixture& part) const {
    const std::int64_t width = arena_.padded_dim;
    constexpr std::int64_t x_row = tile_positions / per_step * F::x_per_step;
    constexpr std::int64_t x_segment = segment_positions / per_step * F::x_per_step;
    const X* x[tile_tokens];
    for (int m = 0; m < tile_tokens; ++m) x[m] = s.probabilities + m * x_row + tile.skipped * x_segment;
    for (std::int64_t p = 0; p < width / panel;) {
      const int panels = tile_width(width / panel - p, count);
      const std::uint32_t* w[tile_positions / segment_positions * most_panels];
      for (int i = 0; i < tile.segments; ++i)
        for (int j = 0; j < panels; ++j) w[i * panels + j] = tile.values[i] + (p + j) * panel;
      const Work<F> work{w, width, tile.segments, static_cast<int>(segment_positions / per_step), x,
                         part.mix + row * width + p * panel, width, false, {}};
      run_tile(count, panels, work);
      p += panels;
    }
  }

  // A copy of a segment of values in which the slots from `valid` on are zero.
  const std::uint32_t* cleaned(Scratch& s, const std::uint32_t* values, std::int64_t valid) const {
    const std::int64_t width = arena_.padded_dim, whole = valid / per_step;
    std::memcpy(s.segment, values, (valid + per_step - 1) / per_step * width * 4);
    if (valid % per_step != 0)
      for (std::int64_t i = 0; i < width; ++i) s.segment[whole * width + i] &= 0xffffu;
    const std::int64_t from = (valid + per_step - 1) / per_step * width;
    std::memset(s.segment + from, 0, (segment_positions / per_step * width - from) * 4);
    return s.segment;
  }

  void finish(const AttentionTask& task, const Mixture& total) const {
    const std::int64_t dim = arena_.head_dim;
    for (std::int64_t r = 0; r < task.tokens * group_; ++r) {
      Value* to = out_ + ((task.token + r / group_) * heads_ + task.head * group_ + r % group_) * dim;
      const float* mixed = total.mix + r * arena_.padded_dim;
      for (std::int64_t i = 0; i < dim; ++i) hold(to + i, mixed[i] / total.sum[r]);
    }
  }

  const Value* q_;
  std::int64_t heads_, group_;
  const Arena& arena_;
  const Layout& layout_;
  float scale_;
  std::int64_t window_;
  Value* out_;
  const std::uint32_t* layer_data_;
};

}  // namespace inflight::INFLIGHT_ISA
