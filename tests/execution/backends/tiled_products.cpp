// The products of native/gemm/amx.cpp for a test in Python, over matrices that are packed there. Of other sets, that this
// one takes attention and products of few rows from, there is none here: a product of few rows is NaN.
#include "gemm/amx.cpp"

namespace inflight {
namespace {

void product_of_few(Pool&, const void*, const Share* shares, std::int64_t count, Epilogue, void* out) {
  const std::int64_t rows = shares[count - 1].first + shares[count - 1].rows;
  for (std::int64_t i = 0; i < rows * shares[0].weights->rows; ++i) static_cast<float*>(out)[i] = __builtin_nanf("");
}

}  // namespace

const ProductKernels avx512_bf16::bf16 = {nullptr, nullptr, nullptr, nullptr};
const ProductKernels avx512_vnni::int8_bf16 = {product_of_few, nullptr, nullptr, nullptr};
const ProductKernels avx512_vnni::int8_f32 = avx512_vnni::int8_bf16;

}  // namespace inflight

// One matrix for all shares, each of so many rows. Returns how many threads have shapes left.
extern "C" __attribute__((visibility("default"))) int product(
    int kind, int threads, const void* x, void* packed, float* factors, std::int64_t rows, std::int64_t columns,
    std::int64_t steps, std::int64_t step_lanes, std::int64_t inputs, int offsets, const std::int64_t* share_rows,
    std::int64_t share_count, float* out) {
  using namespace inflight;
  const Weights weights{static_cast<std::uint32_t*>(packed), factors, rows, columns, steps, (rows + 31) / 32, 1,
                        step_lanes, rows, nullptr, false, {inputs, offsets != 0, {}}};
  Share shares[64];
  for (std::int64_t i = 0, first = 0; i < share_count; first += share_rows[i++])
    shares[i] = {&weights, first, share_rows[i]};
  const ProductKernels* kinds[] = {&avx512_amx::bf16, &avx512_amx::int8_bf16, &avx512_amx::int8_f32};
  const Pool::Cpus anywhere[8] = {};
  Pool pool(threads, anywhere, false);
  kinds[kind]->gemm(pool, x, shares, share_count, Epilogue::store, out);
  int left = 0;
  const auto count = [](void* to, int) {
    __atomic_fetch_add(static_cast<int*>(to), emulated_tiles::in_use(), __ATOMIC_RELAXED);
  };
  pool.run(count, &left);
  return left;
}
