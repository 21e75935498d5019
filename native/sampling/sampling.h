// From logits to tokens: penalties, filters, one draw per row, log-probabilities. The rules are those of SamplingBatch
// in protocol/sampling.py, to the letter and the same for every instruction set.
//
// A vocabulary is long and what is kept of it short, so that no whole row is sorted. The largest of every 64 logits
// bounds what top-k needs to look at (row_logits.h); what remains is dropped into buckets by its distance from the
// largest (buckets.h). What hangs on the mass of all logits is first decided by a sum of which the far part is in
// float32, with a bound of its error, and where that leaves it open by the sum in double precision: a draw is always
// that of the latter.
#pragma once
#include "pool/parallel.h"
#include "sampling/buckets.h"
#include "types.h"

namespace inflight::INFLIGHT_ISA {

inline double uniform(std::uint64_t seed, std::uint32_t draw, std::uint32_t sample) {
  std::uint32_t c[4] = {draw, sample, 0, 0};
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
    c[0] = static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0;
    c[1] = static_cast<std::uint32_t>(p1);
    c[2] = static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1;
    c[3] = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return static_cast<double>((static_cast<std::uint64_t>(c[1]) << 32 | c[0]) >> 11) * 0x1p-53;
}

// One row of logits and the memory to work on it.
class Row {
 public:
  static std::int64_t scratch_bytes(std::int64_t vocabulary) {
    return vocabulary * 14 + Buckets::bytes(vocabulary) + 65536;
  }

  Row(float* logits, std::int64_t vocabulary, char* scratch)
      : memory_(scratch), row_(logits, vocabulary, memory_), buckets_(vocabulary, memory_) {
    spare_ = memory_.take<float>(vocabulary);
    found_ = memory_.take<Candidate>(vocabulary);
  }

  void run(const Sampling& s, std::int64_t row) {
    row_.look();
    const bool wants = s.want_logprobs[row];
    const bool changes = s.histories[row] != nullptr || s.allowed[row] != nullptr ||
                         s.bias_offsets[row + 1] > s.bias_offsets[row];
    double norm = 0;
    const float* untouched = row_.logits();
    if (wants) {
      norm = row_.log_of_sum();
      alternatives(s.logprobs, row, norm);
      if (changes) {
        std::memcpy(spare_, row_.logits(), row_.count() * 4);
        untouched = spare_;
      }
    }
    if (changes) penalise(s, row);
    const std::int64_t token = draw(s, row);
    s.token_ids[row] = static_cast<std::int32_t>(token);
    if (wants) s.logprobs.values[row] = static_cast<float>(static_cast<double>(untouched[token]) - norm);
  }

  // What `run` reports of a token, without drawing one.
  void score(std::int32_t token, const Logprobs& out, std::int64_t row) {
    row_.look();
    const double norm = row_.log_of_sum();
    alternatives(out, row, norm);
    out.values[row] = static_cast<float>(static_cast<double>(row_.logits()[token]) - norm);
  }

 private:
  // Logits that divided by the temperature reach `least`, in that form → found_.
  std::int64_t gather(float least, float temperature) {
    std::int64_t n = 0;
    row_.each_from(least, temperature, [&](float scaled, std::int32_t id) { found_[n++] = {scaled, id}; });
    return n;
  }

  void alternatives(const Logprobs& out, std::int64_t row, double norm) {
    std::int64_t wanted = out.wanted[row];
    if (wanted > out.width) wanted = out.width;
    if (wanted <= 0) return;
    std::int64_t n = gather(row_.bound(wanted, found_), 1.0f);
    n = order(found_, n, wanted);
    for (std::int64_t i = 0; i < n; ++i) {
      out.top_ids[row * out.width + i] = found_[i].id;
      out.top_values[row * out.width + i] = static_cast<float>(static_cast<double>(found_[i].value) - norm);
    }
  }

  // Who has no bit may not be drawn.
  void mask(const std::uint32_t* allowed) {
    float* logits = row_.logits();
    for (std::int64_t word = 0; word * 32 < row_.count(); ++word) {
      const std::int64_t first = word * 32, past = first + 32 < row_.count() ? first + 32 : row_.count();
      if (allowed[word] == 0xffffffffu) continue;
      for (std::int64_t i = first; i < past; ++i)
        if ((allowed[word] >> (i - first) & 1) == 0) logits[i] = minus_infinity;
    }
    row_.look();
  }

  void penalise(const Sampling& s, std::int64_t row) {
    float* logits = row_.logits();
    if (s.allowed[row] != nullptr) mask(s.allowed[row]);
    for (std::int32_t i = s.bias_offsets[row]; i < s.bias_offsets[row + 1]; ++i) {
      logits[s.bias_ids[i]] += s.bias_values[i];
      row_.look(s.bias_ids[i] / sample_block);
    }
    const std::int32_t* history = s.histories[row];
    if (history == nullptr) return;
    // How often a token stands in the output, and whether it still waits for its penalties.
    constexpr std::uint32_t waiting = 1u << 31;
    auto* marks = reinterpret_cast<std::uint32_t*>(buckets_.memory());
    std::memset(marks, 0, row_.count() * 4);
    const std::int64_t length = s.history_lengths[row];
    for (std::int64_t i = 0; i < length; ++i) {
      if (history[i] < 0 || history[i] >= row_.count()) continue;
      marks[history[i]] = (marks[history[i]] | waiting) + (i >= s.prompt_lengths[row] ? 1 : 0);
    }
    const float repetition = s.repetition_penalty[row];
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int32_t id = history[i];
      if (id < 0 || id >= row_.count() || (marks[id] & waiting) == 0) continue;
      marks[id] &= ~waiting;
      float x = logits[id];
      if (repetition != 1.0f) x = x > 0 ? x / repetition : x * repetition;
      if (marks[id] > 0) {
        x -= s.frequency_penalty[row] * static_cast<float>(marks[id]);
        x -= s.presence_penalty[row];
      }
      logits[id] = x;
    }
    row_.look();
  }

