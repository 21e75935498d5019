// Vectors of the instruction set at hand.
//
// The types are the compiler's vector extensions, so + − × / and comparisons are written as such; what they cannot say
// (fused multiply-add, broadcast, horizontal sums) is here. Of the files built on this one, dots.h has dot products,
// float16.h numbers of 16 bits and elementary.h functions: an instruction set shows in these four and nowhere else.
// A multiply-add is fused where `fma` is written and only there (contraction is off).
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE inline __attribute__((always_inline))

namespace inflight::INFLIGHT_ISA {

// tile_tokens: rows of a product's tile, of one panel, or of two up to rows_of_two_panels. query_tokens, query_panels:
// the most of a tile of attention.
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
constexpr int vectors = 16 / lanes;  // of a panel
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int registers = 32;
#else
constexpr int registers = 16;
#endif

using vf = float __attribute__((vector_size(lanes * 4)));
using vi = std::int32_t __attribute__((vector_size(lanes * 4)));
using vu = std::uint32_t __attribute__((vector_size(lanes * 4)));
using vs = std::int16_t __attribute__((vector_size(lanes * 4)));
using vh = std::uint16_t __attribute__((vector_size(lanes * 2)));
using vb = std::int8_t __attribute__((vector_size(lanes)));
using vd = double __attribute__((vector_size(lanes * 4)));
using vl = std::int64_t __attribute__((vector_size(lanes * 4)));
using vf4 = float __attribute__((vector_size(16)));
using vu4 = std::uint32_t __attribute__((vector_size(16)));
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

// Of a and b lanes [0, size) of every 2 · size, in turns; and the others.
template <int size>
INLINE void exchange(vu& a, vu& b) {
  const vu before = a;
  [&]<int... at>(std::integer_sequence<int, at...>) {
    a = __builtin_shufflevector(before, b, (at & size ? lanes + at - size : at)...);
    b = __builtin_shufflevector(before, b, (at & size ? lanes + at : at + size)...);
  }(std::make_integer_sequence<int, lanes>());
}

// Of each of four vectors the largest lane.
INLINE vu4 largest_of_four(const vu* of) {
  vu a = load<vu>(of), b = load<vu>(of + 1), c = load<vu>(of + 2), d = load<vu>(of + 3);
  exchange<1>(a, b), exchange<1>(c, d);
  vu ab = max(a, b), cd = max(c, d);
  exchange<2>(ab, cd);
  vu top = max(ab, cd), other = top;  // a's in lane 0 of every four
  if constexpr (lanes > 8) exchange<8>(top, other), top = max(top, other), other = top;
  if constexpr (lanes > 4) exchange<4>(top, other), top = max(top, other);
  return __builtin_shufflevector(top, top, 0, 1, 2, 3);
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

// Bit i says whether lane i reaches the bound.
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

// Past the caches, where memory is written that will not be read soon: a cached line would be read first. `to` is
// aligned.
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

// Fix a sum at this point of the program, in a register. Additions of whole numbers have one result in any order, so
// the compiler would form the products of several steps first and add them up later: more values than there are
// registers.
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

INLINE vd to_double(vf_half x) { return __builtin_convertvector(x, vd); }

}  // namespace inflight::INFLIGHT_ISA
