// Elementary functions of vectors: exponentials, tanh, erf, and the activations that are made of them.
//
// Each is of adds, multiplications and fused multiply-adds in one order, so that lanes do not know of one another.
#pragma once
#include "isa/simd.h"

namespace inflight::INFLIGHT_ISA {

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

// erf x to about 1 ulp of 1: x · a polynomial in x² near 0, else 1 − e to a polynomial in |x|, both of least error;
// from 4 on it is 1.
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

}  // namespace inflight::INFLIGHT_ISA
