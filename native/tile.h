// The inner kernel: a tile of sums of products, rows of x against one or two panels of 16 outputs.
//
// Matrix products are made of it; attention takes the steps alone (attention_rows.h). It knows pointers and strides,
// nothing of what they mean. Each sum is one chain of multiply-adds over the steps in rising order, whatever the tile's
// shape: this is where batch invariance comes from.
#pragma once
#include "simd.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

using x_lane = std::uint32_t __attribute__((may_alias, aligned(2)));

// How weights and x are held, and one step over a tile. Its loops are unrolled by pragma, early enough for the compiler
// to see that the sums can stay in registers. x(m, i) is the i-th X of row m, `Sum` the type of the sums.
struct PairsByPairs {  // bf16 · bf16 with the machine's dot product
  using X = x_lane;
  using Sum = vf;
  static constexpr int x_per_step = 1, values_per_step = 2;
  template <int M, int N, class Rows>
  INLINE static void step(vf (&sums)[M][N], const vu (&w)[N], const Rows& x, std::int64_t i) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const vu pair = all(static_cast<std::uint32_t>(x(m, i)));
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) sums[m][n] = dot2(sums[m][n], w[n], pair);
    }
  }
};

struct PairsByFloats {  // bf16 · float32 (x converted beforehand), for machines without that dot product
  using X = float;
  using Sum = vf;
  static constexpr int x_per_step = 2, values_per_step = 2;
  template <int M, int N, class Rows>
  INLINE static void step(vf (&sums)[M][N], const vu (&w)[N], const Rows& x, std::int64_t i) {
    vf half[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) half[n] = low(w[n]);
    add(sums, half, x, 2 * i);
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
      if constexpr (is_tight<M>) {  // a mask would take one of 16 registers
        vu upper = w[n] >> 16;
        in_register(upper);
        half[n] = (vf)(upper << 16);
      } else {
        half[n] = high(w[n]);
      }
    }
    add(sums, half, x, 2 * i + 1);
  }

 private:
  // Whether the sums of so many rows leave few registers: then their order is that of the source.
  template <int M>
  static constexpr bool is_tight = lanes < 16 && M > 1 && M + 1 >= tile_tokens;

  template <int M, int N, class Rows>
  INLINE static void add(vf (&sums)[M][N], const vf (&half)[N], const Rows& x, std::int64_t i) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const vf value = all(x(m, i));
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
        sums[m][n] = fma(half[n], value, sums[m][n]);
        if constexpr (is_tight<M>) in_register(sums[m][n]);
      }
    }
  }
};

struct Floats {  // float32 · float32
  using X = float;
  using Sum = vf;
  static constexpr int x_per_step = 1, values_per_step = 1;
  template <int M, int N, class Rows>
  INLINE static void step(vf (&sums)[M][N], const vu (&w)[N], const Rows& x, std::int64_t i) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const vf value = all(x(m, i));
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) sums[m][n] = fma((vf)w[n], value, sums[m][n]);
    }
  }
};

template <bool yes, class A, class B>
struct Either {
  using type = A;
};
template <class A, class B>
struct Either<false, A, B> {
  using type = B;
};

// Weights as unsigned bytes (their signed value + 128) by x as signed ones, four to a lane; or, `weights_signed`, signed
// bytes as they are by x as unsigned ones. Sums are whole numbers, so they are exact in any order. What the 128 adds is
// 128 · Σ x of the row and is taken off at the end (gemm.h). `lay` puts a row of x's bytes into steps; where
// these are longer, the bytes may be the end of the place itself.
template <bool weights_signed>
struct BytesByBytes {  // with the machine's dot product
  using X = x_lane;
  using Sum = vi;
  using Byte = typename Either<weights_signed, std::uint8_t, std::int8_t>::type;
  static constexpr int x_per_step = 1, values_per_step = 4;
  INLINE static void lay(const Byte* bytes, std::int64_t steps, X* to) { std::memcpy(to, bytes, 4 * steps); }
  template <int M, int N, class Rows>
  INLINE static void step(vi (&sums)[M][N], const vu (&w)[N], const Rows& x, std::int64_t i) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const vu four = all(static_cast<std::uint32_t>(x(m, i)));
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n)
        sums[m][n] = weights_signed ? dot4(sums[m][n], four, w[n]) : dot4(sums[m][n], w[n], four);
    }
  }
};

