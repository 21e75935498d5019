// Vectors of the instruction set at hand, and every place where it shows.
//
// The types are the compiler's vector extensions, so + − × / and comparisons are written as such; what they cannot say
// (fused multiply-add, broadcast, the bf16 and int8 dot products, horizontal sums) is here and nowhere else.
// A multiply-add is fused where `fma` is written and only there (contraction is off).
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE inline __attribute__((always_inline))

namespace inflight::INFLIGHT_ISA {

// tile_tokens: rows of a product's tile, of one panel, or of two up to rows_of_two_panels. query_tokens, query_panels: the
// most of a tile of attention.
#if defined(__AVX512F__)
constexpr int lanes = 16;
constexpr int tile_tokens = 12, rows_of_two_panels = 12;  // 24 sums in 32 registers
constexpr int query_tokens = 6, query_panels = 4;
#elif defined(__AVX2__)
constexpr int lanes = 8;
constexpr int tile_tokens = 6, rows_of_two_panels = 2;  // 12 sums in 16 registers
constexpr int query_tokens = 6, query_panels = 2;
#elif defined(__aarch64__)
constexpr int lanes = 4;
constexpr int tile_tokens = 5, rows_of_two_panels = 0;  // 20 sums in 32 registers
constexpr int query_tokens = 5, query_panels = 1;
#else
constexpr int lanes = 4;
constexpr int tile_tokens = 2, rows_of_two_panels = 0;  // 8 sums in 16 registers
constexpr int query_tokens = 2, query_panels = 1;
#endif
constexpr int vectors = 16 / lanes;              // of a panel

using vf = float __attribute__((vector_size(lanes * 4)));
using vi = std::int32_t __attribute__((vector_size(lanes * 4)));
using vu = std::uint32_t __attribute__((vector_size(lanes * 4)));
using vs = std::int16_t __attribute__((vector_size(lanes * 4)));
using vh = std::uint16_t __attribute__((vector_size(lanes * 2)));
using vb = std::int8_t __attribute__((vector_size(lanes)));
using vd = double __attribute__((vector_size(lanes * 4)));
using vl = std::int64_t __attribute__((vector_size(lanes * 4)));
using vf_half = float __attribute__((vector_size(lanes * 2)));

template <class V>
INLINE V load(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class V>
INLINE void store(void* to, V v) {
  std::memcpy(to, &v, sizeof v);
}

INLINE vu all(std::uint32_t x) { return vu{} + x; }
INLINE vi all(std::int32_t x) { return vi{} + x; }

INLINE vf all(float x) {
#if defined(__AVX512F__)
  return (vf)_mm512_set1_ps(x);
#elif defined(__AVX2__)
  return (vf)_mm256_set1_ps(x);
#else
  return vf{x, x, x, x};
#endif
}

INLINE vd all(double x) {
  vd v;
  for (int i = 0; i < lanes / 2; ++i) v[i] = x;
  return v;
}

// a · b + c, rounded once where the machine can.
INLINE vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

INLINE vd fma(vd a, vd b, vd c) {
#if defined(__AVX512F__)
  return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__)
  return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  return a * b + c;
#endif
}

INLINE vu max(vu a, vu b) { return a > b ? a : b; }
INLINE vf max(vf a, vf b) { return a > b ? a : b; }
INLINE vf min(vf a, vf b) { return a < b ? a : b; }
INLINE vd max(vd a, vd b) { return a > b ? a : b; }

// Horizontal reductions, in one fixed order.
INLINE float sum(vf v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float x[lanes];
  store(x, v);
  for (int n = lanes / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) x[i] += x[i + n];
  return x[0];
#endif
}

INLINE double sum(vd v) {
  double x[lanes / 2];
  store(x, v);
  for (int n = lanes / 4; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) x[i] += x[i + n];
  return x[0];
}

INLINE std::int32_t sum(vi v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32((__m512i)v);
#else
  std::int32_t total = 0;
  for (int lane = 0; lane < lanes; ++lane) total += v[lane];
  return total;
#endif
}

INLINE float largest(vf v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float x[lanes];
  store(x, v);
  for (int n = lanes / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) x[i] = x[i] > x[i + n] ? x[i] : x[i + n];
  return x[0];
#endif
}

INLINE std::uint32_t largest(vu v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epu32((__m512i)v);
#else
  std::uint32_t result = 0;
  for (int i = 0; i < lanes; ++i) result = v[i] > result ? v[i] : result;
  return result;
#endif
}

INLINE bool any_above(vf x, float bound) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(bound), _CMP_GT_OQ) != 0;
#else
  return largest(x) > bound;
#endif
}

INLINE bool any(vi v) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)v, (__m512i)v) != 0;
#elif defined(__AVX2__)
  return _mm256_testz_si256((__m256i)v, (__m256i)v) == 0;
#else
  std::int32_t all = 0;
  for (int i = 0; i < lanes; ++i) all |= v[i];
  return all != 0;
#endif
}

