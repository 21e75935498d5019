// float32 → int8 with one scale for neighbouring numbers: 32 activations of a token, a group of an output's weights, a
// position's key or value of one head.
//
// Symmetric: value ≈ q · scale with scale = largest magnitude / 127 and q = nearest(value · 127 / largest), ties to
// even, hence −127 … 127. The same bits on every instruction set and in numpy (backends/int8.py). A row without a
// number above 2⁻¹⁰⁰ is all zeros with scale 0; one with a NaN or an infinity has scale NaN, so that what it yields is
// seen as broken.
#pragma once
#include <utility>

#include "isa/float16.h"
#include "isa/simd.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

constexpr float min_quantized = 0x1p-100f;
constexpr std::uint32_t infinite_bits = 0x7f800000u;  // from here on: infinity, then NaN

struct Scale {
  float scale, inverse;
};

INLINE vf load_value(const float* from) { return load<vf>(from); }
INLINE vf load_value(const std::uint16_t* from) { return load_bf16(from); }

// body(values, at, many) over `count` values, a vector at a time; the last one is filled up with zeros.
template <class Value, class Body>
INLINE void by_vectors(const Value* from, std::int64_t count, Body&& body) {
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) body(load_value(from + i), i, lanes);
  if (i < count) {
    Value rest[lanes] = {};
    std::memcpy(rest, from + i, (count - i) * sizeof(Value));
    body(load_value(rest), i, static_cast<int>(count - i));
  }
}

// The bits of the largest magnitude: as whole numbers they stand in the order of the floats, with NaN above all.
template <class Value>
INLINE std::uint32_t largest_bits(const Value* from, std::int64_t count) {
  vu most[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes)
    for (int j = 0; j < 4; ++j) most[j] = max(most[j], (vu)load_value(from + i + j * lanes) & 0x7fffffffu);
  by_vectors(from + i, count - i, [&](vf x, std::int64_t, int) { most[0] = max(most[0], (vu)x & 0x7fffffffu); });
  return largest(max(max(most[0], most[1]), max(most[2], most[3])));
}

INLINE Scale scale_of(std::uint32_t bits) {
  const float largest = of_bits(bits);
  if (bits >= infinite_bits) return {__builtin_nanf(""), 0.0f};
  if (largest < min_quantized) return {0.0f, 0.0f};
  return {largest / 127.0f, 127.0f / largest};
}

// Values → bytes; returns their sum. With scale NaN the bytes are 0.
template <class Value>
INLINE std::int32_t quantize(const Value* from, std::int64_t count, const Scale& scale, std::int8_t* to) {
  if (scale.inverse == 0.0f) {
    std::memset(to, 0, count);
    return 0;
  }
  const vf magic = all(12582912.0f);  // 1.5 · 2²³ leaves the nearest integer in the low bits
  const vf inverse = all(scale.inverse);
  vi sums{};
  by_vectors(from, count, [&](vf x, std::int64_t at, int many) {
    const vi q = (vi)(x * inverse + magic) - (vi)magic;
    sums += q;
    const vb bytes = low_bytes(q);
    std::memcpy(to + at, &bytes, many);
  });
  return sum(sums);
}

// One stage of butterflies within a vector: of two lanes at a distance of `distance` the sum, then the difference.
template <int distance, int... at>
INLINE vf butterflies(vf x, std::integer_sequence<int, at...>) {
  const vf other = __builtin_shufflevector(x, x, (at ^ distance)...);
  return other + (vf)((vu)x ^ vu{(at & distance ? 0x80000000u : 0u)...});
}

// A head's `width` numbers, in place → a Walsh-Hadamard transform of each run of as many as the largest power of two
// that divides the width, so that one large channel is spread over all that share its scale (backends/channel_mixing.py
// has the rule). Scaled by powers of two, of keys and queries together 1 / run, so q · k stays. Behind `width` there is
// room for a vector's rest.
INLINE void mix(float* x, std::int64_t width, bool is_query) {
  const std::int64_t run = width & -width;
  const int stages = __builtin_ctzll(run);
  const vf factor = all(1.0f / static_cast<float>(1 << (stages + is_query) / 2));
  constexpr auto at = std::make_integer_sequence<int, lanes>();
  for (std::int64_t i = 0; i < width; i += lanes) {
    vf v = load<vf>(x + i);
    if (run >= 2) v = butterflies<1>(v, at);
    if (run >= 4) v = butterflies<2>(v, at);
    if constexpr (lanes >= 8)
      if (run >= 8) v = butterflies<4>(v, at);
    if constexpr (lanes >= 16)
      if (run >= 16) v = butterflies<8>(v, at);
    store(x + i, run <= lanes ? v * factor : v);
  }
  for (std::int64_t distance = lanes; distance < run; distance *= 2) {
    const vf by = 2 * distance == run ? factor : all(1.0f);
    for (std::int64_t i = 0; i < width; i = (i + lanes) & distance ? i + lanes + distance : i + lanes) {
      const vf a = load<vf>(x + i), b = load<vf>(x + i + distance);
      store(x + i, (a + b) * by);
      store(x + i + distance, (a - b) * by);
    }
  }
}

inline __attribute__((noinline)) void mix_channels(float* x, std::int64_t width, bool is_query) {
  mix(x, width, is_query);
}

// The same of a whole span of activations, as queries are, that meet weights mixed as keys are (GroupCodes::mix).
template <class Value>
INLINE void mix_span(const Value* from, float* to) {
  for (int i = 0; i < max_span; i += lanes) store(to + i, load_value(from + i));
  mix(to, max_span, true);
}

}  // namespace inflight::INFLIGHT_ISA
