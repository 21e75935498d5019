// One forward pass as its operations see it: where its tokens lie, the KV cache, the states, how attention is divided.
//
// That all of it fits together is checked here once, so that an operation only compares sizes.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention/kv_cache.h"
#include "pass/array.h"
#include "pass/backend.h"
#include "pass/metadata.h"
#include "recurrence/state_cache.h"
#include "types.h"
#include "weights/adapters.h"

namespace inflight {

// What one run of a program reads besides the pass: rows to gather, and ranges of rows that texts are in.
struct RunInputs {
  std::vector<std::int64_t> places;
  std::vector<std::int32_t> firsts, ends;
};

// One forward pass: what lies where is checked, and attention is divided once for all layers that see alike.
class PreparedPass {
 public:
  PreparedPass(Backend& backend, std::shared_ptr<KVCacheMemory> held, nb::handle token_ids, nb::handle positions,
               nb::handle query_start, nb::handle context_len, nb::handle block_tables,
               std::shared_ptr<StateCacheMemory> states, nb::handle state_rows, nb::handle snapshot_start,
               nb::handle snapshot_positions, nb::handle snapshot_slots, nb::handle token_types)
      : backend_(backend), cache_(std::move(held)), states_(std::move(states)),
        metadata_(positions, query_start, context_len, block_tables),
        token_ids_(token_ids, "token_ids", Kind::i32, {metadata_.all.tokens}) {
    if (cache_->format != backend.format()) refuse("this KV cache belongs to a backend of another dtype");
    if (metadata_.groups != cache_->layout.group_count)
      refuse("this KV cache has " + std::to_string(cache_->layout.group_count) + " groups, and there are "
             "block tables for " + std::to_string(metadata_.groups));
    for (std::int64_t c = 0; c < metadata_.all.chunks; ++c) {
      for (std::int64_t g = 0; g < metadata_.groups; ++g)
        metadata_.check_blocks(*cache_, g, c, metadata_.all.context_len[c]);
      past_position_ = std::max(past_position_, metadata_.end(c));
    }
    if (states_ != nullptr) {
      if (states_->format != backend.format()) refuse("these states belong to a backend of another dtype");
      where_.emplace(*states_, metadata_.all, state_rows, snapshot_start, snapshot_positions, snapshot_slots);
    }
    const std::initializer_list<std::int64_t> each_token = {tokens()};
    if (!token_types.is_none()) token_types_.emplace(token_types, "token_types", Kind::i32, each_token);
  }

  Backend& backend() { return backend_; }
  Format format() const { return backend_.format(); }
  Kind act() const { return backend_.act(); }
  // all() runs operations as one turn at the backend.
  template <class All>
  void run_all(RunInputs inputs, All&& all) {
    if (inputs.firsts.size() != inputs.ends.size()) refuse("each range of rows has a first row and an end");
    backend_.take_turn([&] {
      inputs_ = std::move(inputs);
      all();
    });
  }
  // work(pool, kernels) of an operation.
  template <class Work>
  void run(Work&& work) {
    backend_.run_in_turn(work);
  }
  const RunInputs& inputs() const { return inputs_; }

  const std::int32_t* token_ids() const { return token_ids_.data<std::int32_t>(); }
  std::int64_t tokens() const { return metadata_.all.tokens; }
  // Of each token 1 where it is of the second text of a pair, else 0; null where all are of the first.
  const std::int32_t* token_types() const { return token_types_ ? token_types_->data<const std::int32_t>() : nullptr; }
  std::int64_t past_position() const { return past_position_; }
  const AttentionMetadata& metadata() const { return metadata_.all; }
  AttentionMetadata metadata_of(std::int64_t layer) const { return metadata_.of(group_of(layer)); }

  const KVLayer& layer_at(std::int64_t layer) const {
    const std::vector<KVLayer>& layers = cache_->layout.layers;
    if (layer < 0 || layer >= static_cast<std::int64_t>(layers.size()) || layers[layer].kv_heads == 0)
      refuse("layer " + std::to_string(layer) + " is not in the KV cache");
    return layers[layer];
  }

