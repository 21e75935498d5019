// The inner kernel: a tile of sums of products, rows of x against one or two panels of 16 outputs.
//
// Matrix products are made of it; attention takes its steps (attention/rows.h). Each sum is one chain of multiply-adds
// over the steps in rising order, whatever the tile's shape: this is where batch invariance comes from.
#pragma once
#include <type_traits>

#include "gemm/spans.h"
#include "gemm/steps.h"
#include "isa/float16.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

// Rows of x at a stride of `stride` bytes, three to a pointer: an address can say one and two strides by itself, and a
// pointer to each of twelve rows would not fit the registers.
template <class F, int M>
class Rows {
  using X = F::X;  // not a parameter itself, by which it would lose what it says of alignment and aliasing

 public:
  INLINE Rows(const X* first, std::int64_t stride) : stride_(stride * static_cast<std::int64_t>(sizeof(X))) {
#pragma GCC unroll 16
    for (int m = 0; m < M; m += 3) at_[m / 3] = reinterpret_cast<const char*>(first) + m * stride_;
  }
  INLINE X operator()(int m, std::int64_t i) const {
    return *reinterpret_cast<const X*>(at_[m / 3] + m % 3 * stride_ + i * static_cast<std::int64_t>(sizeof(X)));
  }
  // All rows go on by so many X.
  INLINE void advance(std::int64_t count) {
#pragma GCC unroll 16
    for (int m = 0; m < M; m += 3) at_[m / 3] += count * static_cast<std::int64_t>(sizeof(X));
  }

 private:
  const char* at_[(M + 2) / 3];
  std::int64_t stride_;
};

// Memory to bring near while a tile computes: `lines` cache lines a step from `at` on, up to as many as a step reads.
// The number is a constant of the loop, because deciding it at every step costs 5 to 10 % of the dot products.
struct Ahead {
  const void* at = nullptr;
  int lines = 0;
};

// One tile's work: `steps` steps of a group from `w` on, outputs from `lane` on, by rows at a stride of `x_stride`.
// Sums are [M][P · 16] of F::Sum's lanes, group_lanes of them a row.
template <class F>
struct Work {
  const std::uint32_t* w;
  std::int64_t lane;
  const Weights::Spans& spans;
  int steps;
  const typename F::X* x;
  std::int64_t x_stride;
  float* sums;  // or int32
  bool fresh;  // begin with zeros instead of what stands in sums
  Ahead ahead;
};

template <class F, int M, int P, int fetched>
__attribute__((noinline)) void tile(const Work<F>& work) {
  constexpr int N = P * vectors;
  using Sum = typename F::Sum;
  Sum sums[M][N];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n)
      sums[m][n] = work.fresh ? Sum{} : load<Sum>(work.sums + m * group_lanes + n * lanes);

  const Rows<F, M> x(work.x, work.x_stride);
  const std::uint32_t* w = work.w + work.lane;
  const char* ahead = static_cast<const char*>(work.ahead.at);
  const int steps = work.steps;

  const auto one = [&](int i) __attribute__((always_inline)) {
    for (int line = 0; line < fetched; ++line, ahead += 64) prefetch_to_l2(ahead);
    vu row[N];
    for (int n = 0; n < N; ++n) row[n] = load<vu>(w + n * lanes);
    F::template step<M, N>(sums, row, x, i);
    w += group_lanes;
  };
  int i = 0;
  for (; i + 4 <= steps; i += 4) one(i), one(i + 1), one(i + 2), one(i + 3);
  for (; i < steps; ++i) one(i);
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) store(work.sums + m * group_lanes + n * lanes, sums[m][n]);
}

template <int M, int N, class Sum>
INLINE void store_sums(float* to, const Sum (&sums)[M][N]) {
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) store(to + m * group_lanes + n * lanes, sums[m][n]);
}

// A span's sums in whole numbers, times the scales of x and of the weights, are added to sums in memory; then what its
// offsets add. What is read of the scales is read before any of the sums is written.
template <bool offsets, int M, int N, class Rows>
INLINE void add_scaled(float* sums, const vi (&dots)[M][N], const std::uint16_t* scales, const Rows& x) {
  vf scale[N], offset[N];
#pragma GCC unroll 16
  for (int n = 0; n < N; ++n) {
    scale[n] = load_f16(scales + n * lanes);
    if constexpr (offsets) offset[n] = load_f16(scales + group_lanes + n * lanes);
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m, sums += group_lanes) {
    const vf of_x = all(of_bits(static_cast<std::uint32_t>(x(m, 0))));
    const vf together = all(of_bits(static_cast<std::uint32_t>(x(m, 1))));
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      vf sum = load<vf>(sums + n * lanes) + __builtin_convertvector(dots[m][n], vf) * of_x * scale[n];
      if constexpr (offsets) sum += together * offset[n];
      store(sums + n * lanes, sum);
    }
  }
}

// Whether M rows of N vectors of sums in float32 stay in memory, since 32 registers do not hold them beside those in
// whole numbers and a step's operands. Of 16 the compiler keeps some, which takes 3 to 10 % less time than to keep
// none.
template <int M, int N>
constexpr bool in_memory = registers == 32 && 2 * M * N + N + 5 > registers;

