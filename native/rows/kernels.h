// The kernels of rows, each a function that every instruction set compiles: ROW_KERNEL(name, arguments).
//
// Included once for the table of them (types.h), and once for that of an instruction set (rows.cpp).
ROW_KERNEL(pack, Pool&, Format, Hold, const SourceMatrix* parts, const Weights&)
ROW_KERNEL(copy_rows, Pool&, Format, const SourceMatrix&, std::int64_t columns, void* out)
ROW_KERNEL(embed_packed, Pool&, Format, Hold, const Weights&, const std::int32_t* ids, std::int64_t tokens, float* out)
ROW_KERNEL(embed_rows, Pool&, Format, const void* rows, std::int64_t columns, const std::int32_t* ids,
           std::int64_t tokens, float* out)
ROW_KERNEL(copy_bytes, Pool&, const SourceMatrix&, std::int64_t columns, std::int64_t share, std::int8_t* out,
           float* scales)
ROW_KERNEL(embed_bytes, Pool&, const std::int8_t* rows, const float* scales, std::int64_t columns, std::int64_t share,
           const std::int32_t* ids, std::int64_t tokens, float* out)
ROW_KERNEL(rms_norm, Pool&, Format, const float* x, const float* weight, float eps, std::int64_t tokens,
           std::int64_t width, void* out)
ROW_KERNEL(layer_norm, Pool&, Format, const float* x, const float* weight, const float* bias, float eps,
           std::int64_t tokens, std::int64_t width, void* out)
ROW_KERNEL(layer_norm_sum, Pool&, Format, float* x, const float* weight, const float* bias, float eps,
           std::int64_t tokens, std::int64_t width, void* out)
ROW_KERNEL(add_rows_of, Pool&, Format, const void* rows, std::int64_t columns, const std::int32_t* ids,
           std::int64_t tokens, float* out)
ROW_KERNEL(mean, Pool&, const float* x, const std::int32_t* starts, const std::int32_t* ends, std::int64_t count,
           std::int64_t width, float* out)
ROW_KERNEL(to_act, Pool&, Format, const float* x, std::int64_t tokens, std::int64_t width, void* out)
ROW_KERNEL(activate, Pool&, Format, Nonlinearity, const float* parameters, const float* x, const float* by,
           std::int64_t stride, std::int64_t tokens, std::int64_t width, void* out)
ROW_KERNEL(add, Pool&, const float* x, const float* weight, float eps, float factor, std::int64_t tokens,
           std::int64_t width, float* out)
ROW_KERNEL(scale, Pool&, float* x, float factor, std::int64_t tokens, std::int64_t width)
ROW_KERNEL(soft_cap, Pool&, float* x, float cap, std::int64_t tokens, std::int64_t width)
// logits [tokens, experts] → of each token the experts by rank, and their weights, both [tokens, top_k]
ROW_KERNEL(route, Pool&, const float* logits, std::int64_t tokens, const Mixture&, std::int32_t* experts,
           float* weights)
// to[i][j] = from[rows[i]][order[j]], numbers of `item` bytes; rows, order: null is as they are
ROW_KERNEL(gather, Pool&, const void* from, const std::int32_t* rows, const std::int32_t* order, std::int64_t count,
           std::int64_t columns, std::int64_t item, void* to)
// out[t] += Σ weights[t, r] · x[places[t, r]] over r in rising order, rows of `width`
ROW_KERNEL(add_weighted, Pool&, const float* x, const std::int32_t* places, const float* weights, std::int64_t top_k,
           std::int64_t tokens, std::int64_t width, float* out)
ROW_KERNEL(add_gated, Pool&, const float* x, const float* gate, std::int64_t tokens, std::int64_t width, float* out)
ROW_KERNEL(rope_and_write, Pool&, Format, const Projection&, const KVLayer&, const AttentionMetadata&, const Rope&,
           void* q_out)
// Of latent attention (rows/latent.h): q [tokens, heads, nope + rotated], kv [tokens, key_dim] → the cache, the first
// `nope` of each query, and the rotated end of each in q_out [tokens, heads, key_dim].
ROW_KERNEL(rope_and_write_latent, Pool&, Format, const float* q, const float* kv, std::int64_t heads, std::int64_t nope,
           const KVLayer&, const AttentionMetadata&, const Rope&, void* nope_out, void* q_out)
// x [count, tokens, width] of heads from `first` on → the beginnings of theirs in out [tokens, heads, stride]
ROW_KERNEL(place_heads, Pool&, Format, const float* x, std::int64_t count, std::int64_t tokens, std::int64_t width,
           std::int64_t heads, std::int64_t first, std::int64_t stride, void* out)
// Of the first channels of rows of x, at a stride of `width`: out [tokens, channels] = silu of the convolution
ROW_KERNEL(convolve, Pool&, Format, const StateView&, const AttentionMetadata&, const Convolution&, const float* x,
           std::int64_t width, float* out)
// x [tokens, 3 · channels]: out = x1 · convolution of x0 · x2
ROW_KERNEL(convolve_gated, Pool&, Format, const StateView&, const AttentionMetadata&, const Convolution&,
           const float* x, void* out)
// qkv [tokens, channels], z in rows at a stride of `width`, gates [tokens, 2 · heads] → out [tokens, heads ·
// value_dim]
ROW_KERNEL(delta_rule, Pool&, Format, const StateView&, const AttentionMetadata&, const DeltaRule&, const float* qkv,
           const float* z, std::int64_t width, const float* gates, void* out)
ROW_KERNEL(gate, Pool&, Format, const float* gate, std::int64_t tokens, std::int64_t width, void* x)
ROW_KERNEL(sample, Pool&, float* logits, std::int64_t rows, std::int64_t vocabulary, const Sampling&)
ROW_KERNEL(score, Pool&, float* logits, std::int64_t rows, std::int64_t vocabulary, const std::int32_t* token_ids,
           const Logprobs&)
