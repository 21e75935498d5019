// float32 weights → codes of 4 or 8 bits with one scale for each group of inputs, symmetric: of 4 bits by a search for the
// scale, of 8 by the largest.
//
// Knows the rules of backends/int4.py and int8.py and keeps to them bit for bit on every instruction set: lanes are outputs,
// so each sum is one chain in rising k, and nothing is fused.
#pragma once
#include "quantize.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

constexpr int tried_steps = 17;  // a span's largest weight at 7, 7⅛ … 9 steps below zero

// A vector of outputs over a span: values[k · 32], zeros past the last input.
struct SpanSearch {
  vf largest, steps, scale;  // the largest weight, sign and all; how many steps it is given; what a step then is worth
  vi used;                   // all ones in lanes that can be scaled

  INLINE vf units(vf x) const { return (vf)((vu)(x * (all(1.0f) / largest)) & (vu)used); }
  INLINE static vf code(vf units, vf steps) {
    const vf magic = all(12582912.0f);  // 1.5 · 2²³: adding it leaves the nearest integer in the low bits
    return min(max((units * -steps + magic) - magic, all(-8.0f)), all(7.0f));
  }
};

INLINE SpanSearch search(const float* values, std::int64_t inputs) {
  vu most{};
  vf largest{};
  for (std::int64_t k = 0; k < inputs; ++k) {
    const vf x = load<vf>(values + k * group_lanes);
    const vu bits = (vu)x & 0x7fffffffu;
    largest = bits > most ? x : largest;
    most = max(most, bits);
  }
  std::uint32_t least_bits;
  std::memcpy(&least_bits, &least_quantized, 4);
  const vi finite = most < infinite_bits, used = finite & (most >= least_bits);
  SpanSearch found{used ? largest : all(1.0f), {}, {}, used};
  alignas(64) float units[most_group * lanes];
  const vf inverse = all(1.0f) / found.largest;
  for (std::int64_t k = 0; k < inputs; ++k)
    store(units + k * lanes, (vf)((vu)(load<vf>(values + k * group_lanes) * inverse) & (vu)used));
  vf best = all(-1.0f), fitted{};
  for (int i = 0; i < tried_steps; ++i) {
    const vf steps = all(7.0f + 0.125f * static_cast<float>(i));
    vf product{}, square{};
    for (std::int64_t k = 0; k < inputs; ++k) {
      const vf unit = load<vf>(units + k * lanes), code = SpanSearch::code(unit, steps);
      product += unit * code;
      square += code * code;
    }
    const vf scale = product / max(square, all(1.0f)), gain = product * scale;
    const vi better = gain > best;
    best = better ? gain : best;
    fitted = better ? scale : fitted;
    found.steps = better ? steps : found.steps;
  }
  found.scale = used ? fitted * found.largest : finite ? vf{} : all(__builtin_nanf(""));
  return found;
}

// The same in 8 bits: values → whole numbers of `scale`, before they are rounded.
struct SpanScales {
  vf scale, inverse;
  vi used;

  INLINE vf units(vf x) const { return (vf)((vu)(x * inverse) & (vu)used); }
};

INLINE SpanScales scales_of(const float* values, std::int64_t inputs) {
  vu most{};
  for (std::int64_t k = 0; k < inputs; ++k) most = max(most, (vu)load<vf>(values + k * group_lanes) & 0x7fffffffu);
  std::uint32_t least_bits;
  std::memcpy(&least_bits, &least_quantized, 4);
  const vi finite = most < infinite_bits, used = finite & (most >= least_bits);
  const vf largest = used ? (vf)most : all(1.0f);
  return {used ? largest / 127.0f : finite ? vf{} : all(__builtin_nanf("")), all(127.0f) / largest, used};
}

// The units of an output: a power of two, by the bits of the largest of what is held in them.
struct Units {
  float factor, inverse;  // inverse 0: there is nothing to hold, and the factor is 0 or NaN

  INLINE explicit Units(std::uint32_t most) : factor(0.0f), inverse(0.0f) {
    if (most >= infinite_bits) {
      factor = __builtin_nanf("");
    } else if (of_bits(most) >= least_quantized) {
      const std::uint32_t exponent = most >> 23;  // the factor is 2^(exponent − 141): the largest will be in [2¹⁴, 2¹⁵)
      factor = of_bits((exponent - 14) << 23), inverse = of_bits((268 - exponent) << 23);
    }
  }
  INLINE std::uint16_t held(float scale) const { return inverse != 0.0f ? to_f16(scale * inverse) : std::uint16_t{0}; }
};

// Scales of an output's spans, `stride` apart → float16 in units of a power of two, which is returned.
INLINE float hold_scales(const float* scales, std::int64_t spans, std::int64_t stride, std::uint16_t* to,
                         std::int64_t to_stride) {
  std::uint32_t most = 0;
  for (std::int64_t s = 0; s < spans; ++s) {
    std::uint32_t bits;
    std::memcpy(&bits, scales + s * stride, 4);
    bits &= 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  const Units units(most);
  for (std::int64_t s = 0; s < spans; ++s) to[s * to_stride] = units.held(scales[s * stride]);
  return units.factor;
}

}  // namespace inflight::INFLIGHT_ISA
