// Paged attention with an online softmax.
//
// Positions are taken in tiles of 64 and partitions of 512, both aligned to absolute positions. Within a partition the
// largest score, the sum and the mix go on from tile to tile; partitions are then merged in rising order, whether one
// thread has gone through all of them or each was a piece of its own (attention_tasks.h). For one query the tiles that
// it does not see change nothing, so its bits depend on its own positions alone. What is done with a tile is in
// attention_rows.h.
//
// Slots past the chunk's last position may hold anything, NaN too: their scores are replaced before use, and their
// values are replaced by zeros in a copy of the segment (whole numbers need not be: they meet a probability of 0).
//
// Value is how queries and outputs are held, Keys and Values how they meet what is in the arena: as they are, or int8
// (attention_bytes.h), where each row of queries and of probabilities is two rows of bytes.
#pragma once
#include "attention_bytes.h"
#include "attention_rows.h"
#include "attention_tasks.h"
#include "norm_rope.h"
#include "parallel.h"

namespace inflight::INFLIGHT_ISA {

template <class Value, class Keys, class Values>
class Attention {
  using X = typename Keys::X;
  static constexpr int per_step = Keys::values_per_step;
  static constexpr bool bytes = per_step == 4;
  static constexpr int x_rows = bytes ? split_rows : 1;            // of the products, for a query
  static constexpr int queries_at_once = query_tokens / x_rows;

 public:
  Attention(const Value* q, std::int64_t heads, const Arena& arena, std::int64_t layer, const Layout& layout,
            float scale, std::int64_t window, Value* out)
      : q_(q), heads_(heads), group_(heads / arena.kv_heads), arena_(arena), layout_(layout),
        scale_(scale * 1.44269504f), out_(out), division_(layout, arena.kv_heads, group_, window),
        rows_((division_.most_rows() + 15) / 16 * 16),
        layer_data_(arena.data + layer * arena.blocks * arena.kv_heads * arena.head_lanes) {}

  void run(Pool& pool) {
    const Division::Plan plan = division_.plan(pool, pool.shared_slot() + 1, part_floats() * sizeof(float));
    parts_ = static_cast<float*>(pool.scratch(pool.shared_slot() + 2, plan.parts * part_floats() * sizeof(float)));
    Claims claims(plan.count);
    on_all(pool, plan.count <= 1 || plan.cost < worth_waking, [&](int worker) {
      Scratch s(pool, worker, *this);
      for (std::int64_t i = claims.next(), next; i < plan.count; i = next) {
        // The next task is claimed before the last tile of this one, during which its first is fetched; but not when so
        // few are left that another thread may be about to take it.
        const bool early = i + 2 * pool.threads() < plan.count;
        attend(plan.tasks[i], s,
               [&] { return early && (next = claims.next()) < plan.count ? plan.tasks + next : nullptr; });
        if (!early) next = claims.next();
      }
    });
    const std::int64_t jobs = plan.parts * part_floats() < 1 << 15 ? plan.cut > 0 : plan.cut;  // small: on the caller
    parallel_for(pool, jobs, [&](std::int64_t i, int) {
      for (std::int64_t j = plan.cut * i / jobs; j < plan.cut * (i + 1) / jobs; ++j) join(plan.wholes[j]);
    });
  }

 private:
  static constexpr std::int64_t worth_waking = 16;  // tiles of rows and positions

  struct Scratch {
    X *queries, *probabilities;  // [R · x_rows][D], [rows of a tile][64]
    float *scores, *sums;        // [rows of a tile][64], [R][lanes]
    std::int32_t* last;          // [R] position of the query
    Mixture total, part;
    std::uint32_t* segment;  // one segment of values
    // int8: [R] what queries stand for; sums of probabilities · values, [rows of a tile][padded D]
    Split* splits;
    float* mixed;

    Scratch(Pool& pool, int worker, const Attention& a) {
      const std::int64_t dim = a.arena_.padded_dim;
      std::int64_t floats = 0;
      const auto take = [&](std::int64_t n) { return std::exchange(floats, floats + (n + 15) / 16 * 16); };
      const std::int64_t q = take(a.rows_ * x_rows * a.query_row()), p = take(query_tokens * probability_row<Values>),
                         c = take(query_tokens * tile_positions), l = take(a.rows_ * lanes), o = take(a.rows_),
                         t = take(a.part_floats()), m = take(a.part_floats()), v = take(bytes ? 0 : panel * dim),
                         w = take(bytes ? a.rows_ * sizeof(Split) / sizeof(float) : 0),
                         x = take(bytes ? query_tokens * dim : 0);
      float* base = static_cast<float*>(pool.scratch(worker, floats * sizeof(float)));
      queries = reinterpret_cast<X*>(base + q), probabilities = reinterpret_cast<X*>(base + p);
      scores = base + c, sums = base + l, last = reinterpret_cast<std::int32_t*>(base + o);
      total = a.mixture(base + t), part = a.mixture(base + m);
      segment = reinterpret_cast<std::uint32_t*>(base + v);
      splits = reinterpret_cast<Split*>(base + w), mixed = base + x;
    }
  };

