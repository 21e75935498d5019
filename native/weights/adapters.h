// Low-rank adapters (LoRA, https://arxiv.org/abs/2106.09685): what some rows of a pass add to a layer's products.
//
// An adapter changes some matrices, and its numbers live in memory of its own. Rows of several adapters meet theirs in
// one call: x · Aᵀ in float32 is rounded as activations are, and what B makes of that in float32 is added to the
// matrix's own sums before its epilogue. Each row is computed with its adapter, whatever row stands beside it.
#pragma once
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pass/array.h"
#include "pass/backend.h"
#include "types.h"
#include "weights/packed.h"
#include "weights/packing.h"

namespace inflight {

class Adapter {
 public:
  // Of a part of a matrix's outputs, from `first` on: B [outputs, rank], and where its rank begins among A's rows.
  struct Part {
    std::int64_t first, first_rank;
    std::shared_ptr<Linear> up;
    std::int64_t rank() const { return up->columns; }
    std::int64_t rows() const { return up->rows; }
  };
  // Of a matrix: A of all parts, stacked [ranks, K]. covers: whether every output is in a part.
  struct Delta {
    std::shared_ptr<Linear> base, down;
    std::vector<Part> parts;
    bool covers = false;
  };

  explicit Adapter(const Backend& backend) : format_(backend.format()) {}

  // down: the pieces of A; parts: (first output, pieces of B) of each, ranks in the order of A's rows.
  void add(Backend& backend, std::shared_ptr<Linear> base, nb::list down, nb::list parts) {
    backend.same_format(format_), backend.same_format(base->format);
    Delta delta{base, pack_linear(backend, arena_, down, nb::none(), false), {}, false};
    const std::int64_t outputs = (base->gate_up ? 2 : 1) * base->rows;
    std::int64_t rank = 0, covered = 0;
    for (nb::handle given : parts) {
      const auto part = nb::cast<nb::tuple>(given);
      const auto first = nb::cast<std::int64_t>(part[0]);
      auto up = pack_linear(backend, arena_, nb::cast<nb::list>(part[1]), nb::none(), false);
      if (first < 0 || first + up->rows > outputs)
        refuse("outputs " + std::to_string(first) + " to " + std::to_string(first + up->rows) +
               " are not among the matrix's " + std::to_string(outputs));
      delta.parts.push_back({first, rank, up});
      rank += up->columns, covered += up->rows;
    }
    if (delta.down->columns != base->columns || delta.down->rows != rank)
      refuse("A must be [ranks of all parts, columns of the matrix]");
    delta.covers = covered == outputs;
    of_[base.get()] = std::move(delta);
  }

  const Delta* of(const Linear& base) const {
    const auto found = of_.find(&base);
    return found == of_.end() ? nullptr : &found->second;
  }

  Format format() const { return format_; }
  std::int64_t nbytes() const {
    std::int64_t bytes = 0;
    for (const auto& [_, delta] : of_) {
      bytes += delta.down->nbytes();
      for (const Part& part : delta.parts) bytes += part.up->nbytes();
    }
    return bytes;
  }

 private:
  Format format_;
  WeightArena arena_;  // its own, so that all of its memory goes with it
  std::unordered_map<const Linear*, Delta> of_;
};

// Rows [first, first + rows) of a pass.
struct AdaptedRows {
  std::int64_t first, rows;
  std::shared_ptr<Adapter> adapter;
};

// What adapters add to one product, for as many rows at a time as the caller asks.
class AddedRows {
 public:
  AddedRows(Backend& backend, const std::vector<AdaptedRows>& adapted, const Linear& base)
      : backend_(backend), outputs_((base.gate_up ? 2 : 1) * base.rows) {
    for (const AdaptedRows& one : adapted)
      if (const Adapter::Delta* delta = one.adapter->of(base)) all_.push_back({one.first, one.rows, delta});
  }

  bool none() const { return all_.empty(); }
  // Rows whose numbers stay in the caches between here and their sums, and take little memory.
  std::int64_t rows_at_once() const { return std::max<std::int64_t>(64, (std::int64_t{4} << 20) / outputs_ / 64 * 64); }

  // Of rows [begin, begin + count) of the pass, x being the first of them: by row where its numbers lie, or null.
  const float* const* of(Pool& pool, const RowKernels& rows, const void* x, std::int64_t begin, std::int64_t count) {
    within_.clear();
    for (const Range& one : all_) {
      const std::int64_t first = std::max(one.first, begin), last = std::min(one.first + one.rows, begin + count);
      if (first < last) within_.push_back({first - begin, last - first, one.delta});
    }
    if (within_.empty()) return nullptr;
    const std::int64_t width = lower(pool, rows, x);
    return raise(pool, width, count);
  }

