// Dot products within a lane, of bf16 and of bytes, and bytes looked up in a table.
//
// Where an instruction set has none, `has_bf16_dot`, `has_int8_dot` and `has_byte_pairs` say so, and products are made
// of others (steps.h, spans.h).
#pragma once
#include "isa/float16.h"
#include "isa/simd.h"

namespace inflight::INFLIGHT_ISA {

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr bool has_bf16_dot = true;
// sums + w.low · x.low + w.high · x.high
INLINE vf dot2(vf sums, vu w, vu x) {
#if defined(__AVX512BF16__)
  return (vf)_mm512_dpbf16_ps((__m512)sums, (__m512bh)w, (__m512bh)x);
#else
  return (vf)vbfdotq_f32((float32x4_t)sums, (bfloat16x8_t)w, (bfloat16x8_t)x);
#endif
}
#else
constexpr bool has_bf16_dot = false;
INLINE vf dot2(vf sums, vu w, vu x) { return fma(high(w), high(x), fma(low(w), low(x), sums)); }
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
constexpr bool has_int8_dot = true;
// sums + Σ of four products of unsigned and signed bytes
INLINE vi dot4(vi sums, vu bytes, vu signed_bytes) {
#if defined(__AVX512VNNI__)
  return (vi)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)bytes, (__m512i)signed_bytes);
#elif defined(__AVXVNNI__)
  return (vi)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)bytes, (__m256i)signed_bytes);
#elif defined(__ARM_FEATURE_MATMUL_INT8)
  return (vi)vusdotq_s32((int32x4_t)sums, (uint8x16_t)bytes, (int8x16_t)signed_bytes);
#else  // both with a sign: bytes as (bytes − 128) + 128. In a tile either of the two is formed once for many products.
  const int8x16_t x = (int8x16_t)signed_bytes;
  const int32x4_t half = vdotq_s32(vdupq_n_s32(0), vdupq_n_s8(64), x), excess = vaddq_s32(half, half);
  return (vi)vaddq_s32(vdotq_s32((int32x4_t)sums, (int8x16_t)(bytes ^ 0x80808080u), x), excess);
#endif
}
#else
constexpr bool has_int8_dot = false;
INLINE vi dot4(vi sums, vu, vu) { return sums; }
#endif

// The same with four signed bytes that are one for all lanes, which NEON takes from a lane of a register.
INLINE vi dot4_by_one(vi sums, vu bytes, std::uint32_t four) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  return (vi)vusdotq_lane_s32((int32x4_t)sums, (uint8x16_t)bytes, (int8x8_t)uint32x2_t{four, 0}, 0);
#else
  return dot4(sums, bytes, all(four));
#endif
}

#if defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool has_signed_dot_alone = true;
// The same of signed bytes on both sides.
INLINE vi dot4_of_signed_by_one(vi sums, vu bytes, std::uint32_t four) {
  return (vi)vdotq_lane_s32((int32x4_t)sums, (int8x16_t)bytes, (int8x8_t)uint32x2_t{four, 0}, 0);
}
#else
constexpr bool has_signed_dot_alone = false;
INLINE vi dot4_of_signed_by_one(vi sums, vu, std::uint32_t) { return sums; }
#endif

// Of sums that pass 32 bits on the way, as instructions for such sums do; what is taken off at the end brings them
// back.
INLINE vi wrapping_sum(vi a, vi b) { return (vi)((vu)a + (vu)b); }

// Σ of the two products of each lane's signed 16-bit halves: exact, where a product of bytes that is added up in 16
// bits (maddubs) would saturate.
INLINE vi dot2_of_halves(vu a, vu b) {
#if defined(__AVX512F__)
  return (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (vi)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
  const int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
  return (vi)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
#else
  const vi low = ((vi)(a << 16) >> 16) * ((vi)(b << 16) >> 16), high = ((vi)a >> 16) * ((vi)b >> 16);
  return low + high;
#endif
}

#if defined(__AVX512BW__) || defined(__AVX2__)
constexpr bool has_byte_pairs = true;
// Σ of the two products of each 16 bits' unsigned and signed bytes. It must fit them.
INLINE vs pairs_of_bytes(vu bytes, vu signed_bytes) {
#if defined(__AVX512BW__)
  return (vs)_mm512_maddubs_epi16((__m512i)bytes, (__m512i)signed_bytes);
#else
  return (vs)_mm256_maddubs_epi16((__m256i)bytes, (__m256i)signed_bytes);
#endif
}
// |w| of each signed byte, 128 of -128; and x with its sign turned where w is negative.
INLINE vu magnitudes(vu w) {
#if defined(__AVX512BW__)
  return (vu)_mm512_abs_epi8((__m512i)w);
#else
  return (vu)_mm256_abs_epi8((__m256i)w);
#endif
}
INLINE vu turned(vu x, vu w) {
#if defined(__AVX512BW__)
  return (vu)_mm512_mask_sub_epi8((__m512i)x, _mm512_movepi8_mask((__m512i)w), _mm512_setzero_si512(), (__m512i)x);
#else
  return (vu)_mm256_sign_epi8((__m256i)x, (__m256i)w);
#endif
}
#else
constexpr bool has_byte_pairs = false;
INLINE vs pairs_of_bytes(vu, vu) { return vs{}; }
INLINE vu magnitudes(vu w) { return w; }
INLINE vu turned(vu x, vu) { return x; }
#endif

// A table of 16 bytes, to be looked up by bytes below 16. linear: it goes on by ones from its first.
struct ByteTable {
  vu table;
  std::int32_t first;
  bool linear = true;

  INLINE explicit ByteTable(const std::uint8_t* bytes) : first(bytes[0]) {
    for (std::size_t at = 0; at < sizeof(vu); at += 16) std::memcpy(reinterpret_cast<char*>(&table) + at, bytes, 16);
    for (int i = 0; i < 16; ++i) linear &= bytes[i] == first + i;
  }
  INLINE vu operator()(vu indices) const {
#if defined(__AVX512BW__)
    return (vu)_mm512_shuffle_epi8((__m512i)table, (__m512i)indices);
#elif defined(__AVX2__)
    return (vu)_mm256_shuffle_epi8((__m256i)table, (__m256i)indices);
#elif defined(__aarch64__)
    return (vu)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)indices);
#else
    std::uint8_t from[16], at[16];
    std::memcpy(from, &table, 16);
    std::memcpy(at, &indices, 16);
    for (std::uint8_t& byte : at) byte = from[byte];
    return load<vu>(at);
#endif
  }
};

}  // namespace inflight::INFLIGHT_ISA
