// Paged attention with an online softmax.
//
// Positions are taken in tiles of 64 and partitions of 512, both aligned to absolute positions. Within a partition the
// largest score, the sum and the mix go on from tile to tile; partitions are then merged in rising order, whether one
// thread has gone through all of them or each was a piece of its own (tasks.h). For one query the tiles that
// it does not see change nothing, so its bits depend on its own positions alone. What is done with a tile is in
// rows.h.
//
// Slots past the chunk's last position may hold anything, NaN too: their scores are replaced before use, and their
// values are replaced by zeros in a copy of the segment (whole numbers need not be: they meet a probability of 0).
//
// Value is how queries and outputs are held, Keys and Values how they meet what is in the cache: as they are, or int8
// (bytes.h), where each row of queries and of probabilities is two rows of bytes.
#pragma once
#include "attention/bytes.h"
#include "attention/latent.h"
#include "attention/rows.h"
#include "attention/tasks.h"
#include "isa/elementary.h"
#include "isa/float16.h"
#include "pool/parallel.h"
#include "rows/row_loops.h"

namespace inflight::INFLIGHT_ISA {

template <class Value, class Keys, class Values>
class Attention {
  using X = typename Keys::X;
  static constexpr int per_step = Keys::values_per_step;
  static constexpr bool bytes = by_bytes<Keys>;
  static constexpr int rows_of_query = x_rows<Keys>;  // of the products
  static constexpr int queries_at_once = query_tokens / rows_of_query;
  // Over int8 four groups go through a step before the next step begins: what is done to a row alone is a long chain,
  // of which several then overlap. Over bf16 memory is the limit, and each group fetches between two softmaxes.
  static constexpr int groups_at_once = bytes ? 4 : 1;
  static constexpr int rows_at_once = (queries_at_once * groups_at_once + 3) / 4 * 4;

 public:
  Attention(const Value* q, const KVLayer& layer, const AttentionMetadata& metadata, std::int64_t heads,
            std::int64_t window, bool causal, const Scores& scores, Value* out)
      : q_(q), heads_(heads), group_(heads / layer.kv_heads), layer_(layer), metadata_(metadata),
        scale_((scores.soft_cap > 0 ? scores.soft_cap : scores.scale) * log2e),
        inner_(scores.soft_cap > 0 ? scores.scale / scores.soft_cap : 0.0f), sinks_(scores.sinks),
        bias_(scores.position_bias), reach_(scores.reach), out_(out),
        work_(metadata, layer.kv_heads, group_, window, causal),
        rows_((work_.max_rows() + 15) / 16 * 16) {}

  void divide(Pool& pool, AttentionPlan& plan) const { work_.plan(pool, part_floats() * sizeof(float), plan); }