  StateView state_of(std::int64_t layer) const {
    if (states_ == nullptr || layer < 0 || layer >= static_cast<std::int64_t>(states_->layers.size()))
      refuse("layer " + std::to_string(layer) + " has no state");
    return {states_->cache, states_->layers[layer], where_->all};
  }

  // Which rows are computed with an adapter: rows [firsts, firsts + counts), rising, none twice.
  void adapt(const std::vector<std::int64_t>& firsts, const std::vector<std::int64_t>& counts,
             const std::vector<std::shared_ptr<Adapter>>& adapters) {
    if (firsts.size() != counts.size() || firsts.size() != adapters.size()) refuse("each run of rows has one adapter");
    std::int64_t end = 0;
    for (std::size_t i = 0; i < firsts.size(); ++i) {
      if (firsts[i] < end || counts[i] < 1 || firsts[i] + counts[i] > tokens())
        refuse("runs of rows with an adapter must rise within the pass's " + std::to_string(tokens()) + " tokens");
      backend_.same_format(adapters[i]->format());
      end = firsts[i] + counts[i];
      adapted_.push_back({firsts[i], counts[i], adapters[i]});
    }
  }
  const std::vector<AdaptedRows>& adapted() const { return adapted_; }

  const ProductKernels& attention_kernels() const { return backend_.products(cache_->bytes ? Hold::int8 : Hold::act); }

  // Work is divided alike for all groups; what the window lets queries see of a group's blocks is checked once.
  const AttentionPlan& plan_for(const KVLayer& kept, std::int64_t heads, std::int64_t window, bool causal,
                                std::int64_t layer) {
    const std::int64_t group = group_of(layer);
    const auto known = std::find_if(plans_.begin(), plans_.end(), [&](const auto& plan) {
      return plan->heads == heads && plan->kv_heads == kept.kv_heads && plan->padded_dim == kept.padded_dim &&
             plan->window == window && plan->causal == causal;
    });
    if (known != plans_.end() && std::find(seen_.begin(), seen_.end(), std::pair(window, group)) != seen_.end())
      return **known;
    if (heads < 1 || heads % kept.kv_heads != 0)
      refuse("q must hold a whole number of heads for every key/value head");
    if (window < 0) refuse("window must not be negative");
    metadata_.check_blocks(*cache_, group, window);
    seen_.emplace_back(window, group);
    if (known != plans_.end()) return **known;
    auto plan = std::make_unique<AttentionPlan>(heads, kept.kv_heads, kept.padded_dim, window, causal);
    run([&](Pool& pool, const RowKernels&) { attention_kernels().divide(pool, kept, metadata_.all, *plan); });
    plans_.push_back(std::move(plan));
    return *plans_.back();
  }

 private:
  std::int64_t group_of(std::int64_t layer) const { return cache_->layout.groups[layer]; }

  Backend& backend_;
  std::shared_ptr<KVCacheMemory> cache_;
  std::shared_ptr<StateCacheMemory> states_;  // or null
  MetadataArrays metadata_;
  std::optional<StateArrays> where_;
  std::vector<AdaptedRows> adapted_;
  Array token_ids_;
  std::optional<Array> token_types_;
  RunInputs inputs_;
  std::int64_t past_position_ = 0;  // of all chunks
  std::vector<std::unique_ptr<AttentionPlan>> plans_;
  std::vector<std::pair<std::int64_t, std::int64_t>> seen_;  // windows and groups whose blocks are checked
};

// One of which softmax attention is computed over keys and values of one width.
inline const KVLayer& with_values(const PreparedPass& pass, std::int64_t layer) {
  const KVLayer& found = pass.layer_at(layer);
  if (found.key_dim != found.value_dim)
    refuse("layer " + std::to_string(layer) + " has keys of " + std::to_string(found.key_dim) + " and values of " +
           std::to_string(found.value_dim) + " numbers, which must be equally many");
  return found;
}

}  // namespace inflight