template <bool weights_signed>
struct BytesByHalves {  // x widened beforehand: values 0 and 2 of a step in one lane, 1 and 3 in the next
  using X = x_lane;
  using Sum = vi;
  using Byte = typename Either<weights_signed, std::uint8_t, std::int8_t>::type;
  static constexpr int x_per_step = 2, values_per_step = 4;
  INLINE static void lay(const Byte* bytes, std::int64_t steps, X* to) {
    for (std::int64_t s = 0; s < steps; ++s) {
      Byte q[4];
      std::memcpy(q, bytes + 4 * s, 4);
      const std::int16_t apart[4] = {q[0], q[2], q[1], q[3]};
      std::memcpy(to + 2 * s, apart, 8);
    }
  }
  INLINE static vu even(vu w) { return weights_signed ? (vu)((vs)(w << 8) >> 8) : w & 0x00ff00ffu; }
  INLINE static vu odd(vu w) { return weights_signed ? (vu)((vs)w >> 8) : w >> 8 & 0x00ff00ffu; }
  template <int M, int N, class Rows>
  INLINE static void step(vi (&sums)[M][N], const vu (&w)[N], const Rows& x, std::int64_t i) {
    vu half[N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) half[n] = even(w[n]);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const vu pair = all(static_cast<std::uint32_t>(x(m, 2 * i)));
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
        sums[m][n] = wrapping_sum(sums[m][n], dot2_of_halves(half[n], pair));
        in_register(sums[m][n]);
      }
    }
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) half[n] = odd(w[n]);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const vu pair = all(static_cast<std::uint32_t>(x(m, 2 * i + 1)));
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) {
        sums[m][n] = wrapping_sum(sums[m][n], dot2_of_halves(half[n], pair));
        in_register(sums[m][n]);
      }
    }
  }
};

// The kinds for bf16 and for int8 on this machine.
using Halves = Either<has_bf16_dot, PairsByPairs, PairsByFloats>::type;
template <bool weights_signed = false>
using Bytes = typename Either<has_int8_dot, BytesByBytes<weights_signed>, BytesByHalves<weights_signed>>::type;

// Weights as whole numbers of 4 or 8 bits, in steps of a span each (types.h). x of a span: the number that its sums
// begin with (`first`), its bytes, the scale of its 32 inputs, and Σ x times that. `add` forms a span's sums of whole
// numbers and leaves x behind the bytes; they are then added up in float32, times the scales of both sides. Codes of 4
// bits are unpacked once for all rows, four to a lane of each half of a byte. near() is called once for each line of
// codes.

// What the sums begin with where linear codes are met as they are, from 0 to 15: what code 0 stands for, times Σ x.
INLINE std::int32_t from_code_0(std::int32_t sum, const ByteTable& meanings) { return sum * (meanings.first - 128); }

// Met by int8's dot products: linear codes as they are, others looked up, with 128 added as in int8.
struct NibblesByBytes {
  using Dot = Bytes<>;
  using X = Dot::X;
  using Sum = vf;
  static constexpr int x_per_step = Dot::x_per_step, values_per_step = 4, inputs_per_line = 8;
  template <int lines, int M, int N, class Rows, class Near>
  INLINE static void add(vi (&sums)[M][N], const char* codes, const ByteTable& meanings, Rows& x, const Near& near) {
    const auto as_it_is = [](vu w) __attribute__((always_inline)) { return w; };
    if (meanings.linear) {
      add_bytes<lines>(sums, codes, as_it_is, x, near);
    } else {
      add_bytes<lines>(sums, codes, meanings, x, near);
    }
  }
  INLINE static std::int32_t first(std::int32_t sum, const ByteTable& meanings) {
    return meanings.linear ? from_code_0(sum, meanings) : -128 * sum;
  }

