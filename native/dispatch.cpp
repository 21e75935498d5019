// Which instruction sets were compiled, and which of them this CPU and its system can run.
#include "types.h"

namespace inflight {

namespace portable { extern const Kernels kernels; }
#ifdef INFLIGHT_X86
namespace avx2 { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }
namespace avx512_vnni { extern const Kernels kernels; }
namespace avx512_bf16 { extern const Kernels kernels; }
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
