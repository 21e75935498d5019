// Logits → tokens and log-probabilities: the arrays that say how, and those that are written, with their types, sizes
// and bounds (sampling.h draws).
#pragma once
#include <nanobind/nanobind.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "pass/array.h"
#include "pass/backend.h"
#include "types.h"

namespace inflight {

// An array for each of n rows, or none.
template <class T>
class OptionalRows {
 public:
  OptionalRows(nb::sequence rows, std::int64_t n, const char* name, Kind kind, std::int64_t size)
      : held_(static_cast<std::size_t>(n)), pointers_(held_.size(), nullptr), lengths_(held_.size(), 0) {
    if (static_cast<std::int64_t>(nb::len(rows)) != n) refuse(std::string(name) + " must have one entry per row");
    std::size_t row = 0;
    for (nb::handle one : rows) {
      if (!one.is_none()) {
        held_[row].emplace(one, name, kind, std::initializer_list<std::int64_t>{size});
        pointers_[row] = held_[row]->template data<T>();
        lengths_[row] = held_[row]->size(0);
      }
      ++row;
    }
  }
  const T* const* data() const { return pointers_.data(); }
  const std::int64_t* lengths() const { return lengths_.data(); }

 private:
  std::vector<std::optional<Array>> held_;
  std::vector<const T*> pointers_;
  std::vector<std::int64_t> lengths_;
};

// The arrays that log-probabilities of n rows are written to.
struct LogprobArrays {
  Array wanted, values, top_ids, top_values;

  LogprobArrays(std::int64_t n, nb::handle wanted_, nb::handle values_, nb::handle top_ids_, nb::handle top_values_)
      : wanted(wanted_, "top_logprobs", Kind::i32, {n}),
        values(values_, "logprobs", Kind::f32, {n}, true),
        top_ids(top_ids_, "top_ids", Kind::i32, {n, any}, true),
        top_values(top_values_, "top_logprobs", Kind::f32, {n, top_ids.size(1)}, true) {}

  Logprobs logprobs() const {
    return {wanted.data<std::int32_t>(), values.data<float>(), top_ids.data<std::int32_t>(),
            top_values.data<float>(), top_ids.size(1)};
  }
};

// Draws a token of each row of logits, which it changes.
inline void sample(Backend& backend, nb::handle logits, nb::handle temperature, nb::handle top_k, nb::handle top_p,
                   nb::handle min_p, nb::handle repetition, nb::handle presence, nb::handle frequency, nb::handle seed,
                   nb::handle sample_index, nb::handle draw_index, nb::sequence histories, nb::handle prompt_lengths,
                   nb::handle bias_offsets, nb::handle bias_ids, nb::handle bias_values, nb::sequence allowed,
                   nb::handle want_logprobs, nb::handle top_logprobs, nb::handle token_ids, nb::handle logprobs,
                   nb::handle top_ids, nb::handle top_values) {
  Array rows(logits, "logits", Kind::f32, {any, any}, true);
  const std::int64_t n = rows.size(0), vocabulary = rows.size(1);
  if (vocabulary < 1) refuse("logits must have columns");
  const auto floats = [&](nb::handle h, const char* name) { return Array(h, name, Kind::f32, {n}); };
  const auto ints = [&](nb::handle h, const char* name) { return Array(h, name, Kind::i32, {n}); };
  const Array a_temperature = floats(temperature, "temperature"), a_top_p = floats(top_p, "top_p"),
              a_min_p = floats(min_p, "min_p"), a_repetition = floats(repetition, "repetition_penalty"),
              a_presence = floats(presence, "presence_penalty"), a_frequency = floats(frequency, "frequency_penalty"),
              a_top_k = ints(top_k, "top_k"), a_lengths = ints(prompt_lengths, "prompt_lengths");
  const Array a_seed(seed, "seed", Kind::u64, {n}), a_sample(sample_index, "sample_index", Kind::u32, {n}),
      a_draw(draw_index, "draw_index", Kind::u32, {n}), a_want(want_logprobs, "want_logprobs", Kind::boolean, {n}),
      a_offsets(bias_offsets, "bias_offsets", Kind::i32, {n + 1}), a_ids(bias_ids, "bias_ids", Kind::i32, {any}),
      a_values(bias_values, "bias_values", Kind::f32, {a_ids.size(0)}),
      a_tokens(token_ids, "token_ids", Kind::i32, {n}, true);
  const LogprobArrays report(n, top_logprobs, logprobs, top_ids, top_values);

  const std::int32_t* at = a_offsets.data<std::int32_t>();
  for (std::int64_t s = 0; s < n; ++s)
    if (at[0] != 0 || at[s] > at[s + 1]) refuse("bias_offsets must begin with 0 and ascend");
  if (n > 0 && at[n] > a_ids.size(0)) refuse("bias_offsets reach past bias_ids");
  for (std::int64_t i = 0; n > 0 && i < at[n]; ++i)
    if (a_ids.data<std::int32_t>()[i] < 0 || a_ids.data<std::int32_t>()[i] >= vocabulary)
      refuse("bias_ids must be token ids");

  const OptionalRows<std::int32_t> known(histories, n, "histories", Kind::i32, any);
  const OptionalRows<std::uint32_t> masks(allowed, n, "allowed", Kind::u32, (vocabulary + 31) / 32);
  const Sampling s{a_temperature.data<float>(), a_top_p.data<float>(), a_min_p.data<float>(),
                   a_repetition.data<float>(), a_presence.data<float>(), a_frequency.data<float>(),
                   a_top_k.data<std::int32_t>(), a_lengths.data<std::int32_t>(), at, a_ids.data<std::int32_t>(),
                   a_seed.data<std::uint64_t>(), a_sample.data<std::uint32_t>(), a_draw.data<std::uint32_t>(),
                   a_want.data<bool>(), a_values.data<float>(), known.data(), known.lengths(), masks.data(),
                   a_tokens.data<std::int32_t>(), report.logprobs()};
  const auto draw = [&](Pool& pool, const RowKernels& kernels) {
    kernels.sample(pool, rows.data<float>(), n, vocabulary, s);
  };
  constexpr std::int64_t brief = 1 << 18;  // logits: one row of a large vocabulary
  n * vocabulary <= brief ? backend.run_briefly(draw) : backend.run(draw);
}

// Log-probabilities of given tokens.
inline void score(Backend& backend, nb::handle logits, nb::handle token_ids, nb::handle top_logprobs,
                  nb::handle logprobs, nb::handle top_ids, nb::handle top_values) {
  Array rows(logits, "logits", Kind::f32, {any, any}, true);
  const std::int64_t n = rows.size(0), vocabulary = rows.size(1);
  const Array tokens(token_ids, "token_ids", Kind::i32, {n});
  for (std::int64_t s = 0; s < n; ++s)
    if (tokens.data<std::int32_t>()[s] < 0 || tokens.data<std::int32_t>()[s] >= vocabulary)
      refuse("token_ids must be token ids");
  const LogprobArrays report(n, top_logprobs, logprobs, top_ids, top_values);
  backend.run([&](Pool& pool, const RowKernels& kernels) {
    kernels.score(pool, rows.data<float>(), n, vocabulary, tokens.data<std::int32_t>(), report.logprobs());
  });
}

}  // namespace inflight
