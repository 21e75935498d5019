// Everything in float32.
#include "gemm/products.h"

namespace inflight::INFLIGHT_ISA {

extern const ProductKernels f32;

const ProductKernels f32 = products<float, Floats>;

}  // namespace inflight::INFLIGHT_ISA
