// A few queries against 64 positions, the inside of paged attention: scores, probabilities, mix.
//
// attention.h says which sequences there are and how work is divided. The two products use the arithmetic of tile.h in
// loops of their own, because their steps are few (32 at 64 dimensions in bf16): what a loop costs besides its steps
// counts here. A sum is one chain of multiply-adds in rising order, whatever the number of rows.
#pragma once
#include <type_traits>
#include <utility>

#include "gemm/tile.h"
#include "isa/elementary.h"
#include "isa/float16.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

constexpr int tile_segments = tile_positions / panel;  // of 16 positions
constexpr float log2e = 1.44269504f;
constexpr float lowest = -3.402823466e38f;             // the largest score of a query that has seen nothing

// Keys and values of 64 positions by segments of 16. Keys go on every B lanes, D / per_step times; values are
// [16 / per_step][padded D] lanes. A segment that no query sees has the address of another. Scales: int8 only.
struct Tile {
  const std::uint32_t* keys[tile_segments];
  const std::uint32_t* values[tile_segments];
  const float* key_scales[tile_segments];
  const float* value_scales[tile_segments];
};

// What is known of R queries after some positions. Scores are in units of log₂ (times scale · log₂ e). `largest` is
// within `slack` of the largest score seen: what it is exactly cancels out in mix / sum.
struct SoftmaxState {
  float* largest;  // [R, rounded up to 16]
  float* sum;      // the same: of 2^(score − largest)
  float* mix;      // [R][padded D]
};

constexpr float slack = 8;

// Segments of the next tile that one call of a product brings near: a line of each at every step, from lane `from` on.
struct Prefetch {
  const std::uint32_t* const* at = nullptr;
  int count = 0;
  std::int64_t from = 0;
};

// Over int8 a row of numbers is two rows of bytes, 256 · high + low (bytes.h): two sums of whole numbers,
// each exact in float32, become one number.
template <class Dot>
constexpr bool by_bytes = std::is_same_v<typename Dot::Sum, vi>;
template <class Dot>
constexpr int x_rows = by_bytes<Dot> ? 2 : 1;
static_assert(max_head_dim * 127 * 128 < 1 << 24);
INLINE vf joined(vi high, vi low) {
  return fma(__builtin_convertvector(high, vf), all(256.0f), __builtin_convertvector(low, vf));
}

// What a query's two rows of bytes stand for, and what their sums begin with: −128 · Σ of each.
struct Split {
  float scale;
  std::int32_t first[2];
};

// Scores of M rows of queries, at a stride of `stride`, against P segments of keys. int8: of M / 2 queries, times the
// scales of the keys. Behind the last position sums are whatever lay there.
template <class Dot, int M, int P>
__attribute__((noinline)) void scores_of(const typename Dot::X* queries, std::int64_t stride, const Split* splits,
                                         const std::uint32_t* const* keys, const float* const* key_scales,
                                         std::int64_t block, std::int64_t steps, Prefetch prefetch, float* scores) {
  constexpr int N = P * vectors;
  using Sum = typename Dot::Sum;
  Sum sums[M][N];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n)
      if constexpr (by_bytes<Dot>) {
        sums[m][n] = all(splits[m / 2].first[m % 2]);
      } else {
        sums[m][n] = Sum{};
      }
  const typename Dot::X* x[M];
  x[0] = queries;
#pragma GCC unroll 8
  for (int m = 1; m < M; ++m) x[m] = x[m - 1] + stride;
  const std::uint32_t* w[P];
  for (int p = 0; p < P; ++p) w[p] = keys[p];
  for (std::int64_t i = 0, at = 0; i < steps; ++i, at += block) {
    for (int c = 0; c < prefetch.count; ++c) prefetch_to_l1(prefetch.at[c] + at);
    vu row[N];
    for (int p = 0; p < P; ++p)
      for (int v = 0; v < vectors; ++v) row[p * vectors + v] = load<vu>(w[p] + at + v * lanes);
    Dot::template step<M, N>(sums, row, [&](int m, std::int64_t k) { return x[m][k]; }, i);
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; m += x_rows<Dot>)
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      float* to = scores + m / x_rows<Dot> * tile_positions + n * lanes;
      if constexpr (by_bytes<Dot>) {
        store(to, joined(sums[m][n], sums[m + 1][n]) * load<vf>(key_scales[n / vectors] + n % vectors * lanes));
      } else {
        store(to, sums[m][n]);
      }
    }
}

// x of one row of probabilities.
template <class Dot>
constexpr std::int64_t probability_row = tile_positions / Dot::values_per_step * Dot::x_per_step;

// mix[M][P · 16] of `width` floats a row += probabilities · values of some segments. int8: of M / 2 rows, whose whole
// numbers stand for as many of their scales.
template <class Dot, int M, int P>
__attribute__((noinline)) void mix_of(const typename Dot::X* probabilities, const float* scales,
                                      const std::uint32_t* const* values, int segments, std::int64_t column,
                                      std::int64_t width, Prefetch prefetch, float* mix) {
  constexpr int N = P * vectors, steps = panel / Dot::values_per_step;
  using Sum = typename Dot::Sum;
  if (segments < 1) __builtin_unreachable();  // or the compiler keeps sums on the stack for it
  Sum sums[M][N];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) sums[m][n] = by_bytes<Dot> ? Sum{} : load<Sum>(mix + m * width + n * lanes);
  const typename Dot::X* x[M];
  for (int m = 0; m < M; ++m) x[m] = probabilities + m * probability_row<Dot>;
  for (int s = 0; s < segments; ++s) {
    const std::uint32_t* w = values[s] + column;
    for (int i = 0; i < steps; ++i, w += width) {
      for (int c = 0; c < prefetch.count; ++c) prefetch_to_l1(prefetch.at[c] + prefetch.from + (s * steps + i) * panel);
      vu row[N];
      for (int n = 0; n < N; ++n) row[n] = load<vu>(w + n * lanes);
      Dot::template step<M, N>(sums, row, [&](int m, std::int64_t k) { return x[m][k]; }, i);
    }
    for (int m = 0; m < M; ++m) x[m] += steps * Dot::x_per_step;
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; m += x_rows<Dot>)
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      float* to = mix + m / x_rows<Dot> * width + n * lanes;
      if constexpr (by_bytes<Dot>) {
        store(to, fma(joined(sums[m][n], sums[m + 1][n]), all(scales[m / 2]), load<vf>(to)));
      } else {
        store(to, sums[m][n]);
      }
    }
}