  std::int64_t steps() const { return (arena_.head_dim + per_step - 1) / per_step; }
  std::int64_t query_row() const { return steps() * Keys::x_per_step; }  // in X, each four bytes
  std::int64_t part_floats() const { return rows_ * (arena_.padded_dim + 2); }
  Mixture mixture(float* at) const { return {at, at + rows_, at + 2 * rows_}; }
  Mixture part_at(std::int64_t i) const { return mixture(parts_ + i * part_floats()); }

  // A task or a piece of one. `following` tells, before the last tile, which task comes next, if that is known.
  template <class Following>
  void attend(const AttentionTask& task, Scratch& s, Following&& following) const {
    begin(task, s);
    const bool is_piece = task.part >= 0;
    for (std::int64_t p = task.first; p <= task.last; ++p) {
      const Mixture& to = is_piece ? part_at(task.part) : p == task.first ? s.total : s.part;
      partition(task, s, p, to, following);
      if (!is_piece && p > task.first) merge(s.total, s.part, division_.rows(task), arena_.padded_dim);
    }
    if (!is_piece) finish(task, s.total);
  }

  void join(const AttentionTask& task) const {
    const Mixture total = part_at(task.part);
    for (int p = 1; p <= task.last - task.first; ++p)
      merge(total, part_at(task.part + p), division_.rows(task), arena_.padded_dim);
    finish(task, total);
  }

  void begin(const AttentionTask& task, Scratch& s) const {
    const std::int64_t values = group_ * arena_.head_dim;  // of a token
    for (std::int64_t t = 0; t < task.tokens; ++t) {
      const Value* from = q_ + ((task.token + t) * heads_ + task.head * group_) * arena_.head_dim;
      X* to = s.queries + t * group_ * x_rows * query_row();
      if constexpr (bytes) {
        for (std::int64_t g = 0; g < group_; ++g, from += arena_.head_dim, to += x_rows * query_row())
          s.splits[t * group_ + g] = split_query<Keys>(from, arena_.head_dim, to, to + query_row());
      } else if constexpr (Keys::x_per_step == 2) {
        for (std::int64_t i = 0; i < values; ++i) to[i] = from_bf16(from[i]);
      } else {
        std::memcpy(to, from, values * sizeof(Value));
      }
      for (std::int64_t r = t * group_; r < (t + 1) * group_; ++r)
        s.last[r] = static_cast<std::int32_t>(division_.first_position(task) + t);
    }
  }

  // Positions of one partition, as far as any query of the task sees them → to.
  template <class Following>
  void partition(const AttentionTask& task, Scratch& s, std::int64_t index, const Mixture& to,
                 Following&& following) const {
    const std::int64_t rows = division_.rows(task);
    for (std::int64_t r = 0; r < rows; ++r) to.largest[r] = lowest;
    std::memset(s.sums, 0, rows * lanes * sizeof(float));
    std::memset(to.mix, 0, rows * arena_.padded_dim * sizeof(float));
    const std::int64_t begin = division_.begin(task, index), end = division_.end(task, index);
    Tile tile = look_up(task, begin);
    for (std::int64_t p = begin; p < end; p += tile_positions) {
      Tile next = tile;
      bool known = true;
      if (p + tile_positions < division_.past_position(task) && (p + tile_positions < end || task.part < 0)) {
        next = look_up(task, p + tile_positions);
      } else if (const AttentionTask* other = following()) {
        next = look_up(*other, division_.begin(*other, other->first));
      } else {
        known = false;
      }
      if constexpr (!bytes) clean(task, s, p, tile);
      attend_tile(task, s, p, tile, known ? &next : nullptr, to);
      tile = next;
    }
    for (std::int64_t r = 0; r < rows; ++r) to.sum[r] = sum(load<vf>(s.sums + r * lanes));
  }

