// Intel's tile registers (AMX) in plain C++, after the manual's pseudocode: `-include` it, and the intrinsics of
// native/gemm/amx.cpp run on any x86-64.
//
// Each thread has registers of its own, as on the machine; what the machine answers with a fault ends the process with
// a sentence. In bf16 each product is added to the sum of even or of odd inputs with one rounding, then both sums to
// each other, then that to what stands there; numbers too small to be normal count as 0 on every side.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define INFLIGHT_EMULATED_TILES 1

namespace emulated_tiles {

using Row = unsigned char[64];

struct Register {
  int rows = 0, row_bytes = 0;
  Row bytes[16] = {};
};

inline thread_local Register registers[8];

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "tile registers: %s\n", what);
  std::abort();
}

inline Register& usable(int t) {
  require(registers[t].rows > 0, "one is used that was given no shape on this thread");
  return registers[t];
}

inline bool in_use() {
  for (const Register& one : registers)
    if (one.rows > 0) return true;
  return false;
}

inline void release() {
  for (Register& one : registers) one = Register{};
}

inline void load_shapes(const void* from) {
  unsigned char shapes[64];
  std::memcpy(shapes, from, 64);
  require(shapes[0] == 1 && shapes[1] == 0, "palette 1 from row 0 on is the only one");
  release();
  for (int t = 0; t < 8; ++t) {
    std::uint16_t row_bytes;
    std::memcpy(&row_bytes, shapes + 16 + 2 * t, 2);
    const int rows = shapes[48 + t];
    require(rows <= 16 && row_bytes <= 64 && (rows == 0) == (row_bytes == 0), "a shape is too large, or half empty");
    registers[t].rows = rows, registers[t].row_bytes = row_bytes;
  }
}

inline void zero(int t) { std::memset(usable(t).bytes, 0, sizeof registers[t].bytes); }

inline void load(int t, const void* from, long stride) {
  zero(t);
  for (int m = 0; m < registers[t].rows; ++m)
    std::memcpy(registers[t].bytes[m], static_cast<const char*>(from) + m * stride, registers[t].row_bytes);
}

inline void store(int t, void* to, long stride) {
  for (int m = 0; m < usable(t).rows; ++m)
    std::memcpy(static_cast<char*>(to) + m * stride, registers[t].bytes[m], registers[t].row_bytes);
}

// add(row of x, row of weights, output) for every sum.
template <class Add>
void multiply(int sums, int x, int w, Add&& add) {
  Register& of_sums = usable(sums);
  const Register &of_x = usable(x), &of_w = usable(w);
  require(of_sums.rows == of_x.rows && of_sums.row_bytes == of_w.row_bytes && of_x.row_bytes == 4 * of_w.rows,
          "the shapes of a product do not go together");
  for (int m = 0; m < of_x.rows; ++m)
    for (int n = 0; n < of_w.row_bytes / 4; ++n) add(of_x.bytes[m], of_w.bytes, of_sums.bytes[m] + 4 * n, n, of_w.rows);
}

inline float normal_or_zero(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

inline float of_bf16(const unsigned char* at) {
  std::uint16_t half;
  std::memcpy(&half, at, 2);
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return normal_or_zero(x);
}

inline void multiply_bf16(int sums, int x, int w) {
  multiply(sums, x, w, [](const Row& of_x, const Row (&of_w)[16], unsigned char* sum, int n, int depth) {
    float even_odd[2] = {}, total;
    for (int k = 0; k < depth; ++k)
      for (int i = 0; i < 2; ++i)
        even_odd[i] = normal_or_zero(
            std::fma(of_bf16(of_x + 4 * k + 2 * i), of_bf16(of_w[k] + 4 * n + 2 * i), even_odd[i]));
    std::memcpy(&total, sum, 4);
    total = normal_or_zero(normal_or_zero(total) + normal_or_zero(even_odd[0] + even_odd[1]));
    std::memcpy(sum, &total, 4);
  });
}

// Signed bytes of x by unsigned ones of weights.
inline void multiply_bytes(int sums, int x, int w) {
  multiply(sums, x, w, [](const Row& of_x, const Row (&of_w)[16], unsigned char* sum, int n, int depth) {
    std::int32_t total;
    std::memcpy(&total, sum, 4);
    for (int k = 0; k < depth; ++k)
      for (int i = 0; i < 4; ++i) total += static_cast<signed char>(of_x[4 * k + i]) * of_w[k][4 * n + i];
    std::memcpy(sum, &total, 4);
  });
}

}  // namespace emulated_tiles

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbsud
#define _tile_loadconfig(from) emulated_tiles::load_shapes(from)
#define _tile_release() emulated_tiles::release()
#define _tile_zero(t) emulated_tiles::zero(t)
#define _tile_loadd(t, from, stride) emulated_tiles::load(t, from, stride)
#define _tile_stored(t, to, stride) emulated_tiles::store(t, to, stride)
#define _tile_dpbf16ps(sums, x, w) emulated_tiles::multiply_bf16(sums, x, w)
#define _tile_dpbsud(sums, x, w) emulated_tiles::multiply_bytes(sums, x, w)