 private:
  template <int lines, int M, int N, class Met, class Rows, class Near>
  INLINE static void add_bytes(vi (&sums)[M][N], const char* codes, const Met& met, Rows& x, const Near& near) {
    const auto step = [&](int shift, std::int64_t i) __attribute__((always_inline)) {
      vu w[N];
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) w[n] = met(load<vu>(codes + n * sizeof(vu)) >> shift & 0x0f0f0f0fu);
      Dot::template step<M, N>(sums, w, x, i);
    };
#pragma GCC unroll 16
    for (int line = 0; line < lines; ++line, codes += group_lanes * 4)
      near(), step(0, 2 * line), step(4, 2 * line + 1);
    x.advance(2 * lines * x_per_step);
  }
};

// For machines without that dot product, but with one that multiplies bytes in pairs and adds up in 16 bits. There linear
// codes are met as they are, from 0 to 15: a span of 32 fits. Others by their magnitude, the sign given to x: one step fits.
struct NibblesByPairs {
  using X = x_lane;
  using Sum = vf;
  static constexpr int x_per_step = 1, values_per_step = 4, inputs_per_line = 8;
  INLINE static vi add_up(vs pairs) { return dot2_of_halves((vu)pairs, all(0x00010001u)); }

  template <int lines, int M, int N, class Rows, class Near>
  INLINE static void add(vi (&sums)[M][N], const char* codes, const ByteTable& meanings, Rows& x, const Near& near) {
    if (!meanings.linear) return add_looked_up<lines>(sums, codes, meanings, x, near);
    vs pairs[M][N] = {};
    const auto step = [&](int shift, std::int64_t i) __attribute__((always_inline)) {
      vu w[N];
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) w[n] = load<vu>(codes + n * sizeof(vu)) >> shift & 0x0f0f0f0fu;
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const vu four = all(static_cast<std::uint32_t>(x(m, i)));
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) {
          pairs[m][n] += pairs_of_bytes(w[n], four);
          in_register(pairs[m][n]);
        }
      }
    };
#pragma GCC unroll 16
    for (int line = 0; line < lines; ++line, codes += group_lanes * 4)
      near(), step(0, 2 * line), step(4, 2 * line + 1);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const vi first = (vi)all(static_cast<std::uint32_t>(x(m, -1)));  // read here: until then it would take registers
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) sums[m][n] = first + add_up(pairs[m][n]);
    }
    x.advance(2 * lines);
  }
  INLINE static std::int32_t first(std::int32_t sum, const ByteTable& meanings) {
    return meanings.linear ? from_code_0(sum, meanings) : 0;
  }

 private:
  template <int lines, int M, int N, class Rows, class Near>
  INLINE static void add_looked_up(vi (&sums)[M][N], const char* codes, const ByteTable& meanings, Rows& x,
                                   const Near& near) {
    const auto step = [&](int shift, std::int64_t i) __attribute__((always_inline)) {
      vu w[N];
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n)
        w[n] = meanings(load<vu>(codes + n * sizeof(vu)) >> shift & 0x0f0f0f0fu) ^ 0x80808080u;
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const vu four = all(static_cast<std::uint32_t>(x(m, i)));
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) {
          sums[m][n] += add_up(pairs_of_bytes(magnitudes(w[n]), turned(four, w[n])));
          in_register(sums[m][n]);
        }
      }
    };
#pragma GCC unroll 16
    for (int line = 0; line < lines; ++line, codes += group_lanes * 4)
      near(), step(0, 2 * line), step(4, 2 * line + 1);
    x.advance(2 * lines);
  }
};

using Nibbles = Either<has_int8_dot || !has_byte_pairs, NibblesByBytes, NibblesByPairs>::type;

