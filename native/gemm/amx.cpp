// Products in bf16 and int8 by tile registers (Intel's AMX): 16 rows of 64 bytes each, one instruction of which adds up
// 16 rows of x by 16 outputs by 64 bytes of inputs.
//
// Packed weights lie as such a register takes them: a panel of a step is a row of it, the next step 128 bytes on. A
// call has up to 32 rows of x by the two panels of a group: four registers of sums, two of x, two of weights.
#include <immintrin.h>

#include "gemm/gemm.h"
#include "isa/probes.h"

namespace inflight {
namespace avx512_bf16 {
extern const ProductKernels bf16;
}
namespace avx512_vnni {
extern const ProductKernels int8_bf16, int8_f32;
}
}  // namespace inflight

namespace inflight::INFLIGHT_ISA {

extern const ProductKernels bf16, int8_bf16, int8_f32;

namespace {

constexpr int register_rows = 16, register_bytes = 64;
constexpr std::int64_t line = group_lanes * 4;  // bytes from a step's weights to the next's, and from a row's sums
constexpr int sums_0 = 0, x_0 = 4, w_0 = 6;     // first registers: of sums, of x, of weights. Intrinsics take numbers

// What ldtilecfg reads.
struct alignas(64) Shapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

// The shapes of this thread's registers, as rows · 256 + bytes of x; 0: none are in use. To give them shapes takes
// about 200 cycles, so they are kept until a job ends; from then on the system has no registers to save for an idle
// thread.
thread_local int shaped = 0;

// The compiler does not know what the instructions below read: here all memory is as the program says.
INLINE void written(const void* at) { asm volatile("" : : "r"(at) : "memory"); }

void shape(int rows, int x_bytes) {
  const int wanted = rows << 8 | x_bytes;
  if (shaped == wanted) return;
  Shapes shapes;
  for (int half = 0; half < 2; ++half) {
    const int left = rows - half * register_rows, count = left < register_rows ? left : register_rows;
    if (count <= 0) break;
    for (const int at : {sums_0 + 2 * half, sums_0 + 2 * half + 1, x_0 + half})
      shapes.rows[at] = static_cast<std::uint8_t>(count), shapes.row_bytes[at] = register_bytes;
    shapes.row_bytes[x_0 + half] = static_cast<std::uint16_t>(x_bytes);
  }
  for (const int at : {w_0, w_0 + 1})
    shapes.rows[at] = static_cast<std::uint8_t>(x_bytes / 4), shapes.row_bytes[at] = register_bytes;
  written(&shapes);
  _tile_loadconfig(&shapes);
  shaped = wanted;
}

void end_of_job() {
  if (shaped != 0) _tile_release();
  shaped = 0;
}

INLINE void zero_sums(bool two) {
  _tile_zero(0);
  _tile_zero(1);
  if (two) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

// From and to [rows][32] lanes.
INLINE void load_sums(const void* from, bool two) {
  const char* at = static_cast<const char*>(from);
  _tile_loadd(0, at, line);
  _tile_loadd(1, at + register_bytes, line);
  if (two) {
    _tile_loadd(2, at + register_rows * line, line);
    _tile_loadd(3, at + register_rows * line + register_bytes, line);
  }
}

INLINE void store_sums(void* to, bool two) {
  char* at = static_cast<char*>(to);
  _tile_stored(0, at, line);
  _tile_stored(1, at + register_bytes, line);
  if (two) {
    _tile_stored(2, at + register_rows * line, line);
    _tile_stored(3, at + register_rows * line + register_bytes, line);
  }
}

// The weights of one register's depth, and x of the first 16 rows; then of the others.
INLINE void load_first(const char* w, const char* x, std::int64_t stride) {
  _tile_loadd(6, w, line);
  _tile_loadd(7, w + register_bytes, line);
  _tile_loadd(4, x, stride);
}
INLINE void load_second(const char* x, std::int64_t stride) { _tile_loadd(5, x + register_rows * stride, stride); }

INLINE const char* fetch(const char* from, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += 64) prefetch_to_l2(from + at);
  return from + bytes;
}

// bf16. Within 16 steps an instruction adds up even and odd inputs by themselves, then both, then that to the sum: the
// order of additions is by whole blocks of 16 steps from the first on, for any number of rows.
struct TileHalves : PairsByPairs {
  static constexpr int tile_rows = 2 * register_rows, unit_steps = register_bytes / 4;
  static void run(int rows, const Work<TileHalves>& work);
  static void end() { end_of_job(); }

