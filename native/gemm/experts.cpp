// Rows are brought into the order of their experts, so that each expert's matrices meet all of its rows at once: a task
// of a product is a group of an expert's outputs, and threads share the tasks of all experts. Experts that no token was
// routed to are not read.
#include "gemm/experts.h"

#include <algorithm>

namespace inflight {
namespace {

// Which rows go where. A slot is one of a token's top_k experts: token · top_k + rank.
struct Order {
  std::vector<std::int32_t> experts, tokens, places;  // of slots: the expert; of places: the token; of slots: the place
  std::vector<float> weights;                         // of slots
  std::vector<std::int64_t> begins;                   // of experts, and one more: the first place

  Order(std::int64_t slots, std::int64_t num_experts)
      : experts(slots), tokens(slots), places(slots), weights(slots), begins(num_experts + 1) {}

  // Places by expert, within one by slot.
  void sort(std::int64_t top_k) {
    for (const std::int32_t expert : experts) ++begins[expert + 1];
    for (std::size_t e = 1; e < begins.size(); ++e) begins[e] += begins[e - 1];
    std::vector<std::int64_t> next(begins);
    for (std::size_t slot = 0; slot < experts.size(); ++slot) {
      const std::int64_t place = next[experts[slot]]++;
      places[slot] = static_cast<std::int32_t>(place);
      tokens[place] = static_cast<std::int32_t>(static_cast<std::int64_t>(slot) / top_k);
    }
  }

  // of(expert, its first place, how many) of the experts that were picked.
  template <class Of>
  void each(Of&& of) const {
    for (std::size_t e = 0; e + 1 < begins.size(); ++e)
      if (begins[e + 1] > begins[e]) of(static_cast<std::int64_t>(e), begins[e], begins[e + 1] - begins[e]);
  }

  // Of the experts that were picked.
  std::vector<Share> shares(const Weights* const* matrices) const {
    std::vector<Share> found;
    each([&](std::int64_t e, std::int64_t first, std::int64_t count) { found.push_back({matrices[e], first, count}); });
    return found;
  }
};

}  // namespace

void run_experts(Pool& pool, const RowKernels& rows, const ProductKernels& gate_up, const ProductKernels& down,
                 std::int64_t item, const Mixture& m, const ExpertOrders& orders, const void* x, const float* logits,
                 std::int64_t tokens, float* out) {
  if (tokens == 0) return;
  const std::int64_t slots = tokens * m.top_k, hidden = m.gate_up[0]->columns, width = m.gate_up[0]->rows;
  const std::int64_t outputs = m.down[0]->rows;
  Order order(slots, m.experts);
  rows.route(pool, logits, tokens, m, order.experts.data(), order.weights.data());
  order.sort(m.top_k);

  // What goes into a product and what comes out take turns in two places: rows of x, then what down yields; and what
  // gate and up yield.
  const bool turns = !orders.down.empty();  // what gate and up yield is put into orders, which takes a place more
  const std::int64_t of_x = hidden * item, of_width = width * item, of_sums = outputs * 4;
  void* around = pool.scratch(2, static_cast<std::size_t>(slots * std::max(of_x, turns ? of_width : of_sums)));
  void* inner = pool.scratch(3, static_cast<std::size_t>(slots * std::max(of_width, turns ? of_sums : 0)));
  const std::vector<Share> inward = order.shares(m.gate_up), outward = order.shares(m.down);
  if (orders.gate_up.empty()) {
    rows.gather(pool, x, order.tokens.data(), nullptr, slots, hidden, item, around);
  } else {
    order.each([&](std::int64_t expert, std::int64_t first, std::int64_t count) {
      rows.gather(pool, x, order.tokens.data() + first, orders.gate_up[expert], count, hidden, item,
                  static_cast<char*>(around) + first * of_x);
    });
  }
  const auto count = static_cast<std::int64_t>(inward.size());
  gate_up.gemm(pool, around, inward.data(), count, m.gating, inner);
  if (turns)
    order.each([&](std::int64_t expert, std::int64_t first, std::int64_t count) {
      rows.gather(pool, static_cast<const char*>(inner) + first * of_width, nullptr, orders.down[expert], count, width,
                  item, static_cast<char*>(around) + first * of_width);
    });
  void *from = turns ? around : inner, *sums = turns ? inner : around;
  down.gemm(pool, from, outward.data(), count, Epilogue::store, sums);
  rows.add_weighted(pool, static_cast<const float*>(sums), order.places.data(), order.weights.data(), m.top_k, tokens,
                    outputs, out);
}

}  // namespace inflight