  void run(Pool& pool, const AttentionPlan& plan) {
    parts_ = static_cast<float*>(pool.scratch(2, plan.parts * part_floats() * sizeof(float)));
    pool.reserve(Scratch::size(*this));
    Claims claims(plan.count);
    on_all(pool, plan.count <= 1 || plan.cost < worth_waking, [&](int worker) {
      Scratch s(pool.own(worker), *this);
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
    X *queries, *probabilities;  // [R · rows of a query][D], [rows at once · rows of a query][64]
    float *scores, *sums;        // [rows at once][64], [R][lanes]
    std::int32_t *first, *last;  // [R] positions that the query sees
    SoftmaxState total, part;
    std::uint32_t *segment, *made;  // one segment of values; those of a tile, where values are a part of the keys
    // int8: [R] what queries stand for; of rows at once the largest probabilities, and what their bytes stand for
    Split* splits;
    vu* tops;
    float* scales;

    static std::size_t size(const Attention& a) { return Scratch(nullptr, a).floats_ * sizeof(float); }

    Scratch(void* memory, const Attention& a) {
      const std::int64_t dim = a.layer_.padded_dim;
      const auto take = [&](std::int64_t n) { return std::exchange(floats_, floats_ + (n + 15) / 16 * 16); };
      const std::int64_t q = take(a.rows_ * rows_of_query * a.query_row()),
                         p = take(rows_at_once * rows_of_query * probability_row<Values>),
                         c = take(rows_at_once * tile_positions), l = take(a.rows_ * lanes), o = take(2 * a.rows_),
                         t = take(a.part_floats()), m = take(a.part_floats()), v = take(bytes ? 0 : panel * dim),
                         w = take(bytes ? a.rows_ * sizeof(Split) / sizeof(float) : 0),
                         x = take(bytes ? rows_at_once * lanes : 0), y = take(bytes ? rows_at_once : 0),
                         k = take(a.layer_.values_in_keys() ? tile_positions / per_step * dim : 0);
      float* base = static_cast<float*>(memory);
      queries = reinterpret_cast<X*>(base + q), probabilities = reinterpret_cast<X*>(base + p);
      scores = base + c, sums = base + l;
      first = reinterpret_cast<std::int32_t*>(base + o), last = first + a.rows_;
      total = a.softmax_state(base + t), part = a.softmax_state(base + m);
      segment = reinterpret_cast<std::uint32_t*>(base + v), made = reinterpret_cast<std::uint32_t*>(base + k);
      splits = reinterpret_cast<Split*>(base + w), tops = reinterpret_cast<vu*>(base + x), scales = base + y;
    }

   private:
    std::int64_t floats_ = 0;
  };

  std::int64_t steps() const { return (layer_.key_dim + per_step - 1) / per_step; }
  std::int64_t query_row() const { return steps() * Keys::x_per_step; }  // in X, each four bytes
  std::int64_t part_floats() const { return rows_ * (layer_.padded_dim + 2); }
  SoftmaxState softmax_state(float* at) const { return {at, at + rows_, at + 2 * rows_}; }
  SoftmaxState part_at(std::int64_t i) const { return softmax_state(parts_ + i * part_floats()); }

  // A task or a piece of one. `following` says, before the last tile, which task comes next, if that is known.
  template <class Following>
  void attend(const AttentionTask& task, Scratch& s, Following&& following) const {
    begin(task, s);
    const bool is_piece = task.part >= 0;
    for (std::int64_t p = task.first; p <= task.last; ++p) {
      const SoftmaxState& to = is_piece ? part_at(task.part) : p == task.first ? s.total : s.part;
      partition(task, s, p, to, following);
      if (!is_piece && p > task.first) merge(s.total, s.part, work_.rows(task), layer_.padded_dim);
    }
    if (!is_piece) finish(task, s.total);
  }

  void join(const AttentionTask& task) const {
    const SoftmaxState total = part_at(task.part);
    for (int p = 1; p <= task.last - task.first; ++p)
      merge(total, part_at(task.part + p), work_.rows(task), layer_.padded_dim);
    finish(task, total);
  }

  void begin(const AttentionTask& task, Scratch& s) const {
    const std::int64_t values = group_ * layer_.key_dim;  // of a token
    for (std::int64_t t = 0; t < task.tokens; ++t) {
      const Value* from = q_ + ((task.token + t) * heads_ + task.head * group_) * layer_.key_dim;
      X* to = s.queries + t * group_ * rows_of_query * query_row();
      if constexpr (bytes) {
        for (std::int64_t g = 0; g < group_; ++g, from += layer_.key_dim, to += rows_of_query * query_row())
          s.splits[t * group_ + g] = split_query<Keys>(from, layer_.key_dim, to, to + query_row());
      } else if constexpr (Keys::x_per_step == 2) {
        for (std::int64_t i = 0; i < values; ++i) to[i] = from_bf16(from[i]);
      } else {
        std::memcpy(to, from, values * sizeof(Value));
      }
      const std::int64_t position = work_.first_position(task) + t;
      for (std::int64_t r = t * group_; r < (t + 1) * group_; ++r) {
        s.first[r] = static_cast<std::int32_t>(work_.first_seen(position));
        s.last[r] = static_cast<std::int32_t>(work_.last_seen(task, position));
      }
    }
  }

  // Positions of one partition, as far as any query of the task sees them → to.
  template <class Following>
  void partition(const AttentionTask& task, Scratch& s, std::int64_t index, const SoftmaxState& to,
                 Following&& following) const {
    const std::int64_t rows = work_.rows(task);
    for (std::int64_t r = 0; r < rows; ++r) to.largest[r] = lowest;
    std::memset(s.sums, 0, rows * lanes * sizeof(float));
    std::memset(to.mix, 0, rows * layer_.padded_dim * sizeof(float));
    const std::int64_t begin = work_.begin(task, index), end = work_.end(task, index);
    Tile tile = look_up(task, begin);
    for (std::int64_t p = begin; p < end; p += tile_positions) {
      Tile next = tile;
      bool known = true;
      if (p + tile_positions < work_.past_seen(task) && (p + tile_positions < end || task.part < 0)) {
        next = look_up(task, p + tile_positions);
      } else if (const AttentionTask* other = following()) {
        next = look_up(*other, work_.begin(*other, other->first));
      } else {
        known = false;
      }
      if (layer_.values_in_keys()) make_values(task, s, p, tile);
      if constexpr (!bytes) clean(task, s, p, tile);
      attend_tile(task, s, p, tile, known ? &next : nullptr, to);
      tile = next;
    }
    for (std::int64_t r = 0; r < rows; ++r) to.sum[r] = sum(load<vf>(s.sums + r * lanes));
  }

  // Neighbouring rows that go through the products together, and the segments that they see.
  struct RowGroup {
    std::int64_t row;
    int count, first, past;
    Prefetch keys, values;
  };

  // One tile of positions for all rows, some groups of them at a time.
  void attend_tile(const AttentionTask& task, Scratch& s, std::int64_t position, const Tile& tile, const Tile* next,
                   const SoftmaxState& to) const {
    const int rows = static_cast<int>(work_.rows(task)), count = (rows + queries_at_once - 1) / queries_at_once;
    for (int begin = 0; begin < count; begin += groups_at_once) {
      RowGroup groups[groups_at_once];
      int seeing = 0;
      for (int i = begin; i < count && i < begin + groups_at_once; ++i)
        if (group_of(s, rows, i, count, position, next, groups[seeing])) ++seeing;
      if (seeing == 0) continue;
      const std::int64_t first = groups[0].row;
      for (int i = 0; i < seeing; ++i) score(s, tile, groups[i], first);
      const std::int64_t past = groups[seeing - 1].row + groups[seeing - 1].count;
      inner_ > 0 ? softmax_rows<true>(task, s, tile, position, first, past, to)
                 : softmax_rows<false>(task, s, tile, position, first, past, to);
      for (int i = 0; i < seeing; ++i) mix(s, tile, groups[i], first, to);
    }
  }

  // The i-th of `count` groups of rows, if it sees any of 64 positions; each takes a share of fetching the next tile.
  bool group_of(const Scratch& s, int rows, int i, int count, std::int64_t position, const Tile* next,
                RowGroup& group) const {
    const int row = rows * i / count, past = rows * (i + 1) / count;
    const std::int64_t seen = s.first[row] - position, last = s.last[past - 1] - position;
    if (last < 0 || seen >= tile_positions) return false;
    group = {row, past - row, seen > 0 ? static_cast<int>(seen / panel) : 0,
             last < tile_positions - 1 ? static_cast<int>(last / panel) + 1 : tile_segments, {}, {}};
    const int fetching = count < tile_segments ? count : tile_segments;
    if (next == nullptr || i >= fetching) return true;
    const int from = tile_segments * i / fetching, share = tile_segments * (i + 1) / fetching - from;
    group.keys = {next->keys + from, share};
    if (!layer_.values_in_keys()) group.values = {next->values + from, share};
    return true;
  }

  // What is added to a row's scores of the positions from `position` on; null: nothing.
  const float* bias_of(const AttentionTask& task, std::int64_t row, std::int64_t position) const {
    if (bias_ == nullptr) return nullptr;
    const std::int64_t own = work_.first_position(task) + row / group_, head = task.head * group_ + row % group_;
    return bias_ + head * (2 * reach_ + 63) + position - own + reach_ - 1;
  }

  // Scores of rows [first, past) → probabilities, as the product with the values reads them.
  template <bool capped>
  void softmax_rows(const AttentionTask& task, Scratch& s, const Tile& tile, std::int64_t position, std::int64_t first,
                    std::int64_t past, const SoftmaxState& to) const {
    for (std::int64_t row = first; row < past; ++row) {
      const int m = static_cast<int>(row - first);
      const float* bias = bias_of(task, row, position);
      if constexpr (capped) cap(s, row, m);
      s.first[row] <= position && s.last[row] >= position + tile_positions - 1
          ? softmax_row<capped, true>(s, tile, position, row, m, bias, to)
          : softmax_row<capped, false>(s, tile, position, row, m, bias, to);
    }
    if constexpr (bytes)
      for (int m = 0, count = static_cast<int>(past - first); m < count; m += 4)
        split_probabilities<Values>(s.scores + m * tile_positions, s.tops + m, count - m < 4 ? count - m : 4,
                                    s.probabilities + 2 * m * probability_row<Values>, s.scales + m);
  }

  // The m-th of these rows. all_seen: it sees each of the 64 positions.
  template <bool capped, bool all_seen>
  INLINE void softmax_row(Scratch& s, const Tile& tile, std::int64_t position, std::int64_t row, int m,
                          const float* bias, const SoftmaxState& to) const {
    constexpr int count = tile_positions / lanes, degree = sizeof(Value) == 2 ? 3 : 5;
    float* scores = s.scores + m * tile_positions;
    vf p[count];
    for (int i = 0; i < count; ++i) p[i] = load<vf>(scores + i * lanes);
    float scale = bytes && !capped ? scale_ * s.splits[row].scale : scale_;
    if (bias != nullptr) {
      for (int i = 0; i < count; ++i) p[i] = fma(load<vf>(bias + i * lanes), all(log2e), p[i] * scale);
      scale = 1.0f;
    }
    const std::int64_t low = s.first[row] - position, high = s.last[row] - position;
    online_softmax<degree, all_seen>(p, scale, static_cast<int>(low > 0 ? low : 0),
                                     static_cast<int>(high < tile_positions ? high : tile_positions), to.largest + row,
                                     s.sums + row * lanes, to.mix + row * layer_.padded_dim, layer_.padded_dim);
    if constexpr (bytes) {
      store(s.tops + m, scale_probabilities(p, tile.value_scales, scores));
    } else {
      store_probabilities<Values>(p, s.probabilities + m * probability_row<Values>);
    }
  }

  // Scores of the m-th row → tanh of them, in place: before anything is masked.
  void cap(Scratch& s, std::int64_t row, int m) const {
    float* scores = s.scores + m * tile_positions;
    const vf inner = all(bytes ? inner_ * s.splits[row].scale : inner_);
    for (int i = 0; i < tile_positions; i += lanes) store(scores + i, tanh(load<vf>(scores + i) * inner));
  }

  // Where the keys and values of the 64 positions from `position` on lie. Blocks that no query sees are not looked up.
  Tile look_up(const AttentionTask& task, std::int64_t position) const {
    const std::int64_t past = work_.past_seen(task);
    const std::int64_t seen = work_.first_seen(work_.first_position(task)) / panel * panel;
    const std::int32_t* table = metadata_.block_tables + task.chunk * metadata_.table_width;
    const auto block_size = static_cast<std::uint32_t>(layer_.block_size);  // 32 bits: divided by for every segment
    Tile tile;
    for (int j = 0; j < tile_segments; ++j) {
      std::int64_t at = position + j * panel;
      at = at < seen ? seen : at < past ? at : (past - 1) / panel * panel;
      const std::uint32_t block = static_cast<std::uint32_t>(at) / block_size;
      const std::int64_t slot = at - static_cast<std::int64_t>(block) * block_size;
      const std::uint32_t* head = layer_.block(table[block]) + task.head * layer_.head_lanes;
      tile.keys[j] = head + slot;
      tile.values[j] = head + layer_.key_lanes + slot / per_step * layer_.padded_dim;
      if constexpr (bytes) {
        tile.key_scales[j] = reinterpret_cast<const float*>(head + layer_.scales_at + slot);
        tile.value_scales[j] = tile.key_scales[j] + (layer_.values_in_keys() ? 0 : layer_.block_size);
        prefetch_to_l2(tile.key_scales[j]), prefetch_to_l2(tile.value_scales[j]);
      }
    }
    return tile;
  }

  // Scores of a group's rows; `from`: the row whose scores stand first.
  void score(Scratch& s, const Tile& tile, const RowGroup& group, std::int64_t from) const {
    const int rows = group.count * rows_of_query;
    Prefetch prefetch = group.keys;
    float* scores = s.scores + (group.row - from) * tile_positions;
    for (int j = group.first; j < group.past; prefetch.count = 0) {
      const int panels = panels_at_once(group.past - j, rows);
      with_shape<rows_of_query>(rows, panels, [&]<int M, int P>() {
        scores_of<Keys, M, P>(s.queries + group.row * rows_of_query * query_row(), query_row(), s.splits + group.row,
                              tile.keys + j, tile.key_scales + j, layer_.block_size, steps(), prefetch,
                              scores + j * panel);
      });
      j += panels;
    }
  }

  void mix(Scratch& s, const Tile& tile, const RowGroup& group, std::int64_t from, const SoftmaxState& to) const {
    const std::int64_t width = layer_.padded_dim, m = group.row - from;
    const int rows = group.count * rows_of_query, first = group.first;
    Prefetch prefetch = group.values;
    const X* x = s.probabilities + m * rows_of_query * probability_row<Values> +
                 first * (panel / per_step) * Values::x_per_step;
    float* mixes = to.mix + group.row * width;
    for (std::int64_t p = 0; p < width / panel;) {
      const int panels = panels_at_once(width / panel - p, rows);
      with_shape<rows_of_query>(rows, panels, [&]<int M, int P>() {
        mix_of<Values, M, P>(x, s.scales + m, tile.values + first, group.past - first, p * panel, width, prefetch,
                             mixes + p * panel);
      });
      p += panels;
      prefetch.from += tile_positions / per_step * panel;
      if (prefetch.from >= panel / per_step * width) prefetch.count = 0;
    }
  }

  // The values of a tile from its keys, of the segments that any query sees.
  void make_values(const AttentionTask& task, Scratch& s, std::int64_t position, Tile& tile) const {
    const std::int64_t past = work_.past_seen(task) - position;
    const std::int64_t seen = work_.first_seen(work_.first_position(task)) - position;
    for (int j = 0; j < tile_segments; ++j) {
      std::uint32_t* to = s.made + j * (panel / per_step) * layer_.padded_dim;
      tile.values[j] = to;
      if (j * panel < past && (j + 1) * panel > seen)
        values_of_keys<per_step>(tile.keys[j], layer_.block_size, layer_.padded_dim, to);
    }
  }

  // If the tile reaches past the chunk's end: the segment in which that lies becomes a copy with zeros from there on.
  void clean(const AttentionTask& task, Scratch& s, std::int64_t position, Tile& tile) const {
    const std::int32_t* start = metadata_.query_start + task.chunk;
    const std::int64_t end = metadata_.context_len[task.chunk] + start[1] - start[0];
    if (end >= position + tile_positions || end % panel == 0) return;
    const std::int64_t width = layer_.padded_dim, valid = end % panel, whole = valid / per_step;
    const std::uint32_t*& values = tile.values[(end - position) / panel];
    std::memcpy(s.segment, values, (valid + per_step - 1) / per_step * width * 4);
    if (valid % per_step != 0)
      for (std::int64_t i = 0; i < width; ++i) s.segment[whole * width + i] &= 0xffffu;
    const std::int64_t from = (valid + per_step - 1) / per_step * width;
    std::memset(s.segment + from, 0, (panel / per_step * width - from) * 4);
    values = s.segment;
  }

  void finish(const AttentionTask& task, const SoftmaxState& total) const {
    const std::int64_t dim = layer_.value_dim;
    for (std::int64_t r = 0; r < work_.rows(task); ++r) {
      Value* to = out_ + ((task.token + r / group_) * heads_ + task.head * group_ + r % group_) * dim;
      const float* mixed = total.mix + r * layer_.padded_dim;
      const float inverse = sinks_ ? inverse_with_sink(total, r, sinks_[task.head * group_ + r % group_])
                                   : 1 / total.sum[r];
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
  const KVLayer& layer_;
  const AttentionMetadata& metadata_;
  float scale_, inner_;  // of scores, times log₂ e; capped: of tanh, and within it; else inner is 0
  const float* sinks_;
  const float* bias_;  // [H][2 · reach + 63] or null
  std::int64_t reach_;
  Value* out_;
  AttentionPartition work_;
  std::int64_t rows_;  // of the largest task, rounded up to 16
  float* parts_ = nullptr;
};

template <class Value, class Keys, class Values>
void divide(Pool& pool, const KVLayer& layer, const AttentionMetadata& metadata, AttentionPlan& plan) {
  Attention<Value, Keys, Values>(nullptr, layer, metadata, plan.heads, plan.window, plan.causal,
                                 {1.0f, 0.0f, nullptr, nullptr, 0}, nullptr)
      .divide(pool, plan);
}

template <class Value, class Keys, class Values>
void attention(Pool& pool, const void* q, const KVLayer& layer, const AttentionMetadata& metadata,
               const AttentionPlan& plan, const Scores& scores, void* out) {
  Attention<Value, Keys, Values>(static_cast<const Value*>(q), layer, metadata, plan.heads, plan.window, plan.causal,
                                 scores, static_cast<Value*>(out))
      .run(pool, plan);
}

}  // namespace inflight::INFLIGHT_ISA
