// A span of sums of products over a tile: weights of 4 or 8 bits with a scale for each 16 or 32 inputs.
#pragma once
#include "gemm/steps.h"
#include "isa/dots.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

// Weights as whole numbers of 4 or 8 bits, in steps of a span each (types.h). x of a span: the number that its sums
// begin with (`first`), its bytes, the scale of its 32 inputs, and Σ x times that. `add` forms a span's sums of whole
// numbers and leaves x behind the bytes; they are then added up in float32, times the scales of both sides. Codes of 4
// bits are unpacked once for all rows, four to a lane of each half of a byte. near() is called once for each line of
// codes.

// The dot products of a span. What they meet is bytes that have 128 added, as they are in memory, or signed ones.
using SpanDot = Either<has_signed_dot_alone, SignedBytes, Bytes<>>::type;
INLINE vu as_met(vu bytes) { return has_signed_dot_alone ? bytes ^ 0x80808080u : bytes; }
INLINE std::int32_t from_added(std::int32_t sum) { return has_signed_dot_alone ? 0 : -128 * sum; }

// What the sums begin with where linear codes are met as they are, from 0 to 15: what code 0 stands for, times Σ x.
INLINE std::int32_t from_code_0(std::int32_t sum, const ByteTable& meanings) { return sum * (meanings.first - 128); }

// Met by int8's dot products: linear codes as they are, others looked up, with 128 added as in int8.
struct NibblesByBytes {
  using Dot = SpanDot;
  using X = Dot::X;
  using Sum = vf;
  static constexpr int x_per_step = Dot::x_per_step, values_per_step = 4, inputs_per_line = 8;
  template <int lines, int M, int N, class Rows, class Near>
  INLINE static void add(vi (&sums)[M][N], const char* codes, const ByteTable& meanings, Rows& x, const Near& near) {
    const auto as_it_is = [](vu w) __attribute__((always_inline)) { return w; };
    if (meanings.linear) {
      add_bytes<lines>(sums, codes, as_it_is, x, near);
    } else {
      ByteTable met = meanings;
      met.table = as_met(met.table);
      add_bytes<lines>(sums, codes, met, x, near);
    }
  }
  INLINE static std::int32_t first(std::int32_t sum, const ByteTable& meanings) {
    return meanings.linear ? from_code_0(sum, meanings) : from_added(sum);
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

// For machines without that dot product, but with one that multiplies bytes in pairs and adds up in 16 bits. There
// linear codes are met as they are, from 0 to 15: a span of 32 fits. Others by their magnitude, the sign given to x:
// one step fits.
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
  using Dot = SpanDot;
  using X = Dot::X;
  using Sum = vf;
  static constexpr int x_per_step = Dot::x_per_step, values_per_step = 4, inputs_per_line = 4;
  template <int lines, int M, int N, class Rows, class Near>
  INLINE static void add(vi (&sums)[M][N], const char* codes, const ByteTable&, Rows& x, const Near& near) {
#pragma GCC unroll 16
    for (int line = 0; line < lines; ++line, codes += group_lanes * 4) {
      vu w[N];
#pragma GCC unroll 16
      for (int n = 0; n < N; ++n) w[n] = as_met(load<vu>(codes + n * sizeof(vu)));
      near(), Dot::template step<M, N>(sums, w, x, line);
    }
    x.advance(lines * x_per_step);
  }
  INLINE static std::int32_t first(std::int32_t sum, const ByteTable&) { return from_added(sum); }
};

// Whether weights are codes in spans.
template <class F>
constexpr bool by_spans = requires { F::inputs_per_line; };

// x of a span of inputs, in lanes.
template <class F>
constexpr std::int64_t x_lanes_of(std::int64_t inputs) {
  return inputs / 4 * F::x_per_step + 3;
}

}  // namespace inflight::INFLIGHT_ISA
