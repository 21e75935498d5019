// Which instruction sets there are, what each is made of, which were compiled, and which this CPU and its system can
// run.
#include "isa/cpu.h"
#include "types.h"

namespace inflight {

namespace portable {
extern const RowKernels rows;
extern const ProductKernels bf16, f32, int8_bf16, int8_f32, int4_bf16, int4_f32;
inline constexpr Kernels kernels{"portable", rows, bf16, f32, int8_bf16, int8_f32, int4_bf16, int4_f32};
}  // namespace portable
#ifdef INFLIGHT_X86
namespace avx2 {
extern const RowKernels rows;
extern const ProductKernels bf16, f32, int8_bf16, int8_f32, int4_bf16, int4_f32;
inline constexpr Kernels kernels{"avx2", rows, bf16, f32, int8_bf16, int8_f32, int4_bf16, int4_f32};
}  // namespace avx2
namespace avx2_vnni {  // the dot product of bytes
extern const ProductKernels int8_bf16, int8_f32, int4_bf16, int4_f32;
inline constexpr Kernels kernels{"avx2_vnni", avx2::rows, avx2::bf16, avx2::f32,
                                 int8_bf16,   int8_f32,   int4_bf16,  int4_f32};
}  // namespace avx2_vnni
namespace avx512 {
extern const RowKernels rows;
extern const ProductKernels bf16, f32, int8_bf16, int8_f32, int4_bf16, int4_f32;
inline constexpr Kernels kernels{"avx512", rows, bf16, f32, int8_bf16, int8_f32, int4_bf16, int4_f32};
}  // namespace avx512
namespace avx512_vnni {  // the dot product of bytes
extern const ProductKernels int8_bf16, int8_f32, int4_bf16, int4_f32;
inline constexpr Kernels kernels{"avx512_vnni", avx512::rows, avx512::bf16, avx512::f32,
                                 int8_bf16,     int8_f32,     int4_bf16,    int4_f32};
}  // namespace avx512_vnni
namespace avx512_bf16 {  // and that of bf16
extern const ProductKernels bf16;
inline constexpr Kernels kernels{"avx512_bf16", avx512::rows, bf16, avx512::f32,
                                 avx512_vnni::int8_bf16, avx512_vnni::int8_f32,
                                 avx512_vnni::int4_bf16, avx512_vnni::int4_f32};
}  // namespace avx512_bf16
namespace avx512_amx {  // and products of both by tile registers
extern const ProductKernels bf16, int8_bf16, int8_f32;
inline constexpr Kernels kernels{"avx512_amx", avx512::rows, bf16, avx512::f32,
                                 int8_bf16,    int8_f32,     avx512_vnni::int4_bf16, avx512_vnni::int4_f32};
}  // namespace avx512_amx
#endif
#ifdef INFLIGHT_ARM
namespace neon_dotprod {  // the dot product of signed bytes
extern const ProductKernels int8_bf16, int8_f32, int4_bf16, int4_f32;
inline constexpr Kernels kernels{"neon_dotprod", portable::rows, portable::bf16, portable::f32,
                                 int8_bf16,      int8_f32,       int4_bf16,      int4_f32};
}  // namespace neon_dotprod
namespace neon_bf16 {  // those of bytes with and without a sign, and of bf16
extern const ProductKernels bf16, int8_bf16, int8_f32, int4_bf16, int4_f32;
inline constexpr Kernels kernels{"neon_bf16", portable::rows, bf16, portable::f32,
                                 int8_bf16,   int8_f32,       int4_bf16,      int4_f32};
}  // namespace neon_bf16
#endif

// Best first. Which of them are compiled, and what each needs of the CPU, CMakeLists.txt says.
const InstructionSet* instruction_sets(int* count) {
  static const InstructionSet sets[] = {
#define KNOWN(set) {#set, NEEDS_##set, cpu_has_all(NEEDS_##set), HAS_##set ? &set::kernels : nullptr}
#ifdef INFLIGHT_X86
      KNOWN(avx512_amx), KNOWN(avx512_bf16), KNOWN(avx512_vnni), KNOWN(avx512), KNOWN(avx2_vnni), KNOWN(avx2),
#endif
#ifdef INFLIGHT_ARM
      KNOWN(neon_bf16), KNOWN(neon_dotprod),
#endif
      {"portable", "", true, HAS_portable ? &portable::kernels : nullptr},
  };
  *count = sizeof sets / sizeof *sets;
  return sets;
}

}  // namespace inflight