// Weights of 8 bits: their signed value + 128, which is taken off before a block's sums begin.
struct Octets {
  using Dot = Bytes<>;
  using X = Dot::X;
  using Sum = vf;
  static constexpr int x_per_step = Dot::x_per_step, values_per_step = 4, inputs_per_line = 4;
  template <int lines, int M, int N, class Rows, class Near>
  INLINE static void add(vi (&sums)[M][N], const char* codes, const ByteTable&, Rows& x, const Near& near) {
#pragma GCC unroll 16
    for (int line = 0; line < lines; ++line, codes += group_lanes * 4) {
      vu w[N];
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) w[n] = load<vu>(codes + n * sizeof(vu));
      near(), Dot::template step<M, N>(sums, w, x, line);
    }
    x.advance(lines * x_per_step);
  }
  INLINE static std::int32_t first(std::int32_t sum, const ByteTable&) { return -128 * sum; }
};

template <class A, class B>
constexpr bool same = false;
template <class A>
constexpr bool same<A, A> = true;

template <class F>
constexpr bool by_spans = false;
template <>
constexpr bool by_spans<Nibbles> = true;
template <>
constexpr bool by_spans<Octets> = true;

// x of a span of inputs, in lanes.
template <class F>
constexpr std::int64_t x_lanes_of(std::int64_t inputs) {
  return inputs / 4 * F::x_per_step + 3;
}

// Rows of x that are `stride` bytes apart, three to a pointer: an address can say one and two strides by itself, and a
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

// Memory to bring near while a tile computes: `lines` cache lines a step from `at` on, up to as many as a step reads. The
// number is a constant of the loop, because deciding it at every step costs 5 to 10 % of the dot products.
struct Ahead {
  const void* at = nullptr;
  int lines = 0;
};

// One tile's work: `steps` steps of a group from `w` on, outputs from `lane` on, by rows that stand `x_stride` apart. Sums
// are [M][P · 16] of F::Sum's lanes, group_lanes of them a row.
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

// The same over spans of so many inputs: each is unpacked once for all rows.
template <class F, int M, int P, int fetched, int inputs>
__attribute__((noinline)) void tile_of_spans(const Work<F>& work) {
  constexpr int N = P * vectors;
  vf sums[M][N];
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) sums[m][n] = work.fresh ? vf{} : load<vf>(work.sums + m * group_lanes + n * lanes);

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
    // Each product is rounded before it is added: the same bits on every instruction set.
    const auto* scales = reinterpret_cast<const std::uint16_t*>(at) + work.lane;
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
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) store(work.sums + m * group_lanes + n * lanes, sums[m][n]);
}

// How many panels of a group a tile of this many rows takes. With one or two rows a single one would wait for its own
// sums.
constexpr int tile_width(int rows) { return rows <= rows_of_two_panels ? 2 : 1; }

// Rows of a tile: over spans fewer, so that their sums in whole numbers and those in float32 both stay in registers.
template <class F>
constexpr int max_rows = by_spans<F> && tile_tokens > 6 ? 6 : tile_tokens;

// Rows up to which the machine's own prefetcher follows a single pass over a group: not where a step takes long.
template <class F>
constexpr int quick_rows = same<F, Octets> ? 0 : by_spans<F> || F::x_per_step == 2 ? 3 : 8;

// Whether gemm.h asks for a tile that fetches so many lines a step: two for a tile that is alone with its group, one for
// tiles that share it, which have half of the most rows or more. A tile that it does not ask for is not compiled; if it
// did ask, it would get one that fetches nothing, with the same sums.
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
    constexpr int P = tile_width(M);
    if (work.spans.inputs == max_span) return tile_of_spans<F, M, P, fetched, max_span>(work);
    tile_of_spans<F, M, P, fetched, max_span / 2>(work);
  } else {
    tile<F, M, tile_width(M), fetched>(work);
  }
}

// A tile of `rows` ≤ max_rows and of as many panels as `tile_width` says.
template <class F>
INLINE void run_tile(int rows, const Work<F>& work) {
  switch (work.ahead.lines) {
    case 1: return tile_fetching<F, 1>(rows, work);
    case 2: return tile_fetching<F, 2>(rows, work);
  }
  tile_fetching<F, 0>(rows, work);
}

}  // namespace inflight::INFLIGHT_ISA