 private:
  INLINE static void multiply(const char* w, const char* x, std::int64_t stride, bool two) {
    load_first(w, x, stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (!two) return;
    load_second(x, stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
};

void TileHalves::run(int rows, const Work<TileHalves>& work) {
  const bool two = rows > register_rows;
  const std::int64_t stride = work.x_stride * 4;
  const char *w = reinterpret_cast<const char*>(work.w), *x = reinterpret_cast<const char*>(work.x);
  const char* ahead = static_cast<const char*>(work.ahead.at);
  shape(rows, register_bytes);
  written(work.sums);
  if (work.fresh) {
    zero_sums(two);
  } else {
    load_sums(work.sums, two);
  }
  int i = 0;
  for (; i + unit_steps <= work.steps; i += unit_steps, w += unit_steps * line, x += register_bytes) {
    if (work.ahead.lines > 0) ahead = fetch(ahead, work.ahead.lines * unit_steps * 64);
    multiply(w, x, stride, two);
  }
  if (i < work.steps) {  // the rest, filled up with zeros
    alignas(64) char w_rest[unit_steps * line] = {}, x_rest[tile_rows * register_bytes] = {};
    std::memcpy(w_rest, w, (work.steps - i) * line);
    for (int m = 0; m < rows; ++m) std::memcpy(x_rest + m * register_bytes, x + m * stride, (work.steps - i) * 4);
    written(w_rest), written(x_rest);
    multiply(w_rest, x_rest, register_bytes, two);
  }
  store_sums(work.sums, two);
}

// int8. A register's depth is a span of 16 or 32 inputs, half of it or less, because the sums of each span are scaled
// by themselves: they go through memory, and while those of a span are scaled the next one's are formed.
struct TileOctets : Octets {
  static constexpr int tile_rows = 2 * register_rows, unit_steps = 1;
  static void run(int rows, const Work<TileOctets>& work);
  static void end() { end_of_job(); }

 private:
  // Signed bytes of x by unsigned ones of weights.
  INLINE static void multiply(const char* w, const char* x, std::int64_t stride, std::int32_t* dots, bool two) {
    zero_sums(two);
    load_first(w, x, stride);
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    if (two) {
      load_second(x, stride);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
    store_sums(dots, two);
  }
  static void add(int rows, const char* step, const Weights::Spans& spans, const char* x, std::int64_t stride,
                  const std::int32_t* dots, float* sums);
};

// As tile_of_spans has it: each product rounded before it is added.
INLINE void TileOctets::add(int rows, const char* step, const Weights::Spans& spans, const char* x, std::int64_t stride,
                            const std::int32_t* dots, float* sums) {
  constexpr int N = group_lanes / lanes;
  const auto* held = reinterpret_cast<const std::uint16_t*>(step);
  const bool offsets = spans.offsets;
  vf scales[N], offset[N] = {};
  for (int n = 0; n < N; ++n) {
    scales[n] = load_f16(held + n * lanes);
    if (offsets) offset[n] = load_f16(held + group_lanes + n * lanes);
  }
  for (int m = 0; m < rows; ++m, x += stride, dots += group_lanes, sums += group_lanes) {
    std::int32_t begin;
    float of_x[2];  // the scale, and Σ x times that
    std::memcpy(&begin, x, 4);
    std::memcpy(of_x, x + 4 + spans.inputs, 8);
    for (int n = 0; n < N; ++n) {
      const vi dot = load<vi>(dots + n * lanes) + all(begin);
      vf sum = load<vf>(sums + n * lanes) + __builtin_convertvector(dot, vf) * all(of_x[0]) * scales[n];
      if (offsets) sum += all(of_x[1]) * offset[n];
      store(sums + n * lanes, sum);
    }
  }
}

void TileOctets::run(int rows, const Work<TileOctets>& work) {
  const bool two = rows > register_rows;
  const int inputs = static_cast<int>(work.spans.inputs), lines = inputs / inputs_per_line;
  const std::int64_t stride = work.x_stride * 4, codes = work.spans.first_codes() * 4;
  const std::int64_t step_bytes = codes + lines * line, x_bytes = x_lanes_of<TileOctets>(inputs) * 4;
  const char *w = reinterpret_cast<const char*>(work.w), *x = reinterpret_cast<const char*>(work.x);
  const char* ahead = static_cast<const char*>(work.ahead.at);
  alignas(64) std::int32_t dots[2][tile_rows * group_lanes];
  shape(rows, inputs);
  if (work.fresh) std::memset(work.sums, 0, rows * line);
  written(work.x);
  const auto form = [&](int step) __attribute__((always_inline)) {
    multiply(w + step * step_bytes + codes, x + step * x_bytes + 4, stride, dots[step % 2], two);
  };
  if (work.steps > 0) form(0);
  for (int step = 0; step < work.steps; ++step) {
    if (work.ahead.lines > 0) ahead = fetch(ahead, step_bytes / 2 * work.ahead.lines);
    if (step + 1 < work.steps) form(step + 1);
    add(rows, w + step * step_bytes, work.spans, x + step * x_bytes, stride, dots[step % 2], work.sums);
  }
}

// Up to as many rows as a tile of vector registers has, reading the weights is the limit, and it waits for less. It has
// the same bits.
template <class Value, const ProductKernels& by_vectors>
void octets(Pool& pool, const void* x, const Share* shares, std::int64_t count, Epilogue epilogue, void* out) {
  const std::int64_t rows = count > 0 ? shares[count - 1].first + shares[count - 1].rows : 0;
  if (rows <= max_rows<Octets> * count) return by_vectors.gemm(pool, x, shares, count, epilogue, out);
  gemm<TileOctets, Value>(pool, x, shares, count, epilogue, out);
}

// A step of the probe: four registers of sums, because one would wait for its own.
template <bool bytes>
struct TileProducts {
  int operator()(int sum, int, int) const {
    shape(2 * register_rows, register_bytes);
    if constexpr (bytes) {
      _tile_dpbsud(0, 4, 6);
      _tile_dpbsud(1, 4, 7);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    return sum;
  }
  static void end() { end_of_job(); }
};

template <bool bytes>
double tile_peak(Pool& pool, double seconds) {
  constexpr double operations = 4 * 2.0 * register_rows * panel * register_bytes / (bytes ? 1 : 2);
  return rate<int>(pool, seconds, operations, TileProducts<bytes>{});
}

// Attention is another set's.
template <const ProductKernels& other>
void divide_by(Pool& pool, const KVLayer& layer, const AttentionMetadata& metadata, AttentionPlan& plan) {
  other.divide(pool, layer, metadata, plan);
}
template <const ProductKernels& other>
void attention_by(Pool& pool, const void* q, const KVLayer& layer, const AttentionMetadata& metadata,
                  const AttentionPlan& plan, const Scores& scores, void* out) {
  other.attention(pool, q, layer, metadata, plan, scores, out);
}

template <const ProductKernels& other>
constexpr ProductKernels with_products(decltype(ProductKernels::gemm) gemm, decltype(ProductKernels::peak) peak) {
  return {gemm, divide_by<other>, attention_by<other>, peak};
}

}  // namespace

const ProductKernels bf16 = with_products<avx512_bf16::bf16>(gemm<TileHalves, std::uint16_t>, tile_peak<false>);
const ProductKernels int8_bf16 =
    with_products<avx512_vnni::int8_bf16>(octets<std::uint16_t, avx512_vnni::int8_bf16>, tile_peak<true>);
const ProductKernels int8_f32 =
    with_products<avx512_vnni::int8_f32>(octets<float, avx512_vnni::int8_f32>, tile_peak<true>);

}  // namespace inflight::INFLIGHT_ISA