// Bit i tells whether lane i reaches the bound.
INLINE std::uint32_t lanes_from(vf x, float bound) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(bound), _CMP_GE_OQ);
#elif defined(__AVX2__)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)x, _mm256_set1_ps(bound), _CMP_GE_OQ));
#else
  std::uint32_t bits = 0;
  for (int i = 0; i < lanes; ++i) bits |= static_cast<std::uint32_t>(x[i] >= bound) << i;
  return bits;
#endif
}

// The two values of a bf16 pair, as float32.
INLINE vf low(vu pair) { return (vf)(pair << 16); }
INLINE vf high(vu pair) { return (vf)(pair & 0xffff0000u); }

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

// Fix a sum at this point of the program, in a register. Additions of whole numbers have one result in any order, so the
// compiler would form the products of several steps first and add them up later: more values than there are registers.
template <class V>
INLINE void in_register(V& sum) {
#if defined(__x86_64__)
  asm("" : "+v"(sum));
#elif defined(__aarch64__)
  asm("" : "+w"(sum));
#else
  (void)sum;
#endif
}

// Of sums that pass 32 bits on the way, as instructions for such sums do; what is taken off at the end brings them back.
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

// Past the caches, where memory is written that will not be read soon: a cached line would be read first. `to` is aligned.
INLINE void stream(float* to, vf v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, (__m512)v);
#else
  store(to, v);
#endif
}

// After the last of them, before other threads read.
INLINE void streamed() {
#if defined(__AVX512F__)
  _mm_sfence();
#endif
}

INLINE void prefetch_to_l2(const void* at) { __builtin_prefetch(at, 0, 2); }
INLINE void prefetch_to_l1(const void* at) { __builtin_prefetch(at, 0, 3); }

// The low byte of each lane (which compilers else move one by one).
INLINE vb low_bytes(vi v) {
#if defined(__AVX512F__)
  return (vb)_mm512_cvtepi32_epi8((__m512i)v);
#else
  return __builtin_convertvector(v, vb);
#endif
}

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
  if (rest >= 0x38800000u) return static_cast<std::uint16_t>(sign | (rest + 0xfffu + (rest >> 13 & 1u) - (112u << 23)) >> 13);
  const float shifted = of_bits(rest) + 0.5f;  // below 2⁻¹⁴ it is a multiple of 2⁻²⁴, the last place of what 0.5 begins
  std::memcpy(&bits, &shifted, 4);
  return static_cast<std::uint16_t>(sign | (bits - 0x3f000000u));
}

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

// eˣ to about 1 ulp for −87.33 ≤ x ≤ 88.3: x = n·ln 2 + r, a polynomial for eʳ, 2ⁿ through the exponent bits.
// e⁰ is exactly 1.
INLINE vf exp_bounded(vf x) {
  const vf magic = all(12582912.0f);  // 1.5 · 2²³: adding it leaves the nearest integer in the low bits
  const vf shifted = fma(x, all(1.44269504f), magic);
  const vf n = shifted - magic;
  const vf r = fma(n, all(-1.42860677e-6f), fma(n, all(-0.693145752f), x));
  vf p = all(1.0f / 5040);
  p = fma(p, r, all(1.0f / 720));
  p = fma(p, r, all(1.0f / 120));
  p = fma(p, r, all(1.0f / 24));
  p = fma(p, r, all(1.0f / 6));
  p = fma(p, r, all(0.5f));
  p = fma(p, r, all(1.0f));
  p = fma(p, r, all(1.0f));
  return (vf)(((vi)shifted << 23) + (vi)p);
}

// eˣ for any x: 0 below −87.33 (so that e^−∞ = 0), e^88.3 above 88.3.
INLINE vf exp(vf x) {
  const vf result = exp_bounded(min(max(x, all(-87.33f)), all(88.3f)));
  return x < all(-87.33f) ? vf{} : result;
}

INLINE float exp(float x) {
  float e[lanes];
  store(e, exp(all(x)));
  return e[0];
}

// tanh x to about 2 ulp: a polynomial in x² near 0 (Cephes, tanhf), else from the exponential.
INLINE vf tanh(vf x) {
  const vf size = max(x, -x), square = x * x;
  vf p = fma(square, all(-5.70498872745e-3f), all(2.06390887954e-2f));
  p = fma(p, square, all(-5.37397155531e-2f));
  p = fma(p, square, all(1.33314422036e-1f));
  p = fma(p, square, all(-3.33332819422e-1f));
  const vf near = fma(p * square, x, x);
  const vf far = all(1.0f) - all(2.0f) / (exp(size + size) + all(1.0f));
  return size < all(0.625f) ? near : x < all(0.0f) ? -far : x == x ? far : x;
}

// x · sigmoid(2 · √(2 / π) · (x + 0.044715 · x³)), which is gelu by tanh.
INLINE vf gelu(vf x) {
  const vf inner = x * fma(x * x, all(0.0713548163f), all(1.59576912f));
  return x / (all(1.0f) + exp(-inner));
}

