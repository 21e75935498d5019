// Keys and values in int8: what attention does differently.
//
// They are whole numbers with a scale for each token and head, and stay whole: a row of queries or of probabilities
// becomes whole numbers of 16 bits with one scale, 256 · high + low, and its two rows of bytes meet keys and values by
// the int8 dot product, which reads them as they lie. So they take half the memory of bf16 and as many instructions
// (twice the rows, half the steps). Sums are exact. That product takes one side without signs: of the keys, which are
// stored + 128 (what that adds to a query's sums is known beforehand), and of the probabilities, which have none.
//
// A row is scaled by its own largest number, so its bits depend on nothing but itself.
#pragma once
#include "attention/rows.h"
#include "gemm/quantize.h"
#include "gemm/tile.h"
#include "isa/float16.h"

namespace inflight::INFLIGHT_ISA {

// One query's values → rows `high` and `low` of signed bytes as the product reads them, filled up with zeros to whole
// steps: up to 127 · 256, so that high is at most 127. One with a NaN or an infinity is zeros with scale NaN, one of
// zeros has scale 1, by which a mask of −∞ stays one.
template <class Keys, class Value>
INLINE Split split_query(const Value* from, std::int64_t count, typename Keys::X* high, typename Keys::X* low) {
  constexpr float most = 127 * 256;
  const std::uint32_t bits = largest_bits(from, count);
  const float largest = of_bits(bits);
  const bool broken = bits >= infinite_bits, used = !broken && largest >= min_quantized;
  alignas(64) std::int8_t bytes[x_rows<Keys>][max_head_dim];
  const vf magic = all(12582912.0f), inverse = all(used ? most / largest : 0.0f);  // 1.5 · 2²³: see quantize.h
  vi sums[x_rows<Keys>] = {};
  by_vectors(from, count, [&](vf x, std::int64_t at, int) {
    const vi q = used ? (vi)(x * inverse + magic) - (vi)magic : vi{};
    const vi upper = (q + 128) >> 8, lower = q - (upper << 8);
    sums[0] += upper, sums[1] += lower;
    store(bytes[0] + at, low_bytes(upper));
    store(bytes[1] + at, low_bytes(lower));
  });
  Keys::lay(bytes[0], (count + 3) / 4, high);
  Keys::lay(bytes[1], (count + 3) / 4, low);
  Split result{used ? largest / most : broken ? __builtin_nanf("") : 1.0f, {}};
  for (int i = 0; i < x_rows<Keys>; ++i)
    result.first[i] = -128 * static_cast<std::int32_t>(sum(__builtin_convertvector(sums[i], vf)));
  return result;
}

// One row of probabilities, each times the scale of its position's values; and the largest of each lane, as whole
// numbers in the order of the floats, with NaN above all. Positions never written may have any scale, and have
// probability 0; so a broken value is not seen where its probability has come to 0.
INLINE vu scale_probabilities(const vf (&p)[tile_positions / lanes], const float* const* scales, float* scaled) {
  vu top{};
  for (int i = 0; i < tile_positions / lanes; ++i) {
    const vf x = p[i] * load<vf>(scales[i / vectors] + i % vectors * lanes);
    const vf kept = p[i] == 0.0f ? vf{} : x;
    store(scaled + i * lanes, kept);
    top = max(top, (vu)kept);
  }
  return top;
}

// Four such rows → each two rows of unsigned bytes, and their scales.
template <class Values>
INLINE void split_probabilities(const float* scaled, const vu* tops, int count, typename Values::X* to, float* scales) {
  constexpr float most = 65535;
  const vf4 largest = (vf4)largest_of_four(tops);
  const vf4 inverses = largest >= min_quantized ? most / largest : vf4{}, found = largest / most;
  for (int m = 0; m < count; ++m, scaled += tile_positions) {
    std::uint8_t planes[2][tile_positions];
    constexpr bool in_place = Values::x_per_step == 1;  // the product reads bytes as they are
    auto* high = to + 2 * m * probability_row<Values>;
    auto* low = high + probability_row<Values>;
    auto* upper = in_place ? reinterpret_cast<std::uint8_t*>(high) : planes[0];
    auto* lower = in_place ? reinterpret_cast<std::uint8_t*>(low) : planes[1];
    const vf inverse = all(inverses[m]);
    for (int i = 0; i < tile_positions / lanes; ++i) {
      // 2²³ leaves the nearest integer in the low bits.
      const vi q = (vi)(load<vf>(scaled + i * lanes) * inverse + 8388608.0f);
      store(upper + i * lanes, low_bytes(q >> 8));
      store(lower + i * lanes, low_bytes(q));
    }
    if constexpr (!in_place) Values::lay(upper, tile_positions / 4, high), Values::lay(lower, tile_positions / 4, low);
    scales[m] = found[m];
  }
}

}  // namespace inflight::INFLIGHT_ISA
