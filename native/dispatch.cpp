// Which instruction sets were compiled, what each is made of, and which of them this CPU and its system can run.
#include "types.h"

namespace inflight {

namespace portable {
extern const RowKernels rows;
extern const ProductKernels bf16, f32, int8_bf16, int8_f32, int4_bf16, int4_f32;
constexpr Kernels kernels{"portable", rows, bf16, f32, int8_bf16, int8_f32, int4_bf16, int4_f32};
}  // namespace portable
#ifdef INFLIGHT_X86
namespace avx2 {
extern const RowKernels rows;
extern const ProductKernels bf16, f32, int8_bf16, int8_f32, int4_bf16, int4_f32;
constexpr Kernels kernels{"avx2", rows, bf16, f32, int8_bf16, int8_f32, int4_bf16, int4_f32};
}  // namespace avx2
namespace avx512 {
extern const RowKernels rows;
extern const ProductKernels bf16, f32, int8_bf16, int8_f32, int4_bf16, int4_f32;
constexpr Kernels kernels{"avx512", rows, bf16, f32, int8_bf16, int8_f32, int4_bf16, int4_f32};
}  // namespace avx512
namespace avx512_vnni {  // the dot product of bytes
extern const ProductKernels int8_bf16, int8_f32, int4_bf16, int4_f32;
constexpr Kernels kernels{"avx512_vnni", avx512::rows, avx512::bf16, avx512::f32, int8_bf16, int8_f32, int4_bf16, int4_f32};
}  // namespace avx512_vnni
namespace avx512_bf16 {  // and that of bf16
extern const ProductKernels bf16;
constexpr Kernels kernels{"avx512_bf16", avx512::rows, bf16, avx512::f32, avx512_vnni::int8_bf16, avx512_vnni::int8_f32,
                          avx512_vnni::int4_bf16, avx512_vnni::int4_f32};
}  // namespace avx512_bf16
#endif

const Kernels* const* available_kernels(int* count) {
  static const Kernels* tables[5];
  static const int found = [] {
    int n = 0;
#ifdef INFLIGHT_X86
    __builtin_cpu_init();  // also asks the system whether it saves the wide registers
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool has_vnni = has_avx512 && __builtin_cpu_supports("avx512vnni");
    if (has_vnni && __builtin_cpu_supports("avx512bf16")) tables[n++] = &avx512_bf16::kernels;
    if (has_vnni) tables[n++] = &avx512_vnni::kernels;
    if (has_avx512) tables[n++] = &avx512::kernels;
    if (has_avx2) tables[n++] = &avx2::kernels;
#endif
    tables[n++] = &portable::kernels;
    return n;
  }();
  *count = found;
  return tables;
}

}  // namespace inflight