// A tile over spans of so many inputs: each is unpacked once for all rows.
template <class F, int M, int P, int fetched, int inputs>
__attribute__((noinline)) void tile_of_spans(const Work<F>& work) {
  constexpr int N = P * vectors;
  vf sums[M][N];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) sums[m][n] = work.fresh ? vf{} : load<vf>(work.sums + m * group_lanes + n * lanes);
  if constexpr (in_memory<M, N>) store_sums(work.sums, sums);

  Rows<F, M> x(work.x, work.x_stride);
  constexpr std::int64_t lines = inputs / F::inputs_per_line;
  const std::int64_t head = work.spans.first_codes(), step_bytes = (head + lines * group_lanes) * 4;
  const bool offsets = work.spans.offsets;
  const ByteTable meanings(work.spans.meanings);
  const char *at = reinterpret_cast<const char*>(work.w), *ahead = static_cast<const char*>(work.ahead.at);
  for (int step = 0; step < work.steps; ++step, at += step_bytes) {
    vi dots[M][N];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const vi first = (vi)all(static_cast<std::uint32_t>(x(m, 0)));
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) dots[m][n] = first;
    }
    x.advance(1);
    const char* line_ahead = ahead;
    if (fetched) prefetch_to_l2(line_ahead), line_ahead += 64;
    const auto near = [&]() __attribute__((always_inline)) {
      for (int i = 0; i < fetched; ++i, line_ahead += 64) prefetch_to_l2(line_ahead);
    };
    F::template add<lines>(dots, at + (head + work.lane) * 4, meanings, x, near);
    if (fetched) ahead += fetched == 2 ? step_bytes : step_bytes / 2;
    const auto* scales = reinterpret_cast<const std::uint16_t*>(at) + work.lane;
    if constexpr (in_memory<M, N>) {
      offsets ? add_scaled<true>(work.sums, dots, scales, x) : add_scaled<false>(work.sums, dots, scales, x);
      x.advance(2);
      continue;
    }
    // Each product is rounded before it is added: the same bits on every instruction set.
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      const vf scale = load_f16(scales + n * lanes);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const vf of_x = all(of_bits(static_cast<std::uint32_t>(x(m, 0))));
        sums[m][n] += __builtin_convertvector(dots[m][n], vf) * of_x * scale;
      }
    }
    if (offsets) {
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const vf together = all(of_bits(static_cast<std::uint32_t>(x(m, 1))));
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) sums[m][n] += together * load_f16(scales + group_lanes + n * lanes);
      }
    }
    x.advance(2);
  }
  if constexpr (in_memory<M, N>) return;
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) store(work.sums + m * group_lanes + n * lanes, sums[m][n]);
}

// Whether F brings a tile of its own (amx.cpp): F::run for up to F::tile_rows rows by both panels, in whole
// F::unit_steps but at the end of a sum, and F::end after a thread's last one of a job.
template <class F>
constexpr bool has_own_tile = requires { F::tile_rows; };

// How many panels of a group a tile of this many rows takes. With one or two rows a single one would wait for its own
// sums.
template <class F>
constexpr int tile_width(int rows) {
  return has_own_tile<F> || rows <= rows_of_two_panels ? 2 : 1;
}

// Rows of a tile: over spans fewer, so that their sums in whole numbers and those in float32 both stay in registers.
template <class F>
constexpr int max_rows = [] {
  if constexpr (has_own_tile<F>) {
    return F::tile_rows;
  } else {
    return by_spans<F> && tile_tokens > 6 ? 6 : tile_tokens;
  }
}();

// Steps that the order of a sum's additions does not let divide.
template <class F>
constexpr std::int64_t unit_steps = [] {
  if constexpr (has_own_tile<F>) return F::unit_steps;
  return 1;
}();

// Rows up to which the machine's own prefetcher follows a single pass over a group: not where a step takes long.
template <class F>
constexpr int quick_rows = std::is_base_of_v<Octets, F> ? 0 : by_spans<F> || F::x_per_step == 2 ? 3 : 8;

// Whether gemm.h asks for a tile that fetches so many lines a step: two for a tile that is alone with its group, one
// for tiles that share it, which have half of the most rows or more. A tile that it does not ask for is not compiled;
// if it did ask, it would get one that fetches nothing, with the same sums.
template <class F>
constexpr bool fetches(int rows, int lines) {
  return lines == 1 ? rows >= (max_rows<F> + 1) / 2 : rows > quick_rows<F> || rows > rows_of_two_panels;
}

template <class F, int lines, int M = max_rows<F>>
INLINE void tile_fetching(int rows, const Work<F>& work) {
  if constexpr (M > 1) {
    if (rows < M) return tile_fetching<F, lines, M - 1>(rows, work);
  }
  constexpr int fetched = fetches<F>(M, lines) ? lines : 0;
  if constexpr (by_spans<F>) {
    constexpr int P = tile_width<F>(M);
    if (work.spans.inputs == max_span) return tile_of_spans<F, M, P, fetched, max_span>(work);
    tile_of_spans<F, M, P, fetched, max_span / 2>(work);
  } else {
    tile<F, M, tile_width<F>(M), fetched>(work);
  }
}

// A tile of `rows` ≤ max_rows and of as many panels as `tile_width` says.
template <class F>
INLINE void run_tile(int rows, const Work<F>& work) {
  if constexpr (has_own_tile<F>) {
    F::run(rows, work);
  } else {
    switch (work.ahead.lines) {
      case 1: return tile_fetching<F, 1>(rows, work);
      case 2: return tile_fetching<F, 2>(rows, work);
    }
    tile_fetching<F, 0>(rows, work);
  }
}

}  // namespace inflight::INFLIGHT_ISA