  std::int64_t draw(const Sampling& s, std::int64_t row) {
    const std::int64_t best = row_.greedy();
    const float temperature = s.temperature[row];
    if (!(temperature > 0)) return best;
    const float top = row_.logits()[best] / temperature;
    if (!(top - top == 0)) return best;  // not finite
    const std::int64_t top_k = s.top_k[row];
    const float top_p = s.top_p[row], min_p = s.min_p[row];
    const double u = uniform(s.seed[row], s.draw_index[row], s.sample_index[row]);
    if (top_k <= 0 && min_p <= 0)
      return top_p >= 1 ? draw_by_id(temperature, top, u, best) : draw_of_mass(temperature, top, top_p, u);

    std::int64_t n = 0;
    if (min_p > 0) {
      const double least = __builtin_log(static_cast<double>(min_p));
      const float about = static_cast<float>(top + least);
      const std::int64_t near = gather(about - 1e-5f * __builtin_fabsf(about) - 1e-5f, temperature);
      for (std::int64_t i = 0; i < near; ++i)
        if (static_cast<double>(found_[i].value) - static_cast<double>(top) >= least) found_[n++] = found_[i];
    } else if (top_k <= row_.blocks() / 2) {
      n = gather(row_.bound(top_k, found_) / temperature, temperature);
    } else {
      for (const float distance : distances) {
        n = gather(top - distance, temperature);
        if (n >= top_k) break;
      }
    }
    if (n == 0) return best;
    buckets_.fill(found_, n, top);
    if (top_k > 0) buckets_.keep_first(top_k);
    if (top_p < 1) buckets_.keep_mass(static_cast<double>(top_p), {buckets_.kept_mass(), 0});
    return buckets_.draw(u);
  }

  // Of those that hold the share top_p of the mass of all. Most of a vocabulary is far below the largest: without it
  // first.
  std::int64_t draw_of_mass(float temperature, float top, float top_p, double u) {
    const double share = static_cast<double>(top_p);
    Mass mass;
    if (row_.reached_by_many(top - distances[0], temperature)) {
      buckets_.fill_all(row_, temperature, top);
      const double total = buckets_.kept_mass();
      mass = {total, total * 1e-11};  // added up in another order
    } else {
      mass = row_.about_total_mass(temperature, top);
      const double enough = share * (mass.total + mass.error) * 1.001;
      const float* distance = distances;
      while (*distance < __builtin_inff() && row_.mass_from(top - *distance, temperature, top) < enough) ++distance;
      buckets_.fill(found_, gather(top - *distance, temperature), top);
    }
    if (!buckets_.keep_mass(share, mass)) buckets_.keep_mass(share, {row_.total_mass(temperature, top), 0});
    return buckets_.draw(u);
  }

  std::int64_t draw_by_id(float temperature, double top, double u, std::int64_t best) {
    const Mass about = row_.about_total_mass(temperature, top);
    const std::int64_t drawn = token_at(u * about.total, temperature, top, 2 * about.error, best);
    return drawn >= 0 ? drawn : token_at(u * row_.total_mass(temperature, top), temperature, top, 0, best);
  }

  // The first token by whose weight the masses before it and its own pass a target; −1 where that hangs on the margin.
  std::int64_t token_at(double target, float temperature, double top, double margin, std::int64_t best) const {
    double passed = 0;
    std::int64_t last = best;
    for (std::int64_t b = 0; b < row_.blocks(); ++b) {
      const double after = passed + row_.mass(b);
      if (after <= target - margin) {
        passed = after;
        continue;
      }
      if (Buckets::unclear(after - target, margin)) return -1;
      if (after <= target) {
        passed = after;
        continue;
      }
      for (std::int64_t i = b * sample_block; i < row_.end(b); ++i) {
        const double w = RowLogits::weight(row_.logits()[i] / temperature, top);
        if (w > 0) last = i;
        passed += w;
        if (Buckets::unclear(passed - target, margin)) return -1;
        if (passed > target) return i;
      }
    }
    return margin > 0 ? -1 : last;
  }

  // From the largest, in which candidates are looked for one after the other until they are enough.
  static constexpr float distances[] = {6.0f, 9.0f, 12.0f, 16.0f, 24.0f, __builtin_inff()};

  Parts memory_;
  RowLogits row_;
  Buckets buckets_;
  float* spare_;
  Candidate* found_;
};

// work(Row, row) for every row of logits; few and short ones are not worth waking anybody.
template <class Work>
void each_row(Pool& pool, float* logits, std::int64_t rows, std::int64_t vocabulary, const Work& work) {
  pool.reserve(Row::scratch_bytes(vocabulary));
  const auto one = [&](std::int64_t row, int worker) {
    char* scratch = static_cast<char*>(pool.own(worker));
    work(Row(logits + row * vocabulary, vocabulary, scratch), row);
  };
  parallel_for(pool, rows, one, rows * vocabulary < 1 << 15);
}

inline void sample(Pool& pool, float* logits, std::int64_t rows, std::int64_t vocabulary, const Sampling& s) {
  each_row(pool, logits, rows, vocabulary, [&](Row&& one, std::int64_t row) { one.run(s, row); });
}

inline void score(Pool& pool, float* logits, std::int64_t rows, std::int64_t vocabulary,
                  const std::int32_t* token_ids, const Logprobs& out) {
  each_row(pool, logits, rows, vocabulary, [&](Row&& one, std::int64_t row) { one.score(token_ids[row], out, row); });
}

}  // namespace inflight::INFLIGHT_ISA
