// Floats of 16 bits, bf16 and float16 ↔ float32: single ones, and vectors of them.
#pragma once
#include "isa/simd.h"

namespace inflight::INFLIGHT_ISA {

// The two values of a bf16 pair, as float32.
INLINE vf low(vu pair) { return (vf)(pair << 16); }
INLINE vf high(vu pair) { return (vf)(pair & 0xffff0000u); }

// float32 → the 16 bits of the nearest bf16 (ties to even; NaN stays NaN), in the low half of each lane.
INLINE vu to_bf16_bits(vf x) {
  const vu bits = (vu)x;
  const vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return (bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16 | 0x40u) : rounded;
}

INLINE void store_bf16(std::uint16_t* to, vf x) { store(to, __builtin_convertvector(to_bf16_bits(x), vh)); }

// The same where speed counts and numbers too small to be normal may become 0.
INLINE void store_bf16_fast(std::uint16_t* to, vf x) {
#if defined(__AVX512BF16__)
  store(to, _mm512_cvtneps_pbh((__m512)x));
#else
  store_bf16(to, x);
#endif
}

INLINE vf load_bf16(const std::uint16_t* from) { return (vf)(__builtin_convertvector(load<vh>(from), vu) << 16); }

INLINE float of_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

INLINE std::uint16_t to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

INLINE float from_bf16(std::uint16_t half) {
  return of_bits(static_cast<std::uint32_t>(half) << 16);
}

INLINE float from_f16(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16, rest = half & 0x7fffu;
  std::uint32_t bits;
  if (rest >= 0x7c00u) {
    bits = sign | 0x7f800000u | (rest & 0x3ffu) << 13;
  } else if (rest >= 0x400u) {
    bits = sign | ((rest << 13) + (112u << 23));
  } else {  // subnormal: rest · 2⁻²⁴, exact in float32
    const float magnitude = static_cast<float>(rest) * 0x1p-24f;
    std::memcpy(&bits, &magnitude, 4);
    bits |= sign;
  }
  return of_bits(bits);
}

INLINE vf load_f16(const std::uint16_t* from) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtph_ps((__m256i)load<vh>(from));
#elif defined(__F16C__)
  return (vf)_mm256_cvtph_ps((__m128i)load<vh>(from));
#elif defined(__aarch64__)
  return (vf)vcvt_f32_f16((float16x4_t)load<vh>(from));
#else
  vf x;
  for (int i = 0; i < lanes; ++i) x[i] = from_f16(from[i]);
  return x;
#endif
}

// To the nearest, ties to even; |x| < 2¹⁶ − 16.
INLINE std::uint16_t to_f16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const std::uint32_t sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  if (rest >= 0x38800000u)
    return static_cast<std::uint16_t>(sign | (rest + 0xfffu + (rest >> 13 & 1u) - (112u << 23)) >> 13);
  const float shifted = of_bits(rest) + 0.5f;  // below 2⁻¹⁴ it is a multiple of 2⁻²⁴, the last place of what 0.5 begins
  std::memcpy(&bits, &shifted, 4);
  return static_cast<std::uint16_t>(sign | (bits - 0x3f000000u));
}

}  // namespace inflight::INFLIGHT_ISA
