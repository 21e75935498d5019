// Weights in int4, under activations in bf16 or float32.
#include "gemm/gemm.h"

namespace inflight::INFLIGHT_ISA {

extern const ProductKernels int4_bf16, int4_f32;

const ProductKernels int4_bf16 = {gemm<Nibbles, std::uint16_t>, nullptr, nullptr, nullptr};
const ProductKernels int4_f32 = {gemm<Nibbles, float>, nullptr, nullptr, nullptr};

}  // namespace inflight::INFLIGHT_ISA
