// A mixture of experts over the tokens of a pass: routing, then the products of all experts as two jobs.
#pragma once
#include <vector>

#include "types.h"

namespace inflight {

// Of gate and up, and of down, for each expert; empty where none has an order.
struct ExpertOrders {
  std::vector<const std::int32_t*> gate_up, down;
};

// x act[tokens, columns of gate and up] of `item` bytes, logits [tokens, experts] → out [tokens, rows of down] plus
// what the experts yield. gate_up, down: kernels for how the experts' matrices are held. orders: of each expert's
// matrices the order that inputs are wanted in, or null. Throws std::bad_alloc.
void run_experts(Pool& pool, const RowKernels& rows, const ProductKernels& gate_up, const ProductKernels& down,
                 std::int64_t item, const Mixture& mixture, const ExpertOrders& orders, const void* x,
                 const float* logits, std::int64_t tokens, float* out);

}  // namespace inflight
