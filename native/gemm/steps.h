// One step of sums of products over a tile, for each way to hold weights and x.
#pragma once
#include "isa/dots.h"
#include "isa/float16.h"
#include "isa/simd.h"

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

// Weights as unsigned bytes (their signed value + 128) by x as signed ones, four to a lane; or, `weights_signed`,
// signed bytes as they are by x as unsigned ones. Sums are whole numbers, so they are exact in any order. What the 128
// adds is 128 · Σ x of the row and is taken off at the end (gemm.h). `lay` puts a row of x's bytes into steps; where
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
      const std::uint32_t four = x(m, i);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n)
        sums[m][n] = weights_signed ? dot4(sums[m][n], all(four), w[n]) : dot4_by_one(sums[m][n], w[n], four);
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
      const std::int16_t swapped[4] = {q[0], q[2], q[1], q[3]};
      std::memcpy(to + 2 * s, swapped, 8);
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

// Weights and x both as signed bytes, where the machine's dot product takes no others: BytesByBytes adds there to each
// sum what makes up for the sign.
struct SignedBytes {
  using X = x_lane;
  using Sum = vi;
  static constexpr int x_per_step = 1, values_per_step = 4;
  template <int M, int N, class Rows>
  INLINE static void step(vi (&sums)[M][N], const vu (&w)[N], const Rows& x, std::int64_t i) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const std::uint32_t four = x(m, i);
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) sums[m][n] = dot4_of_signed_by_one(sums[m][n], w[n], four);
    }
  }
};

// The kinds for bf16 and for int8 on this machine.
using Halves = Either<has_bf16_dot, PairsByPairs, PairsByFloats>::type;
template <bool weights_signed = false>
using Bytes = typename Either<has_int8_dot, BytesByBytes<weights_signed>, BytesByHalves<weights_signed>>::type;

}  // namespace inflight::INFLIGHT_ISA