// erf x to about 1 ulp of 1: x · a polynomial in x² near 0, else 1 − e to a polynomial in |x|, both of least error; from 4 on
// it is 1.
INLINE vf erf(vf x) {
  const vf size = min(max(x, -x), all(4.0f)), square = x * x;
  vf p = fma(square, all(7.88912294e-5f), all(-8.02084222e-4f));
  p = fma(p, square, all(5.18953567e-3f));
  p = fma(p, square, all(-2.68544443e-2f));
  p = fma(p, square, all(1.12836003e-1f));
  p = fma(p, square, all(-3.7612627e-1f));
  p = fma(p, square, all(1.12837911f));
  vf q = fma(size, all(-1.85574027e-4f), all(2.93960748e-3f));
  q = fma(q, size, all(-2.18053181e-2f));
  q = fma(q, size, all(1.03037372e-1f));
  q = fma(q, size, all(6.38225675e-1f));
  q = fma(q, size, all(1.12704003f));
  q = fma(q, size, all(3.53719312e-4f));
  const vf far = all(1.0f) - exp_bounded(-q);
  return size < all(1.0f) ? p * x : x < all(0.0f) ? -far : x == x ? far : x;
}

// x · Φ(x), with the distribution of the normal law.
INLINE vf gelu_erf(vf x) { return x * 0.5f * (all(1.0f) + erf(x * 0.707106781f)); }

// NaN stays NaN.
INLINE vf relu(vf x) { return x > all(0.0f) ? x : x != x ? x : vf{}; }

INLINE vf silu(vf x) { return x / (all(1.0f) + exp(-x)); }

// x / 2 + above · x² of what is positive, x / 2 + below · (eˣ − 1 − x) of the rest.
INLINE vf xielu(vf x, float above, float below) {
  const vf bounded = x < all(-1e-6f) ? x : all(-1e-6f);  // not NaN: that is in x
  const vf bent = x > all(0.0f) ? x * x * above : (exp(bounded) - all(1.0f) - x) * below;
  return bent + x * 0.5f;
}

// 2ˣ for x ≤ 126, 0 far below −126 (−∞ too), NaN of NaN: 2ⁿ · p(x − n) with n = ⌊x⌋ (or one less where x is whole) and
// p(0) = 1, the polynomial of the given degree with the least relative error over [0, 1]: 8.6 · 10⁻⁵ at degree 3,
// 1.4 · 10⁻⁷ at degree 5.
template <int degree>
INLINE vf power_of_two(vf x) {
  static_assert(degree == 3 || degree == 5);
#if defined(__AVX512F__)
  const vf r = (vf)_mm512_reduce_ps((__m512)x, 0x01);
#else
  const vf magic = all(12582912.0f);  // 1.5 · 2²³: adding it leaves the nearest integer in the low bits
  const vf bounded = max(all(-127.0f), x), shifted = (bounded - 0.5f) + magic, r = bounded - (shifted - magic);
#endif
  vf p;
  if constexpr (degree == 3) {
    p = fma(fma(all(0.0770670474f), r, all(0.22764498f)), r, all(0.695116818f));
  } else {
    p = fma(all(0.00186713017f), r, all(0.00901702978f));
    p = fma(fma(fma(p, r, all(0.0557999127f)), r, all(0.240164444f)), r, all(0.693151295f));
  }
  p = fma(p, r, all(1.0f));
#if defined(__AVX512F__)
  return (vf)_mm512_scalef_ps((__m512)p, (__m512)x);
#else
  return x < all(-126.0f) ? vf{} : (vf)(((vi)shifted << 23) + (vi)p);
#endif
}

// eˣ in double precision for x ≤ 0, to a few ulp; 0 below −708.
INLINE vd exp(vd x) {
  const vd magic = all(6755399441055744.0);  // 1.5 · 2⁵²
  const vd c = max(x, all(-708.0));
  const vd shifted = fma(c, all(1.4426950408889634), magic);
  const vd n = shifted - magic;
  const vd r = fma(n, all(-1.90821492927058770002e-10), fma(n, all(-0.693147180369123816490), c));
  vd p = all(1.0 / 6227020800.0);
  p = fma(p, r, all(1.0 / 479001600.0));
  p = fma(p, r, all(1.0 / 39916800.0));
  p = fma(p, r, all(1.0 / 3628800.0));
  p = fma(p, r, all(1.0 / 362880.0));
  p = fma(p, r, all(1.0 / 40320.0));
  p = fma(p, r, all(1.0 / 5040.0));
  p = fma(p, r, all(1.0 / 720.0));
  p = fma(p, r, all(1.0 / 120.0));
  p = fma(p, r, all(1.0 / 24.0));
  p = fma(p, r, all(1.0 / 6.0));
  p = fma(p, r, all(0.5));
  p = fma(p, r, all(1.0));
  p = fma(p, r, all(1.0));
  const vd result = (vd)(((vl)shifted << 52) + (vl)p);
  return x < all(-708.0) ? vd{} : result;
}

INLINE vd to_double(vf_half x) { return __builtin_convertvector(x, vd); }

}  // namespace inflight::INFLIGHT_ISA
