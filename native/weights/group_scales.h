// float32 weights → codes of 4 or 8 bits for each group of inputs: of 4 bits with a scale and an offset by a search, of
// 8 with one scale, by the largest.
//
// The rules are those of backends/int4.py and int8.py, bit for bit on every instruction set: lanes are outputs, so each
// sum is one chain in rising k, and no multiply-add is fused.
#pragma once
#include "gemm/quantize.h"
#include "isa/float16.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

constexpr int tried_steps = 9;  // a span's range as 14, 14¼ … 16 steps

// A vector of outputs over a span: values[k · 32].
struct SpanSearch {
  vf least, inverse, steps;  // the smallest weight, 1 / the range, and as how many steps it is taken
  vf scale, offset;          // of codes from -8 on
  vi used;                   // all ones in lanes that can be scaled

  INLINE vf units(vf x) const { return (vf)((vu)((x - least) * inverse) & (vu)used); }
  INLINE static vf code(vf units, vf steps) {
    const vf magic = all(12582912.0f);  // 1.5 · 2²³: adding it leaves the nearest integer in the low bits
    return min((units * steps + magic) - magic, all(15.0f)) - all(8.0f);
  }
};

INLINE SpanSearch search(const float* values, std::int64_t inputs) {
  vu most{};
  vf least = load<vf>(values), largest = least;
  for (std::int64_t k = 0; k < inputs; ++k) {
    const vf x = load<vf>(values + k * group_lanes);
    most = max(most, (vu)x & 0x7fffffffu);
    least = min(least, x), largest = max(largest, x);
  }
  least += all(0.0f);  // never -0
  const vf range = largest - least;
  const vi finite = (most < infinite_bits) & (((vu)range & 0x7fffffffu) < infinite_bits);
  const vi used = finite & (range >= all(min_quantized));
  SpanSearch found{least, all(1.0f) / (used ? range : all(1.0f)), {}, {}, {}, used};
  alignas(64) float units[max_group * lanes];
  vf total{};
  for (std::int64_t k = 0; k < inputs; ++k) {
    const vf unit = found.units(load<vf>(values + k * group_lanes));
    store(units + k * lanes, unit);
    total += unit;
  }
  const vf count = all(static_cast<float>(inputs));
  vf best = all(-1.0f), slope{}, centre{};
  for (int i = 0; i < tried_steps; ++i) {
    const vf steps = all(14.0f + 0.25f * static_cast<float>(i));
    vf together{}, squares{}, products{};
    for (std::int64_t k = 0; k < inputs; ++k) {
      const vf unit = load<vf>(units + k * lanes), code = SpanSearch::code(unit, steps);
      together += code;
      squares += code * code;
      products += unit * code;
    }
    const vf common = count * products - total * together;
    const vf fitted = common / max(count * squares - together * together, all(1.0f)), gain = fitted * common;
    const vi better = gain > best;
    best = better ? gain : best;
    slope = better ? fitted : slope;
    centre = better ? (total - fitted * together) / count : centre;
    found.steps = better ? steps : found.steps;
  }
  found.scale = used ? slope * range : finite ? vf{} : all(__builtin_nanf(""));
  found.offset = finite ? least + (used ? centre * range : vf{}) : vf{};
  return found;
}

// Of 8 bits: values → whole numbers of `scale`, before they are rounded.
struct SpanScales {
  vf scale, inverse;
  vi used;

  INLINE vf units(vf x) const { return (vf)((vu)(x * inverse) & (vu)used); }
};

INLINE SpanScales scales_of(const float* values, std::int64_t inputs) {
  vu most{};
  for (std::int64_t k = 0; k < inputs; ++k) most = max(most, (vu)load<vf>(values + k * group_lanes) & 0x7fffffffu);
  std::uint32_t min_bits;
  std::memcpy(&min_bits, &min_quantized, 4);
  const vi finite = most < infinite_bits, used = finite & (most >= min_bits);
  const vf largest = used ? (vf)most : all(1.0f);
  return {used ? largest / 127.0f : finite ? vf{} : all(__builtin_nanf("")), all(127.0f) / largest, used};
}

// The units of an output: a power of two, by the bits of the largest of what is held in them.
struct Units {
  float factor, inverse;  // inverse 0: there is nothing to hold, and the factor is 0 or NaN

  INLINE explicit Units(std::uint32_t most) : factor(0.0f), inverse(0.0f) {
    if (most >= infinite_bits) {
      factor = __builtin_nanf("");
    } else if (of_bits(most) >= min_quantized) {
      const std::uint32_t exponent = most >> 23;  // the factor is 2^(exponent − 141): the largest will be in [2¹⁴, 2¹⁵)
      factor = of_bits((exponent - 14) << 23), inverse = of_bits((268 - exponent) << 23);
    }
  }
  INLINE std::uint16_t held(float scale) const { return inverse != 0.0f ? to_f16(scale * inverse) : std::uint16_t{0}; }
};

// Numbers of an output's spans, at a stride of `stride`, their scales and behind them maybe as many offsets → float16
// in units of a power of two, which is returned. A span's have a stride of `to_stride`, its offset 32 behind its scale.
INLINE float hold_scales(const float* numbers, std::int64_t spans, bool offsets, std::int64_t stride, std::uint16_t* to,
                         std::int64_t to_stride) {
  std::uint32_t most = 0;
  for (std::int64_t s = 0; s < (offsets ? 2 * spans : spans); ++s) {
    std::uint32_t bits;
    std::memcpy(&bits, numbers + s * stride, 4);
    bits &= 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  const Units units(most);
  for (std::int64_t s = 0; s < spans; ++s) {
    to[s * to_stride] = units.held(numbers[s * stride]);
    if (offsets) to[s * to_stride + group_lanes] = units.held(numbers[(spans + s) * stride]);
  }
  return units.factor;
}

}  // namespace inflight::INFLIGHT_ISA
