// Everything in bf16.
#include "gemm/products.h"

namespace inflight::INFLIGHT_ISA {

extern const ProductKernels bf16;

const ProductKernels bf16 = products<std::uint16_t, Halves>;

}  // namespace inflight::INFLIGHT_ISA
