// Measures the most that this machine can do: bytes read per second, multiply-adds per second from registers, by the
// instructions that the kernels use, so that a share of the peak is a share of something reachable.
#pragma once
#include <time.h>

#include "isa/dots.h"
#include "pool/parallel.h"

namespace inflight::INFLIGHT_ISA {

inline double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Bytes per second of one pass over `bytes` by all threads.
inline double read_bandwidth(Pool& pool, const void* data, std::int64_t bytes) {
  constexpr std::int64_t piece = 1 << 18, line = 64;
  const char* from = static_cast<const char*>(data);
  const double start = now();
  parallel_for(pool, bytes / piece, [&](std::int64_t i, int) {
    vu seen[4] = {};
    for (const char* at = from + i * piece; at < from + (i + 1) * piece; at += 4 * line) {
      for (int j = 0; j < 4; ++j) prefetch_to_l2(at + 4096 + j * line);
      for (int j = 0; j < 4; ++j)
        for (std::size_t k = 0; k < line; k += sizeof(vu)) seen[j] |= load<vu>(at + j * line + k);
    }
    const vu together = (seen[0] | seen[1]) | (seen[2] | seen[3]);
    asm volatile("" : : "m"(together));
  });
  return static_cast<double>(bytes / piece * piece) / (now() - start);
}

// Operations per second of all threads together, each of which runs `step` on registers for the given time.
template <class V, class Step>
double rate(Pool& pool, double seconds, double operations_per_step, Step&& step) {
  constexpr int chains = 12;  // enough to hide an instruction's latency
  double* rates = static_cast<double*>(pool.scratch(0, pool.threads() * sizeof(double)));
  for (int i = 0; i < pool.threads(); ++i) rates[i] = 0;
  const double start = now();
  on_all(pool, false, [&](int worker) {
    V sums[chains] = {}, w = {}, x = {};
    asm volatile("" : "+m"(w), "+m"(x));  // values that the compiler does not know
    std::int64_t steps = 0;
    const double entered = now();
    do {
      for (int i = 0; i < 4096; ++i)
        for (int c = 0; c < chains; ++c) sums[c] = step(sums[c], w, x);
      steps += 4096 * chains;
    } while (now() - start < seconds);
    for (int c = 0; c < chains; ++c) asm volatile("" : : "m"(sums[c]));
    if constexpr (requires { Step::end(); }) Step::end();
    rates[worker] = static_cast<double>(steps) * operations_per_step / (now() - entered);
  });
  double total = 0;
  for (int i = 0; i < pool.threads(); ++i) total += rates[i];
  return total;
}

template <class F>
double peak(Pool& pool, double seconds) {
  if constexpr (F::values_per_step == 1) {
    return rate<vf>(pool, seconds, lanes * 2.0, [](vf s, vf w, vf x) { return fma(w, x, s); });
  } else if constexpr (F::values_per_step == 2 && has_bf16_dot) {
    return rate<vf>(pool, seconds, lanes * 4.0, [](vf s, vf w, vf x) { return dot2(s, (vu)w, (vu)x); });
  } else if constexpr (F::values_per_step == 2) {  // halves are split by shift and mask, then multiplied as float32
    return rate<vf>(pool, seconds, lanes * 4.0, [](vf s, vf w, vf x) { return fma(x, w, fma(w, x, s)); });
  } else if constexpr (has_int8_dot) {
    return rate<vi>(pool, seconds, lanes * 8.0, [](vi s, vi w, vi x) { return dot4(s, (vu)w, (vu)x); });
  } else {  // of halves that change: what does not would be computed once
    return rate<vi>(pool, seconds, lanes * 4.0, [](vi s, vi w, vi) { return s + dot2_of_halves((vu)w, (vu)s); });
  }
}

}  // namespace inflight::INFLIGHT_ISA