 private:
  struct Range {
    std::int64_t first, rows;
    const Adapter::Delta* delta;
  };
  struct Raised {
    const Range* range;
    const Adapter::Part* part;
  };

  static constexpr std::int64_t min_rows = 4;  // of a share: with fewer its A is read too often

  std::int64_t end() const { return within_.back().first + within_.back().rows; }

  // x · Aᵀ as activations are held, in rows of what is returned.
  std::int64_t lower(Pool& pool, const RowKernels& rows, const void* x) {
    std::int64_t width = 0;
    for (const Range& one : within_) width = std::max(width, one.delta->down->rows);
    std::vector<Weights> matrices;
    std::vector<Share> shares;
    matrices.reserve(within_.size());
    // An A has few outputs: its rows are shared out, so that there is something to do for all threads.
    std::int64_t groups = 0;
    for (const Range& one : within_) groups += one.delta->down->pieces[0].weights.groups;
    const std::int64_t wanted = 2 * pool.threads(), parts = (wanted + groups - 1) / groups;
    for (const Range& one : within_) {
      matrices.push_back(one.delta->down->pieces[0].weights);
      matrices.back().out_stride = width;
      const std::int64_t pieces = std::clamp<std::int64_t>(one.rows / min_rows, 1, parts);
      for (std::int64_t i = 0; i < pieces; ++i) {
        const std::int64_t first = one.rows * i / pieces, last = one.rows * (i + 1) / pieces;
        shares.push_back({&matrices.back(), one.first + first, last - first});
      }
    }
    LowRankMemory& memory = backend_.low_rank_memory();
    auto* sums = static_cast<float*>(memory.sums.reserve(end() * width * sizeof(float)));
    products().gemm(pool, x, shares.data(), static_cast<std::int64_t>(shares.size()), Epilogue::store, sums);
    lowered_ = sums;
    if (backend_.format() == Format::f32) return width;
    void* held = memory.lowered.reserve(end() * width * backend_.item());
    rows.to_act(pool, backend_.format(), sums, end(), width, held);
    lowered_ = held;
    return width;
  }

  // By B, part by part: those of equal ranks and places together.
  const float* const* raise(Pool& pool, std::int64_t width, std::int64_t count) {
    const std::int64_t stride = (outputs_ + panel - 1) / panel * panel + panel;  // so much behind a row may be read
    auto* added = static_cast<float*>(backend_.low_rank_memory().added.reserve(end() * stride * sizeof(float)));
    std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Raised>> alike;
    rows_.assign(static_cast<std::size_t>(count), nullptr);
    for (const Range& one : within_) {
      for (std::int64_t t = one.first; t < one.first + one.rows; ++t) rows_[t] = added + t * stride;
      if (!one.delta->covers) std::memset(added + one.first * stride, 0, one.rows * stride * sizeof(float));
      for (const Adapter::Part& part : one.delta->parts) alike[{part.first, part.rank()}].push_back({&one, &part});
    }
    for (const auto& [place, raised] : alike) {
      const auto [first, rank] = place;
      const void* from = rank == width ? lowered_ : gathered(raised, rank, width);
      std::vector<Weights> matrices;
      std::vector<Share> shares;
      matrices.reserve(raised.size());
      for (const auto& [range, part] : raised) {
        matrices.push_back(part->up->pieces[0].weights);
        matrices.back().out_stride = stride;
        shares.push_back({&matrices.back(), range->first, range->rows});
      }
      products().gemm(pool, from, shares.data(), static_cast<std::int64_t>(shares.size()), Epilogue::store,
                      added + first);
    }
    return rows_.data();
  }

  // Of rows of `width` numbers those of a part's rank, side by side.
  const void* gathered(const std::vector<Raised>& raised, std::int64_t rank, std::int64_t width) {
    const std::int64_t item = backend_.item();
    auto* to = static_cast<char*>(backend_.low_rank_memory().part.reserve(end() * rank * item));
    for (const auto& [range, part] : raised)
      for (std::int64_t t = range->first; t < range->first + range->rows; ++t)
        std::memcpy(to + t * rank * item,
                    static_cast<const char*>(lowered_) + (t * width + part->first_rank) * item, rank * item);
    return to;
  }

  const ProductKernels& products() const { return backend_.products(Hold::act); }

  Backend& backend_;
  std::int64_t outputs_;
  std::vector<Range> all_, within_;
  std::vector<const float*> rows_;
  const void* lowered_ = nullptr;
};

}  // namespace inflight