// How many of `left` panels the next tile takes. With one or two rows a single panel would wait for its own sums.
INLINE int panels_at_once(std::int64_t left, std::int64_t rows) {
  if constexpr (query_panels >= 4) {
    if (left >= 4) return 4;
    return left >= 2 ? 2 : 1;
  }
  return query_panels == 2 && left >= 2 && rows <= 2 ? 2 : 1;
}

// then.template operator()<M, P>() for these numbers of rows, a multiple of `step`, and panels.
template <int step, int M = query_tokens / step * step, class Then>
INLINE void with_shape(int rows, int panels, Then&& then) {
  if constexpr (M > step) {
    if (rows < M) return with_shape<step, M - step>(rows, panels, then);
  }
  if constexpr (query_panels >= 4) {
    if (panels == 4) return then.template operator()<M, 4>();
    if (panels == 2) return then.template operator()<M, 2>();
  } else if constexpr (query_panels == 2 && M <= 2) {
    if (panels == 2) return then.template operator()<M, 2>();
  }
  then.template operator()<M, 1>();
}

// One query's scores → probabilities relative to the largest score so far; their sum, lane by lane, is added to `sums`.
// What was found before is scaled only if the largest score has risen by more than `slack`: up to there probabilities
// above 1 do no harm. `all_seen`: the query sees each of the 64 positions, else those from `first` to `last`. The rest
// have probability 0, whatever stands there.
template <int degree, bool all_seen>
INLINE void online_softmax(vf (&p)[tile_positions / lanes], float scale, int first, int last, float* largest_score,
                           float* sums, float* mix, std::int64_t width) {
  constexpr int count = tile_positions / lanes;
  if constexpr (!all_seen) {
    vi lane;
    for (int i = 0; i < lanes; ++i) lane[i] = i;
    for (int i = 0; i < count; ++i) {
      const vi index = lane + i * lanes;
      p[i] = (index >= first) & (index <= last) ? p[i] : all(-__builtin_inff());
    }
  }
  vf top = p[0];
  for (int i = 1; i < count; ++i) top = max(p[i], top);
  top = top * scale;
  vf total = load<vf>(sums);
  float relative_to = *largest_score;
  if (any_above(top, relative_to + slack)) {
    const float before = std::exchange(relative_to, largest(top));
    const vf factor = power_of_two<degree>(all(before - relative_to));
    *largest_score = relative_to;
    total = total * factor;
    for (std::int64_t i = 0; i < width; i += lanes) store(mix + i, load<vf>(mix + i) * factor);
  }
  for (int i = 0; i < count; ++i) {
    p[i] = power_of_two<degree>(fma(p[i], all(scale), all(-relative_to)));
    total += p[i];
  }
  store(sums, total);
}

// Probabilities as the product with the values reads them.
template <class Dot>
INLINE void store_probabilities(const vf (&p)[tile_positions / lanes], typename Dot::X* to) {
  for (int i = 0; i < tile_positions / lanes; ++i) {
    if constexpr (Dot::values_per_step == 1) {
      store(to + i * lanes, p[i]);
    } else if constexpr (Dot::x_per_step == 2) {
      store(to + i * lanes, (vf)(to_bf16_bits(p[i]) << 16));
    } else {
      store_bf16_fast(reinterpret_cast<std::uint16_t*>(to) + i * lanes, p[i]);
    }
  }
}

// part into total, both of R queries: what two sets of positions gave.
INLINE void merge(const SoftmaxState& total, const SoftmaxState& part, std::int64_t rows, std::int64_t width) {
  for (std::int64_t first = 0; first < rows; first += lanes) {
    const vf before = load<vf>(total.largest + first), found = load<vf>(part.largest + first);
    const vf both = max(before, found);
    const vf a = power_of_two<5>(before - both), b = power_of_two<5>(found - both);
    store(total.largest + first, both);
    store(total.sum + first, load<vf>(total.sum + first) * a + load<vf>(part.sum + first) * b);
    for (std::int64_t r = first; r < first + lanes && r < rows; ++r) {
      const vf keep = all(a[r - first]), add = all(b[r - first]);
      for (std::int64_t i = r * width; i < (r + 1) * width; i += lanes)
        store(total.mix + i, load<vf>(total.mix + i) * keep + load<vf>(part.mix + i) * add);
    }
  }
}

// 1 / (sum and what the sink adds to it), relative to the largest score of the positions or the sink's, so that neither
// overflows.
INLINE float inverse_with_sink(const SoftmaxState& total, std::int64_t row, float sink) {
  const float score = sink * log2e, largest = total.largest[row], both = score > largest ? score : largest;
  const float kept = power_of_two<5>(all(largest - both))[0], added = power_of_two<5>(all(score - both))[0];
  return kept / (total.sum[row] * kept + added);
}

}  // namespace inflight::INFLIGHT_ISA
