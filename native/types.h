// Arguments of the kernels: plain structs over memory that others own; and the table of functions that each
// instruction set fills.
//
// Letters as in protocol/: T tokens, C chunks, S sampled rows, H query heads, G key/value heads, D head dimension,
// B block size. A "lane" is four bytes: one float32, or a pair of bf16 that stand next to each other along the
// dimension that is summed over, or four int8. A "step" is one lane of that dimension: 2 values in bf16, 1 in
// float32, 4 in int8.
#pragma once
#include <cstdint>

#include "pool/pool.h"

namespace inflight {

enum class Format : std::int32_t { bf16, f32 };                // how weights, keys, values and activations are held
enum class Hold : std::int32_t { act, int8, int4 };            // how weights are packed; act: in the format
// How a checkpoint holds its weights. blocks: as GGUF does.
enum class Source : std::int32_t { bf16, f16, f32, codes, blocks };
// Types of such blocks (blocks.h): first those of codes of 4 bits.
enum class BlockType : std::int32_t { q4_0, q4_1, q4_k, iq4_nl, iq4_xs, mxfp4, q5_0, q5_1, q8_0, q5_k, q6_k };
constexpr bool has_codes(BlockType type) { return type <= BlockType::mxfp4; }
constexpr bool has_offsets(BlockType type) {
  return type == BlockType::q4_1 || type == BlockType::q4_k || type == BlockType::q5_1 || type == BlockType::q5_k;
}
constexpr std::int64_t group_inputs(BlockType type) { return type == BlockType::q6_k ? 16 : 32; }
// What becomes of a sum of products. gate_up: silu(gate) · up; gate_up_gelu: gelu(gate) · up, by tanh;
// gate_up_gelu_erf: gelu itself; gelu, gelu_erf, relu: of what has no gate, held as activations are; gate_up_clamped:
// as gpt-oss has it (gemm.h).
enum class Epilogue : std::int32_t {
  store, residual, gate_up, gate_up_gelu, gate_up_gelu_erf, gate_up_clamped, gelu, gelu_erf, relu
};
// gelu by tanh, and itself; relu(x)²; xIELU with two parameters (elementary.h).
enum class Nonlinearity : std::int32_t { silu, gelu, gelu_erf, relu, relu2, tanh, xielu };

constexpr std::int64_t max_head_dim = 1024;
constexpr std::int64_t tile_positions = 64;                    // of keys and values, aligned to absolute positions
constexpr std::int64_t panel = 16;                             // outputs that stand side by side
constexpr std::int64_t group_lanes = 32;                       // outputs of a group: two panels
constexpr int max_span = 32;                                  // inputs of a span; activations that share a scale
constexpr std::int64_t max_group = 128;                       // weights of an output that may share a scale

// W[N, K] as [groups][steps][32] lanes: a group's memory is read front to back by the thread that computes its outputs.
// gate_up: panel 0 of a group is gate outputs, panel 1 the up outputs of the same rows.
// Lanes past N and values past K are zero.
// int8, int4: a step is a span of 16 or 32 inputs that share scales; a larger group of a format is several, each with
// the group's. It begins with the scales of the 32 outputs as float16, then their offsets if there are any, in units of
// the output's factor; then lines of codes. int8: a byte is the value + 128, and lane n of line d has inputs 4 d …
// 4 d + 3 of the span. int4: two inputs to a byte, and lane n of line d has inputs 8 d … 8 d + 3 in its low halves of
// bytes, 8 d + 4 … in the high ones.
struct Weights {
  std::uint32_t* data;
  float* factors;              // int8, int4: [groups][32], of outputs; else null
  std::int64_t rows, columns;  // N (gate_up: F), K
  std::int64_t steps, groups;
  std::int64_t group_spans;    // steps that share a scale, in int8 and int4: where weights are packed
  std::int64_t step_lanes;     // of a group: 32, more where a step is a span
  std::int64_t out_stride;     // from one row of outputs to the next: N, more where others stand beside these
  const float* bias;           // [rows], of gate_up [2][groups · 16], of gate and of up; or null
  bool gate_up;
  struct Spans {
    std::int64_t inputs;         // of a span: 16 or 32
    bool offsets;
    bool mixed;                  // int8: inputs of a span are weights of sums of them (mix_span), and so is x
    std::uint8_t meanings[16];   // int4: the values that codes stand for, + 128
    std::int64_t first_codes() const { return offsets ? group_lanes : panel; }  // lane of a step
  } spans;                     // int8, int4
};

struct SourceMatrix {
  // [rows, columns], row-major; codes: a byte each, with its sign in int8; blocks: [rows][blocks]
  const void* data;
  std::int64_t rows;
  Source kind;
  const float* factors;        // codes: [rows]
  // codes: [rows, groups of inputs] as they are held; offsets or null
  const std::uint16_t *group_scales, *group_offsets;
  struct Blocks {
    BlockType type;
    std::int64_t values, nbytes;  // of one
  } blocks;
};

// Rows [first, first + rows) of x, and of what comes out, go with one matrix. added: by row of x the numbers that are
// added to its sums and biases before the epilogue, [N], of gate_up [2][F], or null; what is behind them may be read,
// 16 numbers.
struct Share {
  const Weights* weights;
  std::int64_t first, rows;
  const float* const* added = nullptr;
};

enum class ExpertScores { softmax, sigmoid, sparsemixer };  // of experts, from a router's logits

// A mixture: of each expert the matrices of gate and up, and of down; how logits become experts (protocol: Routing).
struct Mixture {
  const Weights *const *gate_up, *const *down;  // [experts]
  std::int64_t experts, top_k, groups, top_groups, group_best;
  ExpertScores scores;
  bool renormalize;
  const float* correction;    // [experts] or null
  const float* expert_scale;  // the same
  float scale, sum_offset, jitter;
  Epilogue gating;            // of gate and up
};

// What one layer keeps in the blocks of its KV group. A block is one run of lanes with a place for each of the group's
// layers; in a layer's place stand its heads, of each keys as [key_dim / per_step][B] lanes, then values as
// [B / per_step][padded_dim] lanes (none where value_dim is 0: values are a part of the keys). int8: four to a lane
// (the last ones of a key may be none), of keys value + 128, and [B] scales of the keys follow, then those of the
// values.
struct KVLayer {
  std::uint32_t* data;       // its place in block 0
  std::int64_t block_lanes;  // from one block to the next
  std::int64_t blocks, block_size, kv_heads, key_dim, value_dim, padded_dim;  // padded: of values
  std::int64_t key_lanes, scales_at, head_lanes;  // lanes of one head's keys; up to its scales; of all
  bool bytes;                                     // int8
  bool values_in_keys() const { return key_lanes == scales_at; }  // the first value_dim numbers of them
  std::uint32_t* block(std::int64_t id) const { return data + id * block_lanes; }
};

constexpr std::int64_t max_kernel = 16;  // inputs that a short convolution sees

// What a recurrent layer keeps of a sequence, from these bytes of its state on: the last inputs of a convolution,
// [inputs][channels] in the format, the oldest first; and for each head a matrix [padded values / 16][padded keys][16]
// in float32. Keys are padded to whole fours, values to whole panels, with zeros.
struct LayerState {
  std::int64_t inputs, channels, heads, key_dim, value_dim;
  std::int64_t padded_keys, padded_values, inputs_at, matrices_at;
};

// A state of all layers for each row, then the snapshots, `bytes` each.
struct StateCache {
  char* data;
  std::int64_t bytes, rows, snapshots;
};

// Of each chunk the row whose state it goes on with; and the entries [snapshot_start[c], snapshot_start[c + 1]) that
// say, as of which positions, rising, it is copied to which snapshot.
struct StateMetadata {
  const std::int32_t *rows, *snapshot_start, *positions, *slots;
};

// One layer's.
struct StateView {
  const StateCache& cache;
  const LayerState& layer;
  const StateMetadata& metadata;
};

// Depthwise. weight: [kernel][channels], of the oldest input first; bias: [channels] or null.
struct Convolution {
  const float *weight, *bias;
  std::int64_t channels, kernel;
};

// A gated delta rule over heads of values, of which as many neighbours as there are to a head of keys share that.
// decay, step_bias: [heads]; norm: [value_dim].
struct DeltaRule {
  std::int64_t key_heads;
  const float *decay, *step_bias, *norm;
  float eps;
};

struct AttentionMetadata {
  const std::int32_t *positions, *query_start, *context_len, *block_tables;
  std::int64_t tokens, chunks, table_width;
};

// One key/value head of one chunk for a few queries, or a piece of that.
struct AttentionTask {
  std::int32_t chunk, head, token, tokens;  // token: row of q
  std::int32_t first, last;                 // partitions
  std::int32_t part;                        // of a cut task: where the result of partition `first` is kept; else −1
};

// How attention under one window is divided: once for a pass, for all layers with the same heads.
struct AttentionPlan {
  std::int64_t heads, kv_heads, padded_dim, window;
  bool causal;
  AttentionTask *tasks, *wholes;  // tasks and pieces of tasks, the longest first; the tasks that were cut, as they were
  std::int64_t count, cut, parts, cost;  // of tasks; of wholes; results of pieces that are kept; of all together
  Buffer memory;
};

struct Rope {
  const float *cos, *sin;        // [positions, pairs]
  std::int64_t pairs;            // of a head that are rotated: the first 2 · pairs of its numbers
  const float* q_scale;          // [positions], what queries are multiplied by; or null
  const float *q_norm, *k_norm;  // [D], or of all heads at once; or null
  const float* v_norm;           // [D] or null
  bool q_norm_all, k_norm_all;   // over all heads at once
  bool norms_last;               // of what is rotated; else before
  float eps;
};

// What a row of a projection holds: so many heads of queries; behind them keys, if any; behind those values, or the
// keys as they come are the values, too.
struct Projection {
  const float* rows;
  std::int64_t heads;
  bool keys, values;
};

// How scores become probabilities. soft_cap c: c · tanh(score / c), or 0. sinks: of each query head a score without a
// value, [H] or null. position_bias: what is added by distance, [H][2 · reach + 63], of distance 0 at reach − 1; or
// null.
struct Scores {
  float scale, soft_cap;
  const float* sinks;
  const float* position_bias;
  std::int64_t reach;
};

// Where the log-probabilities of S rows go: of one token each, and of the likeliest.
struct Logprobs {
  const std::int32_t* wanted;  // likeliest tokens of each row
  float* values;
  std::int32_t* top_ids;
  float* top_values;
  std::int64_t width;  // columns of top_ids and top_values
};

struct Sampling {
  const float *temperature, *top_p, *min_p, *repetition_penalty, *presence_penalty, *frequency_penalty;
  const std::int32_t *top_k, *prompt_lengths, *bias_offsets, *bias_ids;
  const std::uint64_t* seed;
  const std::uint32_t *sample_index, *draw_index;
  const bool* want_logprobs;
  const float* bias_values;
  const std::int32_t* const* histories;  // null where there is none
  const std::int64_t* history_lengths;
  const std::uint32_t* const* allowed;  // a bit for each token that may be drawn; null: all
  std::int32_t* token_ids;
  Logprobs logprobs;
};

// What is done to numbers one by one or row by row.
struct RowKernels {
#define ROW_KERNEL(name, ...) void (*name)(__VA_ARGS__);
#include "rows/kernels.h"
#undef ROW_KERNEL
  double (*read_bandwidth)(Pool&, const void* data, std::int64_t bytes);  // bytes per second of one pass
};

// Sums of products: activations in one format by weights, keys and values as they are held. (int4: gemm alone.)
struct ProductKernels {
  // Of shares whose matrices are held alike and have the same columns, and whose rows follow one another from 0.
  void (*gemm)(Pool&, const void* x, const Share* shares, std::int64_t count, Epilogue, void* out);
  void (*divide)(Pool&, const KVLayer&, const AttentionMetadata&, AttentionPlan&);  // for its heads and window
  void (*attention)(Pool&, const void* q, const KVLayer&, const AttentionMetadata&, const AttentionPlan&, const Scores&,
                    void* out);
  double (*peak)(Pool&, double seconds);  // operations per second
};

// An instruction set: of each kind of kernel the best that it can run.
struct Kernels {
  const char* name;
  const RowKernels& rows;
  const ProductKernels &bf16, &f32;            // everything in one format
  const ProductKernels &int8_bf16, &int8_f32;  // int8 under activations in that format
  const ProductKernels &int4_bf16, &int4_f32;
};

struct InstructionSet {
  const char *name, *needs;  // features of the CPU, by the compiler's names
  bool runs;                 // on this machine
  const Kernels* kernels;    // null where this build has none
  bool available() const { return runs && kernels != nullptr; }
};

// Those of this architecture, best first.
const InstructionSet* instruction_sets(int* count);

}  // namespace inflight
