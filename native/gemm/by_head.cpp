// Rows are brought into the order of heads, so that each head's matrix meets the parts of all tokens at once: a task of
// the product is a group of a head's outputs, and threads share the tasks of many heads. Heads are taken some at a
// time, so that what a long prompt yields in float32 stays in the caches and small.
#include "gemm/by_head.h"

#include <vector>

namespace inflight {
namespace {

constexpr std::int64_t max_sums = 1 << 20;  // float32, that a product of some heads yields

}  // namespace

void run_by_head(Pool& pool, const RowKernels& kernels, const ProductKernels& products, Format format,
                 const HeadWeights& weights, const void* x, std::int64_t tokens, std::int64_t stride, void* out) {
  if (tokens == 0) return;
  const std::int64_t heads = weights.heads, item = format == Format::bf16 ? 2 : 4;
  const std::int64_t most = max_sums / (tokens * weights.rows);
  const std::int64_t at_once = most < 1 ? 1 : most < heads ? most : heads;
  auto* sums = static_cast<float*>(pool.scratch(2, at_once * tokens * weights.rows * sizeof(float)));
  void* sorted = tokens == 1 ? nullptr : pool.scratch(3, at_once * tokens * weights.columns * item);
  std::vector<std::int32_t> order;  // of parts of x: by head, then by token
  std::vector<Share> shares;
  for (std::int64_t first = 0; first < heads; first += at_once) {
    const std::int64_t count = first + at_once < heads ? at_once : heads - first;
    shares.clear(), order.clear();
    for (std::int64_t h = 0; h < count; ++h) shares.push_back({weights.matrices[first + h], h * tokens, tokens});
    const void* parts = static_cast<const char*>(x) + first * weights.columns * item;
    if (tokens > 1) {
      for (std::int64_t h = 0; h < count; ++h)
        for (std::int64_t t = 0; t < tokens; ++t) order.push_back(static_cast<std::int32_t>(t * heads + first + h));
      kernels.gather(pool, x, order.data(), nullptr, count * tokens, weights.columns, item, sorted);
      parts = sorted;
    }
    products.gemm(pool, parts, shares.data(), count, Epilogue::store, sums);
    kernels.place_heads(pool, format, sums, count, tokens, weights.rows, heads, first, stride, out);
  }
}

}  // namespace inflight