  // One tile of positions for all rows, a few at a time; of the next tile each takes a share of the fetching.
  void attend_tile(const AttentionTask& task, Scratch& s, std::int64_t position, const Tile& tile, const Tile* next,
                   const Mixture& to) const {
    const std::int64_t rows = division_.rows(task), tiles = (rows + queries_at_once - 1) / queries_at_once;
    const std::int64_t fetching = tiles < tile_segments ? tiles : tile_segments;
    for (std::int64_t i = 0; i < tiles; ++i) {
      const std::int64_t row = rows * i / tiles;
      const int count = static_cast<int>(rows * (i + 1) / tiles - row);
      // Segments that these rows see: from `first` to before `past`.
      const std::int64_t seen = division_.first_seen(s.last[row]) - position, last = s.last[row + count - 1] - position;
      if (last < 0 || seen >= tile_positions) continue;
      const int first = seen > 0 ? static_cast<int>(seen / panel) : 0;
      const int past = last < tile_positions - 1 ? static_cast<int>(last / panel) + 1 : tile_segments;
      Coming keys, values;
      if (next != nullptr && i < fetching) {
        const std::int64_t from = tile_segments * i / fetching, share = tile_segments * (i + 1) / fetching - from;
        keys = {next->keys + from, static_cast<int>(share)};
        values = {next->values + from, static_cast<int>(share)};
      }
      score(s, tile, row, count, first, past, keys);
      float scales[queries_at_once];
      for (int m = 0; m < count; ++m) scales[m] = weigh_row(s, tile, position, row + m, m, to);
      mix(s, tile, row, count, first, past, values, scales, to);
    }
  }

  // Scores of the m-th row of a tile → probabilities, and their scale.
  float weigh_row(Scratch& s, const Tile& tile, std::int64_t position, std::int64_t row, int m,
                  const Mixture& to) const {
    constexpr int count = tile_positions / lanes, degree = sizeof(Value) == 2 ? 3 : 5;
    const float* scores = s.scores + m * x_rows * tile_positions;
    vf p[count];
    for (int i = 0; i < count; ++i) {
      if constexpr (bytes) {
        const vf whole = joined(s.splits[row], scores + i * lanes, scores + tile_positions + i * lanes);
        p[i] = whole * load<vf>(tile.key_scales[i / vectors] + i % vectors * lanes);
      } else {
        p[i] = load<vf>(scores + i * lanes);
      }
    }
    const float scale = bytes ? scale_ * s.splits[row].scale : scale_;
    const std::int64_t low = division_.first_seen(s.last[row]) - position, high = s.last[row] - position;
    const auto weigh_seen = [&](auto all_seen) {
      weigh<degree, all_seen.value>(p, scale, static_cast<int>(low > 0 ? low : 0),
                                    static_cast<int>(high < tile_positions ? high : tile_positions), to.largest + row,
                                    s.sums + row * lanes, to.mix + row * arena_.padded_dim, arena_.padded_dim);
    };
    low <= 0 && high >= tile_positions - 1 ? weigh_seen(std::true_type{}) : weigh_seen(std::false_type{});
    X* probabilities = s.probabilities + m * x_rows * probability_row<Values>;
    if constexpr (bytes) {
      return split_probabilities<Values>(p, tile.value_scales, probabilities, probabilities + probability_row<Values>);
    } else {
      store_probabilities<Values>(p, probabilities);
      return 1.0f;
    }
  }

  const std::uint32_t* head_at(const AttentionTask& task, std::int64_t position) const {
    const std::int64_t id = layout_.tables[task.chunk * layout_.table_width + position / arena_.block_size];
    return layer_data_ + (id * arena_.kv_heads + task.head) * arena_.head_lanes;
  }

  // Where the keys and values of the 64 positions from `position` on lie. Blocks that nobody sees are not looked up.
  Tile look_up(const AttentionTask& task, std::int64_t position) const {
    const std::int64_t past = division_.past_position(task);
    const std::int64_t seen = division_.first_seen(division_.first_position(task)) / panel * panel;
    Tile tile;
    for (int j = 0; j < tile_segments; ++j) {
      std::int64_t at = position + j * panel;
      at = at < seen ? seen : at < past ? at : (past - 1) / panel * panel;
      const std::int64_t slot = at % arena_.block_size;
      const std::uint32_t* head = head_at(task, at);
      tile.keys[j] = head + slot;
      tile.values[j] = head + arena_.key_lanes + slot / per_step * arena_.padded_dim;
      if constexpr (bytes) {
        tile.key_scales[j] = reinterpret_cast<const float*>(head + arena_.scales_at + slot);
        tile.value_scales[j] = tile.key_scales[j] + arena_.block_size;
        prefetch_to_l2(tile.key_scales[j]), prefetch_to_l2(tile.value_scales[j]);
      }
    }
    return tile;
  }

