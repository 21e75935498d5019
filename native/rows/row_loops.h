// Loops over rows of numbers that operations share: what is held in a format, norms, rotation, functions by vectors.
#pragma once
#include "isa/elementary.h"
#include "isa/float16.h"
#include "pool/parallel.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

// then(a value of the type that the format holds).
template <class Then>
INLINE void with(Format format, Then&& then) {
  if (format == Format::bf16) {
    then(std::uint16_t{});
  } else {
    then(float{});
  }
}

// 1 / sqrt(mean(x²) + eps) in one fixed order of additions.
INLINE float inverse_rms(const float* x, std::int64_t width, float eps) {
  vf sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * lanes <= width; i += 4 * lanes)
    for (int j = 0; j < 4; ++j) {
      const vf v = load<vf>(x + i + j * lanes);
      sums[j] = fma(v, v, sums[j]);
    }
  float squares = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < width; ++i) squares += x[i] * x[i];
  return 1.0f / __builtin_sqrtf(squares / static_cast<float>(width) + eps);
}

INLINE float read(std::uint16_t x) { return from_bf16(x); }
INLINE float read(float x) { return x; }

template <class Value>
INLINE void hold(Value* to, float x) {
  if constexpr (sizeof(Value) == 2) {
    *to = to_bf16(x);
  } else {
    *to = x;
  }
}

// Loops over a row that several kernels share. In a function of its own each is compiled once for a format, and what it
// writes lies beside what it reads.
template <class Value>
__attribute__((noinline)) void hold_row(Value* __restrict to, const float* __restrict x, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) hold(to + i, x[i]);
}

// Normed: times the inverse of a norm and a weight.
template <class Value>
__attribute__((noinline)) void hold_normed(Value* __restrict to, const float* __restrict x, float inverse,
                                           const float* __restrict weight, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) hold(to + i, x[i] * inverse * weight[i]);
}

// The first 2 · pairs turned, for one position.
template <class Value>
__attribute__((noinline)) void hold_turned(Value* __restrict to, const float* __restrict x, const float* __restrict cos,
                                           const float* __restrict sin, std::int64_t pairs) {
  for (std::int64_t i = 0; i < pairs; ++i) hold(to + i, x[i] * cos[i] - x[i + pairs] * sin[i]);
  for (std::int64_t i = 0; i < pairs; ++i) hold(to + i + pairs, x[i + pairs] * cos[i] + x[i] * sin[i]);
}

// `exp` takes NaN for a small number: here NaN must stay NaN, so that a damaged router is seen.
INLINE float sigmoid(float x) { return x == x ? 1.0f / (1.0f + exp(-x)) : x; }

// y = of(x), number by number, by vectors. A number's bits do not depend on where it stands.
template <class Of>
INLINE void map_run(const float* x, std::int64_t count, float* y, Of&& of) {
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(y + i, of(load<vf>(x + i)));
  for (; i < count; ++i) y[i] = of(all(x[i]))[0];
}

// of(x + i, count, y), then to(i, count, y), for runs of the numbers of some rows: from the i-th on so many.
template <class Of, class To>
void map_rows(Pool& pool, const float* x, std::int64_t tokens, std::int64_t width, Of&& of, To&& to) {
  parallel_rows(pool, tokens, tokens * width * 8, [&](std::int64_t first, std::int64_t last) {
    constexpr std::int64_t run = 512;
    float y[run];
    for (std::int64_t i = first * width, end = last * width; i < end; i += run) {
      const std::int64_t count = end - i < run ? end - i : run;
      of(x + i, count, y);
      to(i, count, y);
    }
  });
}

}  // namespace inflight::INFLIGHT_ISA
