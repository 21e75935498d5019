// Compiled once per instruction set: gathers the kernels of INFLIGHT_ISA into its table.
//
// Only headers that live in this namespace or declare plain functions may be included: an inline function shared with
// other files could be kept in the version compiled here, for instructions that the machine lacks.
#include "attention.h"
#include "gemm.h"
#include "norm_rope.h"
#include "pack.h"
#include "probes.h"
#include "sampling.h"
#include "types.h"

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

namespace inflight::INFLIGHT_ISA {

extern const Kernels kernels;

namespace {

// Calls `then` with the kind of arithmetic for a format.
template <class Then>
INLINE void with(Format format, Then&& then) {
  if (format == Format::bf16) {
    then(Halves{});
  } else {
    then(Floats{});
  }
}

// The same for packed weights, which may be int8 under any format.
template <class Then>
INLINE void with(Format format, const Weights& w, Then&& then) {
  with(format, [&](auto f) {
    if (w.scales != nullptr) {
      then(Bytes<typename decltype(f)::Value>{});
    } else {
      then(f);
    }
  });
}

// then.operator()<F, Keys, Values>() for an arena, which may be int8 under any format too: F is of queries and of what
// comes out, the others of the products with keys and with values.
template <class Then>
INLINE void with(Format format, const Arena& arena, Then&& then) {
  with(format, [&](auto f) {
    using F = decltype(f);
    if (arena.bytes) {
      then.template operator()<F, Bytes<typename F::Value>, Bytes<typename F::Value, true>>();
    } else {
      then.template operator()<F, F, F>();
    }
  });
}

void pack(Pool& pool, Format format, const SourceMatrix* parts, const Weights& w) {
  if (w.scales != nullptr) return pack_bytes(pool, parts, w);
  with(format, [&](auto f) { pack_weights<decltype(f)>(pool, parts, w); });
}

void copy_rows(Pool& pool, Format format, const SourceMatrix& m, std::int64_t columns, void* out) {
  with(format, [&](auto f) {
    copy_table(pool, m, columns, static_cast<typename decltype(f)::Value*>(out));
  });
}

void embed_packed(Pool& pool, Format format, const Weights& w, const std::int32_t* ids, std::int64_t tokens,
                  float* out) {
  with(format, w, [&](auto f) { embed_from_packed<decltype(f)>(pool, w, ids, tokens, out); });
}

void embed_rows(Pool& pool, Format format, const void* rows, std::int64_t columns, const std::int32_t* ids,
                std::int64_t tokens, float* out) {
  with(format, [&](auto f) {
    embed_from_rows(pool, static_cast<const typename decltype(f)::Value*>(rows), columns, ids, tokens, out);
  });
}

void rms_norm(Pool& pool, Format format, const float* x, const float* weight, float eps, std::int64_t tokens,
              std::int64_t width, void* out) {
  with(format, [&](auto f) {
    normalise(pool, x, weight, eps, tokens, width, static_cast<typename decltype(f)::Value*>(out));
  });
}

void gemm(Pool& pool, Format format, const void* x, const Weights& w, std::int64_t tokens, Epilogue epilogue,
          void* out) {
  with(format, w, [&](auto f) { product<decltype(f)>(pool, x, w, tokens, epilogue, out); });
}

void rope_and_write(Pool& pool, Format format, const float* qkv, std::int64_t heads, const Arena& arena,
                    std::int64_t layer, const Layout& layout, const Rope& rope, void* q_out) {
  with(format, arena, [&]<class F, class Keys, class>() {
    rotate_and_write<F, Keys>(pool, qkv, heads, arena, layer, layout, rope, static_cast<typename F::Value*>(q_out));
  });
}

void attention(Pool& pool, Format format, const void* q, std::int64_t heads, const Arena& arena, std::int64_t layer,
               const Layout& layout, float scale, std::int64_t window, void* out) {
  with(format, arena, [&]<class F, class Keys, class Values>() {
    using Value = typename F::Value;
    Attention<F, Keys, Values>(static_cast<const Value*>(q), heads, arena, layer, layout, scale, window,
                               static_cast<Value*>(out))
        .run(pool);
  });
}

}  // namespace

const Kernels kernels = {
    TEXT(INFLIGHT_ISA), pack,      copy_rows,   embed_packed,   embed_rows, rms_norm, gemm,
    rope_and_write,     attention, sample_rows, score_rows, read_bandwidth, peak,
};

}  // namespace inflight::INFLIGHT_ISA
