// Packed weights: matrices, experts, a matrix for each head, tables of embeddings; their sizes, and what they own.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "gemm/experts.h"
#include "pool/memory.h"
#include "types.h"

namespace inflight {

// How a matrix is packed.
struct Layout {
  Hold hold = Hold::act;
  Weights::Spans spans{};
  std::int64_t group_spans = 1;  // that share scales
};

// Whether rows of x that are laid out for one go with the other.
inline bool alike(const Layout& a, const Layout& b) {
  return a.hold == b.hold && a.spans.inputs == b.spans.inputs && a.spans.mixed == b.spans.mixed &&
         std::equal(a.spans.meanings, a.spans.meanings + 16, b.spans.meanings);
}

// Outputs of a matrix that stand side by side and are packed alike.
struct Piece {
  Layout layout;
  Weights weights{};
  Memory memory;
  std::vector<float> factors;
  std::vector<std::int32_t> order;  // in which it wants x's columns; empty: as they are
  std::int64_t first = 0;           // of its outputs, among the matrix's
  const std::int32_t* order_or_null() const { return order.empty() ? nullptr : order.data(); }
};

// Packed weights and what they own.
struct Linear {
  std::vector<Piece> pieces;
  std::int64_t rows = 0, columns = 0;
  bool gate_up = false;
  Format format{};
  std::vector<float> bias;
  std::int64_t nbytes() const {
    std::size_t bytes = bias.size() * sizeof(float);
    for (const Piece& piece : pieces)
      bytes += piece.memory.bytes() + (piece.factors.size() + piece.order.size()) * 4;
    return static_cast<std::int64_t>(bytes);
  }
};

// Experts keep their matrices alive.
struct Experts {
  std::vector<std::shared_ptr<Linear>> held;
  std::vector<const Weights*> gate_up, down;
  ExpertOrders orders;
  std::vector<float> correction, expert_scale;
  Mixture mixture{};
  Format format{};
};

// A matrix for each head; keeps them alive.
struct Heads {
  std::vector<std::shared_ptr<Linear>> held;
  std::vector<const Weights*> matrices;
  Format format{};
  std::int64_t rows() const { return held[0]->rows; }
  std::int64_t columns() const { return held[0]->columns; }
  std::int64_t nbytes() const {
    std::int64_t bytes = 0;
    for (const auto& one : held) bytes += one->nbytes();
    return bytes;
  }
};

// Embeddings of tokens.
struct Table {
  std::int64_t rows = 0, columns = 0;
  Format format{};
  std::shared_ptr<Linear> linear;  // tied
  Memory memory;                   // untied: the rows as they are, or bytes
  std::vector<float> scales;       // of bytes: one for each `share` columns of a row
  std::int64_t share = 0;
  std::int64_t nbytes() const {
    return linear ? linear->nbytes() : static_cast<std::int64_t>(memory.bytes() + scales.size() * sizeof(float));
  }
};

}  // namespace inflight
