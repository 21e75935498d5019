// Weights, keys and values in int8, under activations in bf16 or float32.
#include "gemm/products.h"

namespace inflight::INFLIGHT_ISA {

extern const ProductKernels int8_bf16, int8_f32;

const ProductKernels int8_bf16 = products<std::uint16_t, Octets, Bytes<>, Bytes<true>>;
const ProductKernels int8_f32 = products<float, Octets, Bytes<>, Bytes<true>>;

}  // namespace inflight::INFLIGHT_ISA
