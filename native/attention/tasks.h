// Divides attention into tasks, and puts them in the order in which they are begun.
//
// A task is one key/value head of one chunk for a few queries, with all query heads that read it. A task that is long
// beside the others is cut into its partitions, pieces of 512 positions that the arithmetic keeps separate anyway, so
// that no thread is left with it at the end.
#pragma once
#include "attention/rows.h"
#include "pool/pool.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

constexpr std::int64_t partition_positions = 512;  // aligned to absolute positions
constexpr std::int64_t rows_per_task = 96;      // rows: queries of all heads
constexpr std::int64_t pieces_per_thread = 8;   // a task above this part of a thread's work is cut
constexpr std::int64_t max_parts_bytes = 64 << 20;  // that results of pieces may take until they are merged

class AttentionPartition {
 public:
  // causal: no query sees past its own position; else as far as back, or all of its chunk.
  AttentionPartition(const AttentionMetadata& metadata, std::int64_t kv_heads, std::int64_t group, std::int64_t window,
                     bool causal)
      : metadata_(metadata), kv_heads_(kv_heads), group_(group), window_(window), causal_(causal),
        tokens_per_task_(group >= rows_per_task ? 1 : rows_per_task / group) {}

  // part_bytes: that the result of a piece takes. Tasks of which there would be too many pieces stay whole, which
  // changes no bits.
  void plan(Pool& pool, std::int64_t part_bytes, AttentionPlan& plan) const {
    for_tasks([&](const AttentionTask& task) { plan.cost += cost(task); });
    std::int64_t most = pool.threads() > 1 ? plan.cost / (pieces_per_thread * pool.threads()) : plan.cost;
    while (parts_above(most) * part_bytes > max_parts_bytes) most = 2 * most + 1;
    // Sorted by the power of two of the cost: counted first, then put into place.
    std::int64_t places[64] = {};
    const auto place = [&](const AttentionTask& task) -> std::int64_t& {
      return places[__builtin_clzll(static_cast<std::uint64_t>(cost(task)) | 1)];
    };
    for_pieces(most, [&](AttentionTask& task) { ++plan.cut, plan.parts += task.last - task.first + 1; },
               [&](const AttentionTask& task) { ++plan.count, ++place(task); });
    std::int64_t before = 0;
    for (auto& at : places) {
      const std::int64_t those = at;
      at = before, before += those;
    }
    plan.tasks =
        static_cast<AttentionTask*>(plan.memory.reserve((plan.count + plan.cut + 1) * sizeof(AttentionTask)));
    plan.wholes = plan.tasks + plan.count;
    std::int32_t cut = 0, parts = 0;
    for_pieces(most,
               [&](AttentionTask& task) {
                 task.part = parts, parts += task.last - task.first + 1;
                 plan.wholes[cut++] = task;
               },
               [&](const AttentionTask& task) { plan.tasks[place(task)++] = task; });
  }

  std::int64_t max_rows() const { return tokens_per_task_ * group_; }
  std::int64_t rows(const AttentionTask& task) const { return task.tokens * group_; }
  std::int64_t first_seen(std::int64_t position) const {
    const std::int64_t first = causal_ ? position + 1 - window_ : position - window_;
    return window_ > 0 && first > 0 ? first : 0;
  }
  std::int64_t last_seen(const AttentionTask& task, std::int64_t position) const {
    if (causal_) return position;
    const std::int32_t* start = metadata_.query_start + task.chunk;
    const std::int64_t last = metadata_.context_len[task.chunk] + start[1] - start[0] - 1;
    return window_ > 0 && position + window_ < last ? position + window_ : last;
  }
  std::int64_t first_position(const AttentionTask& task) const {  // of its queries
    return metadata_.context_len[task.chunk] + task.token - metadata_.query_start[task.chunk];
  }
  std::int64_t past_seen(const AttentionTask& task) const {  // by any of them
    return last_seen(task, first_position(task) + task.tokens - 1) + 1;
  }
  // The positions of a partition that any query of the task sees, from the beginning of a tile.
  std::int64_t begin(const AttentionTask& task, std::int64_t partition) const {
    const std::int64_t seen = first_seen(first_position(task)) / tile_positions * tile_positions;
    return partition * partition_positions > seen ? partition * partition_positions : seen;
  }
  std::int64_t end(const AttentionTask& task, std::int64_t partition) const {
    const std::int64_t past = past_seen(task), end = (partition + 1) * partition_positions;
    return end < past ? end : past;
  }

 private:
  // Tiles of rows and positions.
  std::int64_t cost(const AttentionTask& task) const {
    const std::int64_t positions = end(task, task.last) - begin(task, task.first);
    return (positions + tile_positions - 1) / tile_positions * ((rows(task) + query_tokens - 1) / query_tokens);
  }

  // each(task) for all tasks, uncut.
  template <class Each>
  void for_tasks(Each&& each) const {
    for (std::int64_t c = 0; c < metadata_.chunks; ++c) {
      const std::int64_t length = metadata_.query_start[c + 1] - metadata_.query_start[c];
      for (std::int64_t t = 0; t < length; t += tokens_per_task_) {
        const std::int64_t n = length - t < tokens_per_task_ ? length - t : tokens_per_task_;
        AttentionTask task{std::int32_t(c), 0, std::int32_t(metadata_.query_start[c] + t), std::int32_t(n), 0, 0, -1};
        task.first = static_cast<std::int32_t>(first_seen(first_position(task)) / partition_positions);
        task.last = static_cast<std::int32_t>((past_seen(task) - 1) / partition_positions);
        for (; task.head < kv_heads_; ++task.head) each(task);
      }
    }
  }

  // Pieces of the tasks that cost more than `most`.
  std::int64_t parts_above(std::int64_t most) const {
    std::int64_t parts = 0;
    for_pieces(most, [&](AttentionTask& task) { parts += task.last - task.first + 1; }, [](const AttentionTask&) {});
    return parts;
  }

  // each(task) for tasks that cost up to `most`; of the others whole(task), then each(piece).
  template <class Whole, class Each>
  void for_pieces(std::int64_t most, Whole&& whole, Each&& each) const {
    for_tasks([&](AttentionTask task) {
      if (task.last == task.first || cost(task) <= most) return each(task);
      whole(task);
      for (const std::int32_t last = task.last; task.first <= last; ++task.first, ++task.part) {
        task.last = task.first;
        each(task);
      }
    });
  }

  const AttentionMetadata& metadata_;
  std::int64_t kv_heads_, group_, window_;
  bool causal_;
  std::int64_t tokens_per_task_;
};

}  // namespace inflight::INFLIGHT_ISA