  void score(Scratch& s, const Tile& tile, std::int64_t row, int count, int first, int past, Coming coming) const {
    const int rows = count * x_rows;
    for (int j = first; j < past; coming.count = 0) {
      const int panels = panels_at_once(past - j, rows);
      with_shape<x_rows>(rows, panels, [&]<int M, int P>() {
        scores_of<Keys, M, P>(s.queries + row * x_rows * query_row(), query_row(), tile.keys + j, arena_.block_size,
                             steps(), coming, s.scores + j * panel);
      });
      j += panels;
    }
  }

  void mix(Scratch& s, const Tile& tile, std::int64_t row, int count, int first, int past, Coming coming,
           const float* scales, const Mixture& to) const {
    const std::int64_t width = arena_.padded_dim;
    const int rows = count * x_rows;
    const X* x = s.probabilities + first * (panel / per_step) * Values::x_per_step;
    float* mixes = bytes ? s.mixed : to.mix + row * width;
    for (std::int64_t p = 0; p < width / panel;) {
      const int panels = panels_at_once(width / panel - p, rows);
      with_shape<x_rows>(rows, panels, [&]<int M, int P>() {
        mix_of<Values, M, P>(x, tile.values + first, past - first, p * panel, width, coming, mixes + p * panel);
      });
      p += panels;
      coming.from += tile_positions / per_step * panel;
      if (coming.from >= panel / per_step * width) coming.count = 0;
    }
    if constexpr (bytes)
      for (int m = 0; m < count; ++m) {
        const float* high = mixes + m * x_rows * width;
        add_mix(scales[m], high, high + width, width, to.mix + (row + m) * width);
      }
  }

  // If the tile reaches past the chunk's end: the segment in which that lies becomes a copy with zeros from there on.
  void clean(const AttentionTask& task, Scratch& s, std::int64_t position, Tile& tile) const {
    const std::int64_t end = layout_.starts[task.chunk] + layout_.offsets[task.chunk + 1] - layout_.offsets[task.chunk];
    if (end >= position + tile_positions || end % panel == 0) return;
    const std::int64_t width = arena_.padded_dim, valid = end % panel, whole = valid / per_step;
    const std::uint32_t*& values = tile.values[(end - position) / panel];
    std::memcpy(s.segment, values, (valid + per_step - 1) / per_step * width * 4);
    if (valid % per_step != 0)
      for (std::int64_t i = 0; i < width; ++i) s.segment[whole * width + i] &= 0xffffu;
    const std::int64_t from = (valid + per_step - 1) / per_step * width;
    std::memset(s.segment + from, 0, (panel / per_step * width - from) * 4);
    values = s.segment;
  }

  void finish(const AttentionTask& task, const Mixture& total) const {
    const std::int64_t dim = arena_.head_dim;
    for (std::int64_t r = 0; r < division_.rows(task); ++r) {
      Value* to = out_ + ((task.token + r / group_) * heads_ + task.head * group_ + r % group_) * dim;
      const float* mixed = total.mix + r * arena_.padded_dim;
      const float inverse = 1 / total.sum[r];
      std::int64_t i = 0;
      for (; i + lanes <= dim; i += lanes) {
        const vf value = load<vf>(mixed + i) * inverse;
        if constexpr (sizeof(Value) == 2) {
          store_bf16(to + i, value);
        } else {
          store(to + i, value);
        }
      }
      for (; i < dim; ++i) hold(to + i, mixed[i] * inverse);
    }
  }

  const Value* q_;
  std::int64_t heads_, group_;
  const Arena& arena_;
  const Layout& layout_;
  float scale_;  // times log₂ e
  Value* out_;
  Division division_;
  std::int64_t rows_;  // of the largest task, rounded up to 16
  const std::uint32_t* layer_data_;
  float* parts_ = nullptr;
};

template <class Value, class Keys, class Values>
void attention(Pool& pool, const void* q, std::int64_t heads, const Arena& arena, std::int64_t layer,
               const Layout& layout, float scale, std::int64_t window, void* out) {
  Attention<Value, Keys, Values>(static_cast<const Value*>(q), heads, arena, layer, layout, scale, window,
                                 static_cast<Value*>(out))
      .run(pool);
}

}  // namespace inflight::INFLIGHT_ISA
