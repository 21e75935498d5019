// Products of each head's part of a row by a matrix of the head's own, as latent attention has them.
#pragma once
#include "types.h"

namespace inflight {

// Matrices [rows, columns] of all heads, held alike, without biases.
struct HeadWeights {
  const Weights* const* matrices;  // [heads]
  std::int64_t heads, rows, columns;
};

// x act[tokens, heads · columns] of `item` bytes a value → the first `rows` values of each head of out
// act[tokens, heads · stride]. products: kernels for how the matrices are held. Throws std::bad_alloc.
void run_by_head(Pool& pool, const RowKernels& kernels, const ProductKernels& products, Format format,
                 const HeadWeights& weights, const void* x, std::int64_t tokens, std::int64_t stride, void* out);

}  // namespace inflight
